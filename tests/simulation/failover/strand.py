"""A thread that runs only while it has the turn.

This file decides how code that waits for answers, as a worker's does, becomes part of
a schedule: where it would wait it hands the turn back, and says what for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

LIMIT_S = 60.0  # of one turn; a thread that waits for anything else would never end


class Stuck(AssertionError):
    """A thread kept the turn."""


@final
class Strand:
    """One thread.

    Args:
        target: Function that runs in it; a `SystemExit` ends it quietly.

    Example:
        >>> said = []
        >>> def speak():
        ...     said.append("one")
        ...     strand.wait(lambda: True)
        ...     said.append("two")
        >>> strand = Strand(speak)
        >>> strand.resume(), said, strand.is_over
        (None, ['one'], False)
        >>> strand.resume(), said, strand.is_over
        (None, ['one', 'two'], True)
    """

    def __init__(self, target: Callable[[], object]) -> None:
        self._target = target
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._can_go: Callable[[], bool] = lambda: True
        self._is_killed = False
        self.is_over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def can_go(self) -> bool:
        """Whether the awaited condition holds."""
        return not self.is_over and self._can_go()

    def resume(self) -> None:
        """Gives the thread the turn, until it waits or ends.

        Raises:
            Stuck: The thread neither waits nor ends.
        """
        self._go.release()
        if not self._back.acquire(timeout=LIMIT_S):
            raise Stuck("a thread of the simulation waits for something else")

    def kill(self) -> None:
        """Ends the thread where it waits; it cannot refuse."""
        self._is_killed = True
        while not self.is_over:
            self.resume()

    # ------------------------------------------------------------- from within

    def wait(self, can_go: Callable[[], bool]) -> None:
        """Hands the turn back.

        Args:
            can_go: Whether it may have it again.
        """
        if not self._is_killed:
            self._can_go = can_go
            self._back.release()
            self._go.acquire()
        if self._is_killed:
            raise SystemExit

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._is_killed:
                self._target()
        except SystemExit:
            pass
        except BaseException as error:  # the schedule raises it
            self.error = error
        self.is_over = True
        self._back.release()
