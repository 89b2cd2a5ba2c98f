"""Servers that share the vector of a run in one process, each in a thread.

This file does what a controller does for each server: it connects, joins the parts of
reports, and promotes the standby of a lost server.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from shoal.engine.controller.shared_servers import Message, cut, join
from shoal.engine.server.base import BaseServer, open_connections
from shoal.engine.server.shard import ShardServer
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.engine.transport.client_connection import Address, Addresses
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.server_to_controller import read_report
from shoal.wire.frames import Link

PATIENCE_S = 30.0  # for a shard's part of a report of the first server
LOOK_S = 0.01

Run = Callable[[str, Callable[[], object]], threading.Thread]
Call = Callable[[Address], Link]


def number_of(report: Report) -> int:
    """The number of a report that follows from events."""
    return report.number or 0


@dataclass(frozen=True, kw_only=True)
class Means:
    """The parts of a cluster that its servers use.

    Args:
        order: Gives the address of the first server.
        call: Connects to a server as the controller.
        run: Starts a thread.
        has_standby: Whether each server has a standby.
    """

    order: Callable[[], Address]
    call: Call
    run: Run
    has_standby: bool


@final
class InlineShard:
    """One shard and its standby.

    Args:
        spec: Spec of its part.
        means: Parts of the cluster.
    """

    def __init__(self, spec: ServerSpec, means: Means) -> None:
        self._spec, self._means = spec, means
        host = means.order()[0]
        self.listeners = [socket.create_server((host, 0), backlog=64) for _ in "12"]
        connections = open_connections(spec, self.listeners[0].dup())
        self.server: BaseServer = ShardServer(spec, connections)
        means.run(f"shoal-server-{spec.shard}", self.server.run)
        self._link = means.call(self._address(0))
        self._link.send({"kind": "control"})
        self._standby_peer: Link | None = None
        self._standby: Standby | None = None
        self._heard = 0
        self._parts: list[Message] = []
        self.successions = 0
        if means.has_standby:
            self._start_standby()
            while self._standby_peer is None:
                self._hear()

    def _address(self, place: int) -> Address:
        return self.listeners[place].getsockname()

    @property
    def addresses(self) -> Addresses:
        """Addresses of the server and of its standby, if there is one."""
        found = (self._address(0), self._address(1))
        return found if self._means.has_standby else found[:1]

    @property
    def has_relief(self) -> bool:
        """Whether it may be lost."""
        return self._standby_peer is not None

    def _start_standby(self) -> None:
        spec = StandbySpec(server=self._spec, leader=self._address(0))
        self._standby = Standby.open(spec, self.listeners[1].dup())
        self._means.run(f"shoal-standby-{self._spec.shard}", self._standby.run)

    def look(self) -> None:
        """Takes all reports that have arrived."""
        while self._link.has_input(0.0):
            self._hear()

    def _hear(self) -> None:
        try:
            head, body = self._link.receive(timeout_s=PATIENCE_S)
        except ConnectionError:
            self._take_over()
            return
        if head["kind"] == "standby_ready":
            self._standby_peer = self._means.call(self._address(1))
            self._standby_peer.send({"kind": "control"})
        elif head["kind"] == "unordered":
            time.sleep(LOOK_S)
            self.command("follow", order=self._means.order())
        elif "number" in head:
            self._heard = head["number"]
            self._parts.append((read_report(head), body))

    def _take_over(self) -> None:
        if self._standby_peer is None or self._standby is None:
            raise ConnectionResetError("a server is gone, and there is no standby")
        self._link.close()
        self._link, self._standby_peer = self._standby_peer, None
        self.listeners.reverse()
        order = self._means.order()
        self.command("lead", heard=self._heard, living=[], order=order)
        self.server = self._standby.successor()
        self.successions += 1
        self._start_standby()

    def command(self, kind: str, **fields: Any) -> None:
        """Sends a command, as the controller would."""
        with contextlib.suppress(OSError):
            self._link.send({"kind": kind, **fields})

    def part(self, number: int) -> Message:
        """Waits for its part of a report."""
        while not self._parts or number_of(self._parts[-1][0]) < number:
            self._hear()
        self._parts = [p for p in self._parts if number_of(p[0]) >= number]
        return self._parts.pop(0)

    def close(self) -> None:
        """Ends the server and its standby."""
        for link in (self._link, self._standby_peer):
            if link is not None:
                link.close()
        if self._standby is not None:
            self._standby.stop()
        for listener in self.listeners:
            listener.close()


@final
class InlineShards:
    """All servers of a run except the first.

    Args:
        spec: Spec of all servers together.
        means: Parts of the cluster.
    """

    def __init__(self, spec: ServerSpec, means: Means) -> None:
        self.shards: list[InlineShard] = []
        for number in range(1, spec.shards):
            self.shards.append(InlineShard(cut(spec, number, means.order()), means))

    @property
    def addresses(self) -> tuple[Addresses, ...]:
        """Addresses of the servers."""
        return tuple(shard.addresses for shard in self.shards)

    def follow(self, order: Address) -> None:
        """Records that another server is the first one."""
        for shard in self.shards:
            shard.command("follow", order=order)

    def attend(self, link: Link) -> None:
        """Waits for a report of the first server; takes reports of the others."""
        until = time.monotonic() + PATIENCE_S
        while self.shards and not link.has_input(LOOK_S):
            for shard in self.shards:
                shard.look()
            if time.monotonic() > until:
                return

    def whole(self, report: Report, body: memoryview) -> Message:
        """A report with the parts of all servers."""
        if not self.shards:
            return report, body
        parts = [shard.part(number_of(report)) for shard in self.shards]
        return join((report, body), parts)

    def close(self) -> None:
        """Ends the servers and their threads."""
        for shard in self.shards:
            shard.close()
