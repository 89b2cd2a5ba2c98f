"""What the controller tells whoever looks after a run, and what it asks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from shoal.engine.changes import Changes
from shoal.engine.restart import Restart
from shoal.vectors import Sums as Sums
from shoal.vectors import Vector


class Record(NamedTuple):
    """One exchange, as the server saw it.

    Args:
        t: Seconds since the server began.
        rank: Of the sender.
        epoch: Its samples are of.
        samples: Committed by it.
        steps: Local optimizer steps it covers.
        version: Of the center afterwards.
        staleness: Server updates since the sender's last pull, plus 1.
        compute_s: Computing.
        data_s: Reading data.
        wait_s: Waiting for work, at the end of an epoch for example.
        exchange_s: Exchanging, waiting for others in a round included, before it.
        sums: The epoch's metric states so far, where they are small.
    """

    t: float
    rank: int
    epoch: int
    samples: int
    steps: int
    version: int
    staleness: int
    compute_s: float
    data_s: float
    wait_s: float
    exchange_s: float
    sums: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class EpochEnd:
    """An epoch whose last sample is committed, and the center at that moment.

    Args:
        epoch: Its number.
        rows: Samples that are committed of it.
        metrics: Its metric states.
        vector: Weights.
        statistics: Their statistics.
        optimizer_state: Of one worker, about then; None where none could be had.
        changes: Serial number of the newest change of a callback that is in here.
    """

    epoch: int
    rows: int
    metrics: Sums
    vector: Vector
    statistics: Vector
    optimizer_state: bytes | None = None
    changes: int = 0


@dataclass(frozen=True, kw_only=True)
class Rescue:
    """What is left of a run that is broken off.

    Args:
        vector: Weights of the center.
        statistics: Their statistics.
        samples: Committed in all epochs.
        clock: Steps of the user's batch size they make.
        optimizer_state: Of one worker, None when none answered in time.
    """

    vector: Vector
    statistics: Vector
    samples: int
    clock: int
    optimizer_state: bytes | None = None


class Observer(ABC):
    """Follows a run; its methods are called in the controller's thread."""

    @abstractmethod
    def on_event(self, kind: str, **fields: Any) -> None:
        """Something happened that a reader of the run wants to know."""

    @abstractmethod
    def on_records(self, records: list[Record], sums: dict[int, Sums]) -> None:
        """Exchanges took place."""

    @abstractmethod
    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch is about to be opened."""

    @abstractmethod
    def on_epoch(self, end: EpochEnd) -> None:
        """An epoch is complete."""

    @abstractmethod
    def on_turn(self) -> None:
        """Called several times a second while the controller follows the run."""

    @abstractmethod
    def on_checkpoint(self, found: Restart) -> None:
        """All that another server would need has come.

        It holds all epochs that this has been told the end of, perhaps one more.
        """

    @property
    @abstractmethod
    def wants_stop(self) -> bool:
        """Whether the run should end before the next epoch."""

    @property
    @abstractmethod
    def learning_rate(self) -> float | None:
        """The learning rate now; None under a schedule."""

    @property
    def changes(self) -> Changes:
        """What callbacks have changed in the model, of each variable the newest."""
        return Changes()

    @property
    def is_in_step(self) -> bool:
        """Whether each step waits until callbacks have heard of the one before."""
        return False

    @property
    def hears_steps(self) -> bool:
        """Whether each step is told at once, where that is a call and no message."""
        return False


@final
class EpochsInOrder:
    """Tells an observer of epochs in their order, and knows when a run is over.

    Without a barrier a later epoch may be complete before an earlier one.

    Args:
        first: The epoch the run starts with.
        end: The epoch it ends before.
        observer: Whom to tell.
        open_epoch: Called with each epoch that may begin after the first.

    Attributes:
        next: The first epoch that the observer was not told the end of.
    """

    def __init__(
        self,
        first: int,
        end: int,
        observer: Observer,
        open_epoch: Callable[[int], None],
    ) -> None:
        self.next, self._end = first, end
        self._observer, self._open = observer, open_epoch
        self._waiting: dict[int, EpochEnd] = {}
        self.are_over = first >= end

    def ended(self, end: EpochEnd) -> None:
        """Passes an epoch on, when its turn has come, and those that waited for it."""
        self._waiting[end.epoch] = end
        while self.next in self._waiting and not self.are_over:
            self._observer.on_epoch(self._waiting.pop(self.next))
            self.next += 1
            self.are_over = self.next >= self._end or self._observer.wants_stop
            if not self.are_over:
                self._open(self.next)
