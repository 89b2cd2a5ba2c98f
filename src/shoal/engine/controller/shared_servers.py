"""The servers that share the vector of a run, as if they were one.

Server 0 orders events and gets the commands; the others report their parts of vectors,
which are joined here.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.engine.controller.observer import Observer
from shoal.engine.controller.process_pool import ProcessPool
from shoal.engine.controller.servers import Living, Message, Servers
from shoal.engine.server.checkpoint import STATE, ServerCheckpoint
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.messages.controller_to_server import (
    Command,
    Follow,
    Stop,
)
from shoal.engine.transport.messages.server_to_controller import (
    Broken,
    Unordered,
)
from shoal.engine.transport.messages.state_reports import (
    CenterShown,
    EpochEnded,
    RestartState,
    ShowsCenter,
    VectorReport,
)
from shoal.engine.transport.partition import cuts, sizes_of
from shoal.errors import ClusterError, ExchangeTimeout
from shoal.interruption import check
from shoal.launchers.base import Exit
from shoal.wire.frames import Link


def cut(
    spec: ServerSpec, number: int, order: tuple[str, int] | None = None
) -> ServerSpec:
    """Returns one server's part of the whole spec."""
    if spec.shards == 1:
        return spec
    part = cuts(spec.sizes.vector, spec.shards)[number]
    nothing = np.zeros(0, np.float32)
    return replace(
        spec,
        shard=number,
        order=order,
        sizes=sizes_of(spec.sizes, number, spec.shards),
        vector=spec.vector[part],
        statistics=nothing if number else spec.statistics,
        checkpoint=None
        if spec.checkpoint is None
        else _cut(spec.checkpoint, part, number),
    )


def _cut(checkpoint: ServerCheckpoint, part: slice, number: int) -> ServerCheckpoint:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, array in checkpoint.arrays.items():
        if _is_vector(name):
            arrays[name] = array[part]
        elif number == 0:
            arrays[name] = array
    arrays.setdefault("statistics", np.zeros(0, np.float32))
    # The others only need to know whether there is an optimizer state.
    blob = checkpoint.blob[:1] if number else checkpoint.blob
    return replace(checkpoint, arrays=arrays, blob=blob)


def _is_vector(name: str) -> bool:
    return name == "vector" or name.startswith(STATE)


def join(message: Message, others: Sequence[Message]) -> Message:
    """Joins the reports of all servers about their parts.

    Args:
        message: Report of server 0.
        others: Reports of the others, in order.
    """
    report, body = message
    if isinstance(report, RestartState):
        reports = [
            (other, part) for other, part in others if isinstance(other, RestartState)
        ]
        return _join_checkpoint(report, body, reports)
    if not isinstance(report, ShowsCenter):
        raise RuntimeError(f"no report with a part of the vector: {report}")
    at = 4 * report.size
    # Number 0 has the first part of the vector, and all that is no part of it.
    parts = [body[:at], *(part for _, part in others), body[at:]]
    sizes = [other.size for other, _ in others if isinstance(other, ShowsCenter)]
    whole = report.replace(size=report.size + sum(sizes))
    return whole, memoryview(b"".join(parts))


def _join_checkpoint(
    report: RestartState,
    body: memoryview,
    others: Sequence[tuple[RestartState, memoryview]],
) -> Message:
    table: list[tuple[str, str, int]] = []
    parts: list[memoryview] = []
    found = [_arrays(*other) for other in others]
    own = _arrays(report, body)
    for name, dtype, size in report.arrays:
        parts.append(own[name])
        if _is_vector(name):
            parts += [other[name] for other in found]
            size = sum(len(other[name]) for other in (own, *found)) // 4
        table.append((name, dtype, size))
    used = sum(len(data) for data in own.values())
    parts.append(body[used:])
    return report.replace(arrays=tuple(table)), memoryview(b"".join(parts))


def _arrays(report: RestartState, body: memoryview) -> dict[str, memoryview]:
    found: dict[str, memoryview] = {}
    at = 0
    for name, dtype, size in report.arrays:
        end = at + np.dtype(dtype).itemsize * size
        found[name] = body[at:end]
        at = end
    return found


def _number(message: Message) -> int:
    return message[0].number or 0


POLL_S = 0.05
FOLLOW_S = 1.0  # between two attempts to connect a shard to number 0
PART_S = 60.0
"""Limit for a shard's part of a report, for every shard is near that event; beyond the
time after which a silent shard is lost, and replaced."""


