"""What a worker knows from the server's answers, and where its time went."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import final

from shoal.engine.coordination.instructions import Group
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.server_to_worker import (
    Answer,
    Done,
    Repeat,
    RunState,
)
from shoal.engine.transport.messages.worker_to_server import NanStatus


@final
@dataclass
class Times:
    """Seconds of a window: computing, reading, waiting for work, exchanging."""

    compute_s: float = 0.0
    data_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0

    def take(self) -> tuple[float, ...]:
        """Returns the times, and starts again."""
        spent = self.compute_s, self.data_s, self.wait_s, self.exchange_s
        self.compute_s = self.data_s = self.wait_s = self.exchange_s = 0.0
        return tuple(round(seconds, 6) for seconds in spent)


@final
@dataclass
class Progress:
    """State that the last answer told."""

    version: int = 0
    lineage: int = 0
    clock: int = 0
    workers: int = 1
    learning_rate: float | None = None
    is_done: bool = False
    wants_snapshot: bool = False
    nan_status: int = NanStatus.FINITE
    group: Group | None = None
    sums: tuple[float, ...] = ()
    """Sums for which a message has to be computed again."""
    pieces: deque[Piece] = field(default_factory=deque[Piece])

    def heed(self, state: RunState) -> None:
        """Keeps the state that every answer tells; the rest is unset."""
        rate = state.learning_rate
        self.version, self.lineage = state.version, state.lineage
        self.clock, self.workers = state.clock, state.workers
        self.learning_rate = None if rate is None else float(rate)
        self.is_done = self.wants_snapshot = False
        self.nan_status, self.group, self.sums = 0, None, ()

    def take(self, answer: Answer) -> None:
        """Keeps the answer to a push, or to a worker without data; `heed` was called.

        New leases are added to those that are left.
        """
        self.is_done = isinstance(answer, Done)
        self.wants_snapshot = answer.wants_snapshot
        self.nan_status = answer.nan_status
        self.group, self.sums = answer.group, answer.sums
        if isinstance(answer, Repeat):
            self.pieces.clear()  # it contains all leases
        self.pieces.extend(answer.pieces)

    @property
    def generation(self) -> int:
        """Number of the group that averages the next step; 0 if the server does."""
        return 0 if self.group is None else self.group.generation
