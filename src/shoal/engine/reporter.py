"""What the server tells the controller, in the order in which it happened."""

from __future__ import annotations

import time
from typing import final

from shoal.engine.accounts import Accounts
from shoal.engine.connections import Connections, Peer
from shoal.engine.reports import pack_center
from shoal.engine.wire import Head
from shoal.strategies.base import Facts
from shoal.vectors import Vector

FLUSH_S = 0.1


@final
class Reporter:
    """The server's line to its controller.

    Args:
        connections: The controller is one of.
        metrics: Numbers of metric state.
    """

    def __init__(self, connections: Connections, metrics: int) -> None:
        self.controller: Peer | None = None
        self._early: list[tuple[Head, tuple[bytes, ...]]] = []
        self.accounts = Accounts(metrics)
        self._connections = connections
        self._flushed = time.monotonic()
        self._has_worked = False

    def attach(self, controller: Peer) -> None:
        """Tells a controller from now on, and what happened before there was one."""
        self.controller = controller
        early, self._early = self._early, []
        for head, body in early:
            self._say(head, *body)

    @property
    def is_due(self) -> bool:
        """Whether the controller has not heard of exchanges for a while."""
        return time.monotonic() - self._flushed >= FLUSH_S

    def note(
        self, found: dict[int, Facts], peers: dict[int, Peer], version: int
    ) -> None:
        """Enters what was applied together, and tells of the first at once."""
        for rank, facts in found.items():
            self.accounts.note(peers[rank], version, facts.staleness)
        if not self._has_worked:
            self._has_worked = True
            self.flush()

    def flush(self) -> None:
        """Tells of exchanges since the last time."""
        self._flushed = time.monotonic()
        if self.controller is None:
            return
        records, sums = self.accounts.take_records()
        if records:
            self._say({"kind": "records", "records": records}, sums)

    def tell(self, head: Head, *body: bytes) -> None:
        """Tells of something, after everything that happened before."""
        self.flush()
        self._say(head, *body)

    def show_center(
        self, head: Head, vector: Vector, statistics: Vector, epoch: int | None = None
    ) -> None:
        """Tells what the center is.

        Args:
            head: Why it is told.
            vector: Weights.
            statistics: Their statistics.
            epoch: Whose sums of metrics follow, as it is over; None for none.
        """
        self.flush()  # its last records tell of sums that go now
        sums = None if epoch is None else self.accounts.close(epoch)
        self._say(head, *pack_center(vector, statistics, sums))

    def _say(self, head: Head, *body: bytes) -> None:
        if self.controller is not None:
            self._connections.send(self.controller, head, *body)
        elif not self._has_worked:  # workers may be faster than their controller
            self._early.append((head, body))
