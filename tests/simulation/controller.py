"""What both simulated controllers share: epochs in order, workers replaced.

How a controller speaks with its server, and what follows where that is lost, each
simulation decides for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tests.simulation.violation import require

K = TypeVar("K", int, str)


class Controller(ABC, Generic[K]):
    """A controller process.

    Args:
        upcoming: The epoch that is next.
        end: The epoch the run ends before.

    Attributes:
        hands: Workers' processes that are there, and the ranks they were started for.
        upcoming: The first epoch whose end it has not told, nor that of one before.
        is_halted: No epoch begins any more.
        is_over: Nobody who is lost is replaced any more.
    """

    def __init__(self, upcoming: int, end: int) -> None:
        self.upcoming, self.end = upcoming, end
        self.hands: dict[K, int] = {}
        self.is_halted = self.is_over = False
        self._ended: set[int] = set()

    # ------------------------------------------------------------------ epochs

    def _epoch_ended(self, epoch: int) -> None:
        """Handles the end of an epoch; a later epoch may end first."""
        is_news = epoch >= self.upcoming and epoch not in self._ended
        require(is_news, "an epoch's end is told once", epoch)
        self._ended.add(epoch)
        while self.upcoming in self._ended and not self.is_over:
            self.upcoming += 1
            if self.upcoming >= self.end or self.is_halted:
                self._end_run()
            else:
                self._proceed(self.upcoming)

    @abstractmethod
    def _proceed(self, epoch: int) -> None:
        """Tells the server that an epoch may begin."""

    @abstractmethod
    def _end_run(self) -> None:
        """All epochs have ended: one worker's state is still requested."""

    # ----------------------------------------------------------------- workers

    def hired(self, worker: K, hint: int) -> None:
        """A worker's process was started."""
        self.hands[worker] = hint

    def _lost(self, worker: K, hint: int) -> None:
        """A worker's process has ended, or will end soon."""
        self.hands.pop(worker, None)
        if not self.is_over:
            self._replace(hint)

    @abstractmethod
    def _replace(self, hint: int) -> None:
        """Replaces a lost worker, or gives it up."""