@final
class SharedServers:
    """The controller's connections to all servers of a run.

    Args:
        pool: Pool of the processes.
        observer: Observer of the run.
        workers: Number of workers.
        living: Returns the tokens of all workers whose process lives.
        count: Number of servers that share the vector.
        has_standby: Each server has a standby.
        on_succession: Called when another process is number 0: the last commands to the
            old one may be lost.
    """

    def __init__(
        self,
        pool: ProcessPool,
        observer: Observer,
        workers: int,
        living: Living,
        *,
        count: int = 1,
        has_standby: bool,
        on_succession: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool, self._clock = pool, pool.environment.clock
        self._all = [
            Servers(
                pool,
                pool.pair(number),
                observer,
                workers,
                living,
                has_standby=has_standby,
                on_succession=(lambda: None) if number else self._follow_another,
            )
            for number in range(count)
        ]
        self._main, *self._shards = self._all
        self._parts: list[deque[Message]] = [deque() for _ in self._shards]
        self._unordered: dict[int, float] = {}
        self._on_succession, self._has_standby = on_succession, has_standby

    # -------------------------------------------------------------- starting

    def start(self, spec: ServerSpec) -> None:
        """Gives every process its spec; all have their addresses then.

        Raises:
            ClusterError: A node does not report the address of its server.
        """
        self._forget()
        self._pool.place_servers(has_standby=self._has_standby)
        address = self._pool.main.address
        for number, servers in enumerate(self._all):
            servers.start(cut(spec, number, address if number else None))

    def connect(self, limit_s: float, meanwhile: Callable[[], None]) -> None:
        """Connects to all; see `Servers.connect`."""
        for servers in self._all:
            servers.connect(limit_s, meanwhile)

    def prepare(self) -> None:
        """Starts other processes: parts of two lineages would not fit together."""
        self._forget()
        for servers in self._all:
            servers.prepare()

    def _forget(self) -> None:
        self._unordered.clear()
        for parts in self._parts:
            parts.clear()

    # -------------------------------------------------------------- speaking

    def command(self, command: Command, body: bytes = b"") -> None:
        """Sends a command to number 0, and the end of the run to all."""
        self._main.command(command, body)
        if isinstance(command, Stop):
            for shard in self._shards:
                shard.command(command)

    def receive(self, timeout_s: float) -> Message | None:
        """Returns one message of the server, None if none comes in time.

        Raises:
            ServerGone: A server is lost, and has no standby.
        """
        self._hear_shards(0.0)
        message = self._main.receive(timeout_s)
        if message is None or not self._shards:
            return message
        if not isinstance(message[0], VectorReport):
            return message
        return join(message, self._parts_of(_number(message)))

    @property
    def has_input(self) -> bool:
        """Whether one has sent something, or has ended its connection."""
        return any(servers.has_input for servers in self._all)

    def _parts_of(self, number: int) -> list[Message]:
        """Waits until all shards have reported their part.

        Raises:
            ClusterError: A shard does not report it.
        """
        limit_s = PART_S + max(shard.silence_limit_s for shard in self._shards)
        until = self._clock() + limit_s
        found: list[Message] = []
        for place, parts in enumerate(self._parts):
            while not parts or _number(parts[-1]) < number:
                if self._clock() > until:
                    raise ClusterError(
                        f"server-{place + 1} has not sent its part of the weights. "
                        f"Expected it within {limit_s:.0f} s; its process still runs. "
                        "See its output in the run's log."
                    )
                check()
                self._hear_shards(POLL_S)
            while _number(parts[0]) < number:  # of a report that is not awaited
                parts.popleft()
            found.append(parts.popleft())
        return found

    def _hear_shards(self, timeout_s: float) -> None:
        for number, shard in enumerate(self._shards):
            message = shard.receive(timeout_s)
            while message is not None:
                match message[0]:
                    case EpochEnded() | CenterShown() | RestartState():
                        self._parts[number].append(message)
                    case Broken(reason=reason):
                        raise ClusterError(reason)
                    case Unordered():
                        self._unordered.setdefault(number, 0.0)
                    case _:
                        pass
                message = shard.receive(0.0)
        self._bring_back()

    def _bring_back(self) -> None:
        """Tells shards that lost number 0 its address, until they are connected."""
        now = self._clock()
        for number, tried in list(self._unordered.items()):
            if now - tried >= FOLLOW_S:
                del self._unordered[number]
                self._shards[number].command(Follow(order=self._pool.main.address))

    def _follow_another(self) -> None:
        """Handles another process being number 0."""
        address = self._pool.main.address
        for shard in self._shards:
            shard.follow(address)
        self._on_succession()

    def last_words(self, timeout_s: float) -> list[Message]:
        """Returns the messages of number 0 until it ends, without weights."""
        said = self._main.last_words(timeout_s)
        return [found for found in said if not isinstance(found[0], VectorReport)]

    def call_again(self, limit_s: float) -> Sequence[Link]:
        """Connects to all again; returns the old connections, to be closed later.

        Raises:
            OSError: A server does not answer.
            ExchangeTimeout: The same.
        """
        self._forget()
        found = [servers.call_again(limit_s) for servers in self._all]
        return [link for link in found if link is not None]

    # ---------------------------------------------------------------- losses

    def look(self, exits: dict[str, Exit], start_limit_s: float) -> None:
        """Looks after all processes; see `Servers.look`.

        Raises:
            ServerGone: A server is lost, and has no standby.
        """
        for servers in self._all:
            servers.look(exits, start_limit_s)

    def close(self) -> None:
        """Closes the connections and frees what a killed server left."""
        for servers in self._all:
            with contextlib.suppress(OSError, ExchangeTimeout):
                servers.close()
