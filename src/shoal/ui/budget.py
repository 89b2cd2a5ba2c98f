"""Processor time that pages about a run may take from the training beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import final

SHARE = 0.005
"""Part of the machine that pages about one run may take over time."""
MOST_S = 0.3
"""Seconds of processor time that may be taken at once, after a rest."""
MOST_PAUSE_S = 5.0
"""Seconds after which something is left in any case: a long run is read once."""


@final
class Budget:
    """A token bucket of processor time.

    Args:
        clock: Returns monotonic seconds.
        cores: Cores of the machine.

    Example:
        >>> budget = Budget(clock=lambda: 5.0, cores=2)
        >>> budget.spend(0.2), budget.pause_s
        (None, 0.0)
        >>> budget.spend(0.12), round(budget.pause_s, 6)
        (None, 2.0)
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cores: int = 1
    ) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._share = SHARE * cores
        self._left_s, self._looked = MOST_S, clock()

    def spend(self, seconds: float) -> None:
        """Takes processor time, which may be more than is left."""
        with self._lock:
            now = self._clock()
            gained = (now - self._looked) * self._share
            left_s = min(MOST_S, self._left_s + gained) - seconds
            self._left_s = max(left_s, -MOST_PAUSE_S * self._share)
            self._looked = now

    @property
    def pause_s(self) -> float:
        """Seconds until something is left again; 0 if something is."""
        self.spend(0.0)
        return max(0.0, -self._left_s) / self._share

    @contextmanager
    def spending(self) -> Generator[None]:
        """Takes the processor time that this thread needs within the context."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.spend(time.thread_time() - began)
