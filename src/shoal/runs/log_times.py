"""Times of lines in logs, from the sizes that the logs had in the course of a run.

Workers write their output straight into files, without times. The driver records once
a second which logs have grown, and to what size: the event `log_sizes`. A line was
written by the time at which its log was first longer than the line's place in it.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import final

from shoal.runs.events import Event

LOOK_S = 1.0
"""Seconds between two looks at the sizes, at least."""

SLOWER = 10_000
"""Part of the age of a run that is between two looks: 1 s until three hours, 9 s after
a day. So the events of a long run stay few."""

MOST_MARKS = 20_000
"""Sizes that are kept of each log; beyond, every second one is dropped: the first times
of a run of many hours are then known to minutes."""


@final
class LogSizes:
    """Notices which logs have grown.

    Args:
        read: Returns the sizes in bytes by rank.
        clock: Monotonic seconds.

    Example:
        >>> sizes = {0: 10, 1: 0}
        >>> logs = LogSizes(lambda: sizes, clock=lambda: 5.0)
        >>> logs.look(), logs.look()
        ({0: 10}, {})
    """

    def __init__(
        self,
        read: Callable[[], Mapping[int, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._began, self._looked = clock(), -math.inf
        self._known: dict[int, int] = {}

    def look(self) -> dict[int, int]:
        """Returns sizes that have changed; nothing if it looked a moment ago."""
        now = self._clock()
        pause_s = max(LOOK_S, (now - self._began) / SLOWER)
        return self.last() if now - self._looked >= pause_s else {}

    def last(self) -> dict[int, int]:
        """Returns sizes that have changed, whenever it looked before."""
        self._looked = self._clock()
        found = self._read()
        changed = {
            rank: size
            for rank, size in found.items()
            if size != self._known.get(rank, 0)
        }
        self._known.update(changed)
        return changed


@final
class LogTimes:
    """Tells when lines of logs were written, to about a second.

    Example:
        >>> times = LogTimes()
        >>> times.add({"kind": "log_sizes", "time": 100.0, "sizes": {"0": 50}})
        >>> times.add({"kind": "log_sizes", "time": 107.0, "sizes": {"0": 80}})
        >>> times.of(0, 49), times.of(0, 50), times.of(0, 80), times.of(1, 0)
        (100.0, 107.0, None, None)
    """

    def __init__(self) -> None:
        # Lists only grow, or are replaced as a whole: another thread may read them.
        self._marks: dict[int, tuple[list[int], list[float]]] = {}

    def __bool__(self) -> bool:
        """Whether any time is known."""
        return bool(self._marks)

    def add(self, event: Event) -> None:
        """Adds the next event; those of other kinds change nothing."""
        if event.get("kind") != "log_sizes":
            return
        if event.get("are_new"):
            self._marks = {}
        found: Mapping[object, int] = event.get("sizes") or {}
        for name, size in found.items():
            self._add(int(str(name)), size, float(event.get("time") or 0.0))

    def _add(self, rank: int, size: int, at: float) -> None:
        sizes, times = self._marks.get(rank, ([], []))
        if not sizes or size < sizes[-1]:  # or the file was made anew
            self._marks[rank] = [size], [at]
            return
        times.append(max(at, times[-1]))
        sizes.append(size)
        if len(sizes) > MOST_MARKS:
            first = (len(sizes) - 1) % 2  # the last one stays
            self._marks[rank] = sizes[first::2], times[first::2]

    def of(self, rank: int, offset: int) -> float | None:
        """Returns when the line at an offset was written, None if that is not known.

        Args:
            rank: Rank of the worker.
            offset: Offset of the line's first byte.

        Returns:
            Unix seconds.
        """
        sizes, times = self._marks.get(rank, ([], []))
        place = bisect_right(sizes, offset)
        return times[place] if place < len(sizes) else None
