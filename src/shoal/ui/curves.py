"""What the charts of a run show: its series and marks along a chosen axis. Pure.

Exchanges give the loss of each worker and of all together, speed and staleness; ends of
epochs give metrics. All points enter smoothing; sampling for the screen comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from shoal.ui.exchanges import Exchanges
from shoal.ui.live import RunView
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
        rates = [
            (_place(epoch, choice.x), float(epoch["learning_rate"]))
            for epoch in view.epochs
            if epoch["learning_rate"] is not None
        ]
        points = Points.of_pairs(rates)
        line = Series(name="learning rate", points=points, style="s0 bold")
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
    loss, rows = exchanges.loss.values, exchanges.rows.values
    known = np.isfinite(loss)
    # A mean ends where the number of exchanges is a multiple of the workers so far.
    firsts = [*sorted(exchanges.first.values()), len(loss)]
    ends = np.concatenate(
        [
            np.arange(first - (first + 1) % -workers, until, workers)
            for workers, (first, until) in enumerate(pairwise(firsts), 1)
        ]
        or [np.empty(0, dtype=np.int64)]
    )
    ends = ends[known[ends]]
    if not len(ends):
        return Points()
    starts = np.concatenate(([0], ends[:-1] + 1))
    upto = int(ends[-1]) + 1
    weights = np.where(known, rows, 0.0)[:upto]
    weight = np.add.reduceat(weights, starts)
    with np.errstate(over="ignore"):
        weights *= np.where(known, loss, 0.0)[:upto]
    total = np.add.reduceat(weights, starts)
    has_rows = weight > 0
    at = places(exchanges, x)[ends[has_rows]]
    return forward(Points(at, total[has_rows] / weight[has_rows]))


def forward(points: Points) -> Points:
    """Returns points whose x never goes back: what a rollback undid is left out.

    Example:
        >>> forward(Points.of([1, 3, 2, 4], [9, 8, 7, 6])).x.tolist()
        [1.0, 2.0, 4.0]
    """
    lowest_after = np.minimum.accumulate(points.x[::-1])[::-1]
    return points.take(points.x <= lowest_after)


def places(exchanges: Exchanges, x: str) -> Numbers:
    """Returns the place of each exchange on an axis, shape `(exchanges,)`."""
    if x == "samples":
        return exchanges.samples.values
    return (exchanges.time if x == "time" else exchanges.t).values


def epoch_lines(epochs: Sequence[dict[str, Any]], name: str, x: str) -> list[Series]:
    """Returns a metric at the ends of epochs, and that of the validation."""
    found: list[Series] = []
    for key, style in ((name, "s0 bold"), (f"val_{name}", "s1 d1 bold")):
        pairs: list[tuple[float, float]] = []
        for epoch in epochs:
            value = epoch["metrics"].get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                pairs.append((_place(epoch, x), float(value)))
        points = forward(Points.of_pairs(pairs))
        found.append(Series(name=key, points=points, style=style))
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
    ranks, drawn = exchanges.rank.values, sorted(exchanges.first)[:MOST_FAINT]
    points = Points(places(exchanges, x), exchanges.loss.values)
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
    times, at = exchanges.t.values, places(exchanges, choice.x)
    if len(times) < 2 or not times[-1] > times[0]:
        return []
    ends = _slices(times)
    starts = np.concatenate(([0], ends[:-1]))
    samples = exchanges.samples.values
    span, done = times[ends] - times[starts], samples[ends] - samples[starts]
    known = (span > 0) & (done >= 0)
    speed = Points(at[ends[known]], done[known] / span[known])
    line = Series(name="samples/s", points=forward(speed), style="s0 bold")
    charts = [Chart(name="samples/s", part="speed", lines=choice.shown([line]))]
    waits = exchanges.staleness.values
    if waits.any():
        parts = [
            np.sort(waits[start:end])
            for start, end in zip([0, *ends[:-1] + 1], ends + 1, strict=True)
        ]
        highest = Points.of(at[ends], [part[-1] for part in parts])
        middle = Points.of(at[ends], [_median(part) for part in parts])
        lines = [
            Series(name="highest", points=forward(highest), style="s1 d1 thin"),
            Series(name="median", points=forward(middle), style="s0 bold"),
        ]
        charts.append(Chart(name="staleness", part="speed", lines=choice.shown(lines)))
    return charts


def _median(waits: NDArray[np.int32]) -> float:
    """Returns the median of numbers in order, the sum of two of which may not fit."""
    count = len(waits)
    return float(waits[(count - 1) // 2]) / 2 + float(waits[count // 2]) / 2


def _slices(times: Numbers) -> NDArray[np.int64]:
    """Returns the last exchange of each slice of time; the first begins at 0."""
    last = len(times) - 1
    count = min(BINS, last)
    edges = times[0] + (times[-1] - times[0]) * np.arange(1, count + 1) / count
    ends = np.searchsorted(np.maximum.accumulate(times), edges, side="left")
    ends[-1] = last
    return np.unique(np.clip(ends, 1, last))


def _fit(points: Points, *, is_log: bool) -> Points:
    fits = np.isfinite(points.x) & np.isfinite(points.y)
    return points.take(fits & (points.y > 0) if is_log else fits)


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
