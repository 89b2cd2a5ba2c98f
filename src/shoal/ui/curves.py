"""What the charts of a run show: its series and marks along a chosen axis. Pure.

Exchanges give the loss of each worker and of all together, speed and staleness; ends of
epochs give metrics. All points enter smoothing; sampling for the screen comes last.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shoal.ui.charts import (
    MOST_POINTS,
    Mark,
    Numbers,
    Points,
    Series,
    sampled,
    smoothed,
    within,
)
from shoal.ui.live import Exchanges, RunView
from shoal.ui.moments import Moment

AXES = {
    "samples": "samples",
    "seconds": "seconds of the run",
    "epoch": "epochs",
    "time": "time of day",
}
"""Name of an axis -> its label. Seconds leave out pauses between crash and resume."""

MOST_FAINT = 16
"""Workers whose own losses are drawn."""
FAINT_POINTS = 400
"""Points of each of them, as they lie behind the others."""
BINS = 200
"""Points of speed and staleness."""
MOST_SMOOTH = 0.999

EXCHANGE_LOSS = "loss of exchanges"


@final
@dataclass(frozen=True, kw_only=True)
class Chart:
    """The lines of one chart.

    Args:
        name: What it shows.
        lines: Its lines, the faint ones first.
        part: Part of the page: "curves" or "speed".
    """

    name: str
    lines: list[Series]
    part: str = "curves"


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a reader chose to see.

    Args:
        x: Name of the axis, one of `AXES`.
        is_log: Whether the y axis is logarithmic.
        smooth: Factor of the exponential mean, 0 for none, below 1.
        window: Lowest and highest x, None for all.
    """

    x: str = "samples"
    is_log: bool = False
    smooth: float = 0.0
    window: tuple[float, float] | None = None

    def shown(self, series: Sequence[Series], most: int = MOST_POINTS) -> list[Series]:
        """Returns lines as they are drawn: smoothed on all points, then sampled."""
        found: list[Series] = []
        for one in series:
            is_faint = "faint" in one.style
            points = _fit(one.points, is_log=self.is_log)
            limit = min(most, FAINT_POINTS) if is_faint else most
            if self.smooth and not is_faint:
                style = f"{one.style.partition(' ')[0]} raw"
                soft = smoothed(points, self.smooth)
                soft = sampled(within(soft, self.window), most)
                behind = sampled(within(points, self.window), most)
                name = f"{one.name}, raw"
                found.append(Series(name=name, points=behind, style=style))
                found.append(Series(name=one.name, points=soft, style=one.style))
                continue
            drawn = sampled(within(points, self.window), limit)
            found.append(Series(name=one.name, points=drawn, style=one.style))
        return [one for one in found if len(one.points)]


def charts_of(view: RunView, choice: Choice) -> list[Chart]:
    """Returns the charts of a run."""
    found: list[Chart] = []
    with view.lock:
        for name in _metrics(view):
            lines = _losses(view.exchanges, choice.x) if name == "loss" else []
            lines += epoch_lines(view.epochs, name, choice.x)
            found.append(Chart(name=name, lines=choice.shown(lines)))
        rated = [e for e in view.epochs if e["learning_rate"] is not None]
        rate = Points.of(
            [_place(epoch, choice.x) for epoch in rated],
            [float(epoch["learning_rate"]) for epoch in rated],
        )
        line = Series(name="learning rate", points=rate, style="s0 bold")
        found.append(Chart(name="learning rate", lines=choice.shown([line])))
        if choice.x != "epoch":
            found += _speed(view.exchanges, choice)
    return [chart for chart in found if chart.lines]


def marks_of(view: RunView, x: str) -> list[Mark]:
    """Returns the moments of a run on an axis."""
    with view.lock:
        return [
            Mark(x=_at(view, one, x), text=one.text, is_usual=one.is_usual)
            for one in view.moments
        ]


def merged_loss(exchanges: Exchanges, x: str) -> Points:
    """Returns the loss of all workers together.

    A point is the mean of as many exchanges as there are workers, weighed by samples.
    """
    loss, rank = copied(exchanges.loss), np.array(exchanges.rank, dtype=np.int64)
    valid = np.flatnonzero(np.isfinite(loss))
    if not len(valid):
        return Points()
    is_new = np.zeros(len(valid), dtype=np.int64)
    is_new[np.unique(rank[valid], return_index=True)[1]] = 1
    workers = np.cumsum(is_new)  # that were seen until then
    ends = np.flatnonzero((valid + 1) % workers == 0)
    if not len(ends):
        return Points()
    rows = copied(exchanges.rows)[valid]
    starts = np.concatenate(([0], ends[:-1] + 1))
    upto = ends[-1] + 1
    weight = np.add.reduceat(rows[:upto], starts)
    total = np.add.reduceat((loss[valid] * rows)[:upto], starts)
    known = weight > 0
    at = places(exchanges, x)[valid[ends[known]]]
    return forward(Points(at, total[known] / weight[known]))


