"""Seconds of the run from those of a server, which begin with its process. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final


@final
class RunClock:
    """Turns times of servers, one after the other, into seconds of the run.

    A report comes a little after what it tells of. The shortest delay seen from a
    server is taken as none, so that a time of the run is never later than its report.

    Example:
        >>> clock = RunClock()
        >>> clock.times([0.5, 1.0], now=8.0)
        [7.5, 8.0]
        >>> clock.times([0.1], now=9.0)  # another server
        [9.0]
    """

    def __init__(self) -> None:
        self._offset: float | None = None
        self._last = 0.0

    def times(self, times: Sequence[float], now: float) -> list[float]:
        """Returns seconds of the run.

        Args:
            times: Seconds of the present server, in order.
            now: Seconds of the run when they were reported.
        """
        if not times:
            return []
        if times[0] < self._last:  # another server has begun
            self._offset = None
        offset = now - times[-1]
        if self._offset is None or offset < self._offset:
            self._offset = offset
        self._last = times[-1]
        return [max(0.0, time + self._offset) for time in times]
