"""What the controller tells whoever looks after a run, and what it asks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

from shoal.engine.server.checkpoint import Restart
from shoal.engine.server.records import EpochEnd, Record
from shoal.engine.transport.changes import Changes
from shoal.vectors import Sums as Sums


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