def forward(points: Points) -> Points:
    """Returns points whose x never goes back: what a rollback undid is left out.

    Example:
        >>> forward(Points.of([1, 3, 2, 4], [9, 8, 7, 6])).x.tolist()
        [1.0, 2.0, 4.0]
    """
    lowest_after = np.minimum.accumulate(points.x[::-1])[::-1]
    return points.take(points.x <= lowest_after)


def copied(column: array[float]) -> Numbers:
    """Returns a column as an array of its own: it may grow meanwhile."""
    return np.array(column, dtype=np.float64)


def places(exchanges: Exchanges, x: str) -> Numbers:
    """Returns the place of each exchange on an axis."""
    if x == "samples":
        return copied(exchanges.samples)
    return copied(exchanges.time if x == "time" else exchanges.t)


def epoch_lines(epochs: Sequence[dict[str, Any]], name: str, x: str) -> list[Series]:
    """Returns a metric at the ends of epochs, and that of the validation."""
    found: list[Series] = []
    for key, style in ((name, "s0 bold"), (f"val_{name}", "s1 d1 bold")):
        pairs: list[tuple[float, float]] = []
        for epoch in epochs:
            value = epoch["metrics"].get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                pairs.append((_place(epoch, x), float(value)))
        points = Points.of([x for x, _ in pairs], [y for _, y in pairs])
        found.append(Series(name=key, points=forward(points), style=style))
    return found


def _metrics(view: RunView) -> list[str]:
    """Returns the names of training metrics, the loss first."""
    names = {name for epoch in view.epochs for name in epoch["metrics"]}
    names = {name.removeprefix("val_") for name in names} | {"loss"}
    return sorted(names, key=lambda name: (name != "loss", name))


def _losses(exchanges: Exchanges, x: str) -> list[Series]:
    """Returns the losses of exchanges: of each worker faint, of all together."""
    if x == "epoch":
        return []
    ranks = np.array(exchanges.rank, dtype=np.int64)
    drawn = np.unique(ranks)[:MOST_FAINT].tolist()
    points = Points(places(exchanges, x), copied(exchanges.loss))
    is_known = np.isfinite(points.y)
    faint = [
        Series(
            name=f"worker {rank}",
            points=forward(points.take(is_known & (ranks == rank))),
            style="faint",
        )
        for rank in drawn
        if len(drawn) > 1
    ]
    merged = Series(
        name=EXCHANGE_LOSS, points=merged_loss(exchanges, x), style="s0 thin"
    )
    return [*faint, merged]


def _speed(exchanges: Exchanges, choice: Choice) -> list[Chart]:
    """Returns samples a second, and staleness, in slices of equal time."""
    times, at = copied(exchanges.t), places(exchanges, choice.x)
    if len(times) < 2 or not times[-1] > times[0]:
        return []
    ends = _slices(times)
    starts = np.concatenate(([0], ends[:-1]))
    samples = copied(exchanges.samples)
    span, done = times[ends] - times[starts], samples[ends] - samples[starts]
    known = (span > 0) & (done >= 0)
    speed = Points(at[ends[known]], done[known] / span[known])
    line = Series(name="samples/s", points=forward(speed), style="s0 bold")
    charts = [Chart(name="samples/s", part="speed", lines=choice.shown([line]))]
    if any(exchanges.staleness):
        waits = np.array(exchanges.staleness, dtype=np.int64)
        # In the order of the slices, and within a slice from the lowest to the highest.
        slice_of = np.searchsorted(ends, np.arange(len(waits)), side="left")
        waits = waits[np.lexsort((waits, slice_of))]
        firsts = np.concatenate(([0], ends[:-1] + 1))
        counts = ends + 1 - firsts
        low, high = waits[firsts + (counts - 1) // 2], waits[firsts + counts // 2]
        middle = Points.of(at[ends], (low + high) / 2)
        highest = Points.of(at[ends], waits[ends])
        lines = [
            Series(name="highest", points=forward(highest), style="s1 d1 thin"),
            Series(name="median", points=forward(middle), style="s0 bold"),
        ]
        charts.append(Chart(name="staleness", part="speed", lines=choice.shown(lines)))
    return charts


def _slices(times: Numbers) -> NDArray[np.int64]:
    """Returns the last exchange of each slice of time; the first begins at 0."""
    last = len(times) - 1
    count = min(BINS, last)
    edges = times[0] + (times[-1] - times[0]) * np.arange(1, count + 1) / count
    ends = np.searchsorted(np.maximum.accumulate(times), edges, side="left")
    ends[-1] = last
    return np.unique(np.clip(ends, 1, last))


def _fit(points: Points, *, is_log: bool) -> Points:
    return points.take(points.y > 0) if is_log else points


def _place(epoch: dict[str, Any], x: str) -> float:
    if x == "epoch":
        return epoch["epoch"] + 1.0
    return epoch[{"samples": "samples", "seconds": "t", "time": "time"}[x]]


def _at(view: RunView, moment: Moment, x: str) -> float:
    if x == "epoch":
        return len([e for e in view.epochs if e["t"] <= moment.t]) + 0.5
    if x == "samples":
        return float(moment.samples)
    return moment.time if x == "time" else moment.t
