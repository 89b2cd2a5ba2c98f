"""The ports of a job: the same at every call, others if some are taken here."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from shoal.errors import PlanError
from shoal.foreign.checks import is_taken, ports_of
from shoal.foreign.job import LAST_PORT, Node, ProcessGroup, Shape

FIRST_PORTS = range(20000, 29000, 100)
"""First ports to choose from: below those that systems assign."""
MOST = 1000


@contextmanager
def placed(
    nodes: Sequence[Node], shape: Shape, first_port: int | None = None
) -> Generator[ProcessGroup]:
    """Context with a job whose ports are free here, and reserved against other jobs.

    The first port is a digest of the user, the hosts and the shape: `--print` and
    `--check` show the job that a launch will run. Programs take minutes until they
    listen; while the context lasts, another job of this machine uses other ports.

    Args:
        nodes: Nodes of the job; their own ports are ignored.
        shape: Composition of the job.
        first_port: First port of the job, None for the digest.

    Raises:
        ConfigError: A number is outside its range.
        PlanError: A port is taken on this machine, or there are too few.
    """
    if first_port is not None:
        yield _with_explicit(nodes, shape, first_port)
        return
    with ExitStack() as stack:
        for first in candidates(nodes, shape):
            job = _beginning_at(first, nodes, shape)
            try:
                held = socket.create_server(("127.0.0.1", first - 1))
            except OSError:
                continue
            if not taken_here(job):
                stack.enter_context(held)
                break
            held.close()
        else:
            raise PlanError(
                "no range of ports for this job is free on this machine: first ports "
                f"from {FIRST_PORTS[0]} to {FIRST_PORTS[-1]} were tried. Expected a "
                "range without a used port. Pass another first port with --port."
            )
        yield job


def candidates(nodes: Sequence[Node], shape: Shape) -> list[int]:
    """Returns possible first ports of a job, the best first."""
    asks = f"{os.getuid()}@{socket.gethostname()}"
    hosts = [(node.name, node.address, node.slots, node.gpus) for node in nodes]
    digest = hashlib.sha256(repr((asks, hosts, shape)).encode()).digest()
    place = int.from_bytes(digest[:8], "big") % len(FIRST_PORTS)
    return [*FIRST_PORTS[place:], *FIRST_PORTS[:place]]


def taken_here(job: ProcessGroup) -> list[int]:
    """Returns the ports of a job that are taken on this machine."""
    return [
        port
        for rank, node in enumerate(job.nodes)
        if node.is_here
        for port in ports_of(job, rank)
        if is_taken(port)
    ]


def _beginning_at(first: int, nodes: Sequence[Node], shape: Shape) -> ProcessGroup:
    ports = range(first, min(first + MOST, LAST_PORT + 1))
    return ProcessGroup.of([replace(node, ports=ports) for node in nodes], shape)


def _with_explicit(nodes: Sequence[Node], shape: Shape, first: int) -> ProcessGroup:
    job = _beginning_at(first, nodes, shape)
    if taken := taken_here(job):
        raise PlanError(
            f"ports {taken} of this machine are taken, with --port {first}. Expected "
            "the job's ports to be free; nothing was started. Give another one, or "
            "leave --port out."
        )
    return job
