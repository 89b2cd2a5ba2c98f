"""Checks of a job before it is started."""

from __future__ import annotations

import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from shoal.clusters.ssh import SSH
from shoal.foreign.job import Node, ProcessGroup
from shoal.foreign.words import reached

LIMIT_S = 20.0
LOOK = (
    "import socket, sys\n"
    "for port in map(int, sys.argv[1:]):\n"
    "    try:\n"
    "        socket.create_server(('', port)).close()\n"
    "    except OSError:\n"
    "        print(port)\n"
)


def check(job: ProcessGroup, ssh: Sequence[str] = SSH) -> list[str]:
    """Returns the faults of a job and its nodes, a line each.

    Args:
        job: All processes of the job.
        ssh: The command that reaches hosts.
    """
    with ThreadPoolExecutor(len(job.nodes)) as threads:
        found = threads.map(
            lambda rank: _look_at(job, rank, ssh), range(len(job.nodes))
        )
        return [*duplicates(job), *(line for lines in found for line in lines)]


def duplicates(job: ProcessGroup) -> list[str]:
    """Returns names, addresses and indexes that occur twice in a job."""
    found: list[str] = []
    for what, names in (
        ("host", [node.name for node in job.nodes]),
        ("address", [node.address for node in job.nodes]),
        ("process", [process.name for process in job.processes]),
        ("place", [process.address for process in job.processes]),
    ):
        twice = [name for name, count in Counter(names).items() if count > 1]
        found += [f"the {what} {name} is listed twice" for name in twice]
    return found


def ports_of(job: ProcessGroup, node_rank: int) -> list[int]:
    """Returns the ports that a job uses on a node."""
    own = [each.port for each in job.processes if each.node_rank == node_rank]
    common = [job.meeting_port, job.coordinator_port, job.root_port]
    return [*own, *(common if node_rank == 0 else [])]


def _look_at(job: ProcessGroup, node_rank: int, ssh: Sequence[str]) -> list[str]:
    node, ports = job.nodes[node_rank], ports_of(job, node_rank)
    if node.is_here:
        taken = [port for port in ports if is_taken(port)]
        return [f"port {port} of {node.name} is taken" for port in taken]
    return _ask(node, ports, ssh)


def _ask(node: Node, ports: Sequence[int], ssh: Sequence[str]) -> list[str]:
    """Checks a host's ports on that host."""
    words = reached(node, ["python3", "-c", LOOK, *map(str, ports)], ssh)
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"the host {node.name} does not answer within {LIMIT_S:g} s"]
    except OSError as error:
        return [f"the host {node.name} cannot be reached: {error}"]
    if done.returncode == 127:
        return [f"the host {node.name} has no python3 on its PATH"]
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return [f"the host {node.name} cannot be reached: {said[-1]}"]
    return [f"port {port} of {node.name} is taken" for port in done.stdout.split()]


def is_taken(port: int) -> bool:
    """Whether a program listens at a port of this machine."""
    with suppress(OSError), socket.create_server(("", port)):
        return False
    return True
