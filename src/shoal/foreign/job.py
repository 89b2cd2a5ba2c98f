"""The processes of a foreign program's job, and the node of each.

This file decides ranks, indexes, ports and devices. It is pure: nodes and a shape go
in, the processes come out, the same ones everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

from shoal.errors import ConfigError, PlanError

Part: TypeAlias = Literal["chief", "worker", "ps", "scheduler", "evaluator"]
LAST_PORT = 65535


@final
@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine on which processes are started.

    Args:
        name: Name of the host for ssh, or "localhost" for this machine.
        address: Its address for the other nodes.
        slots: Default number of training processes on it.
        gpus: Its GPUs, by their names in CUDA_VISIBLE_DEVICES.
        ports: Free ports, in the order of use; at least as many as it needs.
        ssh_options: Options of ssh, to reach it.
        variables: Variables of its processes besides those of their role.
    """

    name: str
    address: str
    slots: int = 1
    gpus: tuple[str, ...] = ()
    ports: Sequence[int] = field(default_factory=lambda: range(29400, LAST_PORT + 1))
    ssh_options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_here(self) -> bool:
        """Whether this is the local machine."""
        return self.name == "localhost"


@final
@dataclass(frozen=True, kw_only=True)
class Shape:
    """The composition of a job.

    Args:
        per_node: Training processes on each node; None for one a GPU, or one a slot
            without GPUs.
        ps: Parameter servers, spread over the nodes.
        has_chief: Whether the first training process is called chief, not worker 0.
        has_evaluator: Whether one more process evaluates.
        has_scheduler: Whether one more process connects the others, for DMLC.
    """

    per_node: int | None = None
    ps: int = 0
    has_chief: bool = False
    has_evaluator: bool = False
    has_scheduler: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class JobProcess:
    """One process of a job.

    Args:
        part: Role of the process.
        index: Index from 0, among the processes of that role.
        node: Node of the process.
        node_rank: Rank of that node, from 0.
        port: Port of its own.
        rank: Rank among training processes, from 0; None for others.
        local_rank: Rank among training processes of its node; None for others.
        gpus: The only GPUs it sees; None if its node has none.
    """

    part: Part
    index: int
    node: Node
    node_rank: int
    port: int
    rank: int | None = None
    local_rank: int | None = None
    gpus: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Returns the name of the process and its log, such as "worker-0"."""
        alone = self.part in ("chief", "scheduler", "evaluator")
        return self.part if alone else f"{self.part}-{self.index}"

    @property
    def address(self) -> str:
        """Returns its address for the other processes."""
        return f"{self.node.address}:{self.port}"

    @property
    def trains(self) -> bool:
        """Whether it is a worker or the chief."""
        return self.rank is not None


@final
@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """All processes of a job, and the ports where they meet.

    Args:
        nodes: Nodes; the processes meet on the first.
        processes: Training processes first, by rank.
        meeting_port: Port on the first node, for torch.
        coordinator_port: Port on the first node, for JAX.
        root_port: Port on the first node, for DMLC.
    """

    nodes: tuple[Node, ...]
    processes: tuple[JobProcess, ...]
    meeting_port: int
    coordinator_port: int
    root_port: int

    @classmethod
    def of(cls, nodes: Sequence[Node], shape: Shape) -> ProcessGroup:
        """Places every process.

        Raises:
            ConfigError: A number is outside its range.
            PlanError: No process would train, or a node has too few ports.
        """
        _check(nodes, shape)
        ports = [iter(node.ports) for node in nodes]

        def port(node_rank: int) -> int:
            found = next(ports[node_rank], None)
            if found is None or not 0 < found <= LAST_PORT:
                raise PlanError(
                    f"node {nodes[node_rank].name} has no port left for another "
                    "process of the job. Expected a free port for each process. "
                    "Give the node more ports, or fewer processes."
                )
            return found

        meeting, coordinator, root = port(0), port(0), port(0)
        processes = _trainers(nodes, shape, port)
        helpers = list[Part]()
        helpers.extend("ps" for _ in range(shape.ps))
        if shape.has_scheduler:
            helpers.append("scheduler")
        for count, part in enumerate(helpers):
            place = count % len(nodes) if part == "ps" else 0
            processes.append(
                JobProcess(
                    part=part, index=count if part == "ps" else 0, node=nodes[place],
                    node_rank=place, port=port(place), gpus=_none_of(nodes[place]),
                )
            )  # fmt: skip
        if shape.has_evaluator:
            place = len(nodes) - 1
            processes.append(
                JobProcess(
                    part="evaluator", index=0, node=nodes[place], node_rank=place,
                    port=port(place), gpus=_none_of(nodes[place]),
                )
            )  # fmt: skip
        return cls(
            nodes=tuple(nodes), processes=tuple(processes), meeting_port=meeting,
            coordinator_port=coordinator, root_port=root,
        )  # fmt: skip

    def doing(self, *parts: Part) -> list[JobProcess]:
        """Returns the processes of these roles, in order."""
        return [each for each in self.processes if each.part in parts]

    @property
    def trainers(self) -> list[JobProcess]:
        """Returns the training processes, by rank."""
        return [each for each in self.processes if each.trains]

    def trainers_on(self, node_rank: int) -> list[JobProcess]:
        """Returns the training processes of one node."""
        return [each for each in self.trainers if each.node_rank == node_rank]


def _check(nodes: Sequence[Node], shape: Shape) -> None:
    if not nodes:
        raise PlanError(
            "there is no node to launch on. Expected at least one. Name hosts, or "
            "leave them out for this machine."
        )
    for name, value in (("--per-node", shape.per_node), ("--ps", shape.ps)):
        least = 1 if name == "--per-node" else 0
        if value is not None and value < least:
            raise ConfigError(
                f"{name} is {value}. Expected {least} or more. Give such a number."
            )


def _trainers(
    nodes: Sequence[Node], shape: Shape, port: Callable[[int], int]
) -> list[JobProcess]:
    """Returns the training processes: node after node, each with GPUs of its own."""
    found: list[JobProcess] = []
    for node_rank, node in enumerate(nodes):
        count = shape.per_node or len(node.gpus) or node.slots
        for local_rank in range(count):
            rank = len(found)
            is_chief = shape.has_chief and rank == 0
            found.append(
                JobProcess(
                    part="chief" if is_chief else "worker",
                    index=0 if is_chief else rank - shape.has_chief,
                    node=node,
                    node_rank=node_rank,
                    port=port(node_rank),
                    rank=rank,
                    local_rank=local_rank,
                    gpus=_share(node.gpus, local_rank, count),
                )
            )
    return found


def _share(gpus: Sequence[str], place: int, count: int) -> tuple[str, ...] | None:
    """Returns the GPUs of one of `count` processes of a node; some may share one."""
    if not gpus:
        return None
    if count >= len(gpus):
        return (gpus[place % len(gpus)],)
    return tuple(gpus[place::count])


def _none_of(node: Node) -> tuple[str, ...] | None:
    """Hides GPUs from serving processes: TensorFlow would take all of their memory."""
    return () if node.gpus else None
