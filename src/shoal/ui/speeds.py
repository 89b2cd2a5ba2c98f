"""Samples a second and staleness of a run, in slices of its time. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.ui.charts import Numbers, Points, Series
from shoal.ui.exchanges import Exchanges

BINS = 200
"""Slices at most, and so points of a line."""
ROUNDS = 4
"""Exchanges of each worker that a slice has on average, at least."""
LEAST_ROUNDS = 2
"""Exchanges of each worker before a speed is told: two workers may push at the same
moment, and the time between their pushes says nothing."""

LEAST_SPAN_S = 1e-6
"""Shortest time that is divided by, as records of times have no more digits."""


def has_speed(exchanges: Exchanges) -> bool:
    """Whether there are enough exchanges to tell a speed."""
    return len(exchanges) > LEAST_ROUNDS * _workers(exchanges)


def speed_lines(exchanges: Exchanges, at: Numbers) -> dict[str, list[Series]]:
    """Returns the lines of each chart of the speed, by its name.

    A value is drawn where its slice ends.

    Args:
        exchanges: Exchanges of a run.
        at: Places of the exchanges on the axis, shape `(exchanges,)`.
    """
    if not has_speed(exchanges):
        return {}
    # Records of several workers may come a little out of order.
    times = np.maximum.accumulate(exchanges.t.values)
    ends = slices(times, _workers(exchanges))
    if not len(ends):
        return {}
    speed = Points(at[ends], speeds(times, exchanges.rows.values, ends))
    found = {"samples/s": [Series(name="samples/s", points=speed, style="s0 bold")]}
    waits = exchanges.staleness.values
    if waits.any():
        parts = [
            np.sort(waits[start:end])
            for start, end in zip([0, *ends[:-1] + 1], ends + 1, strict=True)
        ]
        highest = Points.of(at[ends], [part[-1] for part in parts])
        middle = Points.of(at[ends], [_median(part) for part in parts])
        found["staleness"] = [
            Series(name="highest", points=highest, style="s1 d1 thin"),
            Series(name="median", points=middle, style="s0 bold"),
        ]
    return found


def slices(times: Numbers, workers: int = 1) -> NDArray[np.int64]:
    """Returns the last exchange of each slice of time; the first begins at 0.

    Slices have the same width. One whose last exchange lies in its first half is merged
    with the next one, so that from one end to the next it is half a width at least.

    Args:
        times: Times of exchanges, none of them before an earlier one.
        workers: Workers of the run.

    Example:
        >>> slices(np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 7.001]))
        array([3, 8])
    """
    last = len(times) - 1
    if last < 1 or times[-1] - times[0] < LEAST_SPAN_S:
        return np.empty(0, dtype=np.int64)
    passed = times - times[0]
    count = max(1, min(BINS, last // (ROUNDS * workers)))
    width = passed[-1] / count
    edges = width * np.arange(1, count + 1)
    ends = np.searchsorted(passed, edges, side="right") - 1
    is_kept = passed[ends] >= edges - width / 2
    ends[-1], is_kept[-1] = last, True
    return ends[is_kept]


def speeds(times: Numbers, rows: Numbers, ends: NDArray[np.int64]) -> Numbers:
    """Returns samples a second of each slice, shape `(ends,)`.

    Args:
        times: Times of exchanges.
        rows: Samples of each.
        ends: Last exchange of each slice.
    """
    marks = np.concatenate(([0], ends))
    return np.diff(np.cumsum(rows)[marks]) / np.diff(times[marks])


def _workers(exchanges: Exchanges) -> int:
    return len(exchanges.first) or 1


def _median(waits: NDArray[np.int32]) -> float:
    """Returns the median of numbers in order, the sum of two of which may not fit."""
    count = len(waits)
    return float(waits[(count - 1) // 2]) / 2 + float(waits[count // 2]) / 2
