"""Tells a process that starts slowly from one that hangs.

The limit of a start comes from earlier starts. They may have been those of waiting
processes, with all imports done, or of a time when the machine had nothing else to do.
So a process that is late is given up only when it does not use the processor any more,
which a hung or stopped one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

LOOK_S = 1.0  # between looks
STILL_S = 5.0  # without a tick of processor time, even on a busy machine
TICK_S = 0.01  # resolution of the systems' counts
MOST_TIMES = 10.0  # factor on the limit after which a busy loop counts as hung


@final
@dataclass(kw_only=True)
class StartProgress:
    """Progress of one process that starts.

    Args:
        spent: Returns the processor time of the process in seconds, None if unknown.

    Example:
        >>> spent = 1.0
        >>> progress = StartProgress(spent=lambda: spent)
        >>> progress.look(now=100.0)
        >>> progress.is_over(100.0, late_s=9.0, limit_s=8.0)
        False
        >>> progress.is_over(106.0, late_s=15.0, limit_s=8.0)
        True
        >>> StartProgress(spent=lambda: None).is_over(100.0, late_s=9.0, limit_s=8.0)
        True
    """

    spent: Callable[[], float | None]
    looked: float = float("-inf")
    known_s: float | None = None
    advanced: float = float("-inf")

    def look(self, now: float) -> None:
        """Looks at the process, seldom; call it often while the process starts."""
        if now - self.looked < LOOK_S:
            return
        self.looked, found = now, self.spent()
        if found is None:
            return
        if self.known_s is None or found - self.known_s >= TICK_S:
            self.known_s, self.advanced = found, now

    def is_over(self, now: float, *, late_s: float, limit_s: float) -> bool:
        """Whether the process counts as hung.

        Args:
            now: Seconds of a monotonic clock.
            late_s: Seconds since it was started.
            limit_s: Seconds that a start may take if nothing is known of its progress.
        """
        if late_s <= limit_s:
            return False
        self.look(now)
        return now - self.advanced > STILL_S or late_s > MOST_TIMES * limit_s

    def forgive(self, pause_s: float) -> None:
        """Shifts the clock by a time in which nobody looked."""
        self.advanced += pause_s
