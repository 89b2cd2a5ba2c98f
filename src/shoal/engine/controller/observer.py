"""The controller's interface to the code that follows a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

from shoal.engine.server.checkpoint import ServerCheckpoint
from shoal.engine.server.records import EpochEnd, Record
from shoal.engine.transport.changes import Changes
from shoal.vectors import Sums as Sums


class Observer(ABC):
    """Follows a run; its methods are called in the controller's thread."""

    @abstractmethod
    def on_event(self, kind: str, **fields: Any) -> None:
        """Handles an event for readers of the run."""

    @abstractmethod
    def on_records(self, records: list[Record], sums: dict[int, Sums]) -> None:
        """Handles new exchanges."""

    @abstractmethod
    def on_epoch_begin(self, epoch: int) -> None:
        """Prepares for an epoch that is about to open."""

    @abstractmethod
    def on_epoch(self, end: EpochEnd) -> None:
        """Handles a complete epoch."""

    @abstractmethod
    def on_turn(self) -> None:
        """Called several times a second while the controller follows the run."""

    @abstractmethod
    def on_checkpoint(self, found: ServerCheckpoint) -> None:
        """Handles a checkpoint.

        It contains all epochs whose end was reported here, perhaps one more.
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
        """The newest change of each variable that callbacks have changed."""
        return Changes()

    @property
    def is_in_step(self) -> bool:
        """Whether each step waits until callbacks have seen the one before."""
        return False

    @property
    def hears_steps(self) -> bool:
        """Whether each step is reported at once, by a call without a message."""
        return False


@final
class EpochsInOrder:
    """Reports epochs to an observer in their order, and knows the end of a run.

    Without a barrier a later epoch may be complete before an earlier one.

    Args:
        first: The first epoch of the run.
        end: The epoch before which the run ends.
        observer: The observer.
        open_epoch: Called with each epoch that may begin after the first.

    Attributes:
        next: The first epoch whose end was not reported.
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
        """Reports an epoch when its turn has come, and those that waited for it."""
        self._waiting[end.epoch] = end
        while self.next in self._waiting and not self.are_over:
            self._observer.on_epoch(self._waiting.pop(self.next))
            self.next += 1
            self.are_over = self.next >= self._end or self._observer.wants_stop
            if not self.are_over:
                self._open(self.next)
