"""The nodes of a job: this machine, hosts by name, or a file of them."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from shoal.clusters.cluster_state import ClusterState
from shoal.clusters.gpus import usable_gpus
from shoal.errors import ConfigError
from shoal.foreign.job import Node, Shape

MOST_HERE = 500
HERE = Node(name="localhost", address="127.0.0.1")
LINE = re.compile(r"(?P<name>\w[\w.:@%-]*)(?P<rest>(\s+\w+=[\w.:,-]+)*)$")


def this_machine(shape: Shape) -> Node:
    """Returns this machine as a node for a job of that shape.

    Raises:
        ConfigError: The job has more processes than a machine has room for.
    """
    gpus = tuple(gpu.name for gpu in usable_gpus())
    count = (shape.per_node or len(gpus) or HERE.slots) + shape.ps
    if not 0 < count <= MOST_HERE:
        raise ConfigError(
            f"the job has {count} processes for this machine. Expected 1 to "
            f"{MOST_HERE}. Give other numbers, or --hosts."
        )
    return Node(name=HERE.name, address=HERE.address, gpus=gpus)


def cluster_nodes(state: ClusterState) -> list[Node]:
    """Returns the nodes that train, head first, with their Python first on the PATH.

    Args:
        state: State of the cluster.

    Raises:
        ClusterError: It has no nodes.
    """
    _ = state.head
    return [
        Node(
            name=node.address,
            address=node.private,
            gpus=node.gpus,
            ssh_options=state.way_to(node).options,
            variables={
                "PATH": f"{PurePosixPath(node.python).parent}:{node.path}",
                "KERAS_BACKEND": state.backend,
            },
        )
        for node in state.trainers
    ]


def free_ports(count: int) -> list[int]:
    """Returns ports on which no program listened just now."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def read_nodes(text: str) -> list[Node]:
    """Reads hosts: a file, or names separated by commas.

    A line of a file is a host and its properties: `slots=2`, `gpus=4`,
    `address=10.0.0.5` if the others know it by another address. Files of
    deeplearning-cfn and mpirun, with only an address a line, are accepted.

    Args:
        text: Path of the file, or the names.

    Raises:
        ConfigError: The file does not exist, or a line is invalid.
    """
    path = Path(text)
    if path.is_file():
        lines = path.read_text().splitlines()
    elif "/" in text:
        raise ConfigError(
            f"there is no file {text!r}. Expected a file with one host a line, or "
            "names of hosts with commas between. Pass one of the two."
        )
    else:
        lines = text.split(",")
    return parse_nodes(lines)


def parse_nodes(lines: Sequence[str]) -> list[Node]:
    """Reads one host a line; empty lines and text after a # are ignored.

    Raises:
        ConfigError: A line is not a host.

    Example:
        >>> lines = ["ann@10.0.0.2 slots=2  # the old one"]
        >>> node = parse_nodes(lines)[0]
        >>> node.name, node.address, node.slots
        ('ann@10.0.0.2', '10.0.0.2', 2)
    """
    found: list[Node] = []
    for number, line in enumerate(lines, 1):
        said = line.partition("#")[0].strip()
        if said:
            found.append(_node(said, number))
    return found


def _node(said: str, number: int) -> Node:
    match = LINE.match(said)
    given = dict(
        word.split("=", 1) for word in (match["rest"] if match else "").split()
    )
    unknown = {*given} - {"slots", "gpus", "address"}
    counts = [given.get(key, "1") for key in ("slots", "gpus")]
    if match is None or unknown or not all(count.isdecimal() for count in counts):
        raise ConfigError(
            f"line {number} of the hosts is {said!r}. Expected a host, and perhaps "
            "slots=N, gpus=N or address=ADDRESS. Correct the line."
        )
    name = match["name"]
    address = given.get("address", name.rpartition("@")[2])
    return Node(
        name=name,
        address=address,
        slots=int(given.get("slots", "1")),
        gpus=tuple(map(str, range(int(given.get("gpus", "0"))))),
    )
