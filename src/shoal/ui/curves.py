"""What the charts of a run show: its series and marks along a chosen axis. Pure.

Exchanges give the loss of each worker and of all together, speed and staleness; ends of
epochs give metrics. All points enter smoothing; sampling for the screen comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np

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
from shoal.ui.epoch_axis import EpochAxis
from shoal.ui.exchanges import Exchanges
from shoal.ui.live import RunView
from shoal.ui.moments import Moment
from shoal.ui.speeds import speed_lines

AXES = {
    "samples": "samples",
    "seconds": "seconds of the run",
    "epoch": "epochs",
    "time": "time of day",
}
"""Name of an axis -> its label. Seconds leave out pauses between crash and resume."""

MOST_FAINT = 64
"""Workers whose own losses are drawn."""
FAINT_POINTS, ALL_FAINT_POINTS = 400, 3200
"""Points of each of them, and of all together, as they lie behind the others."""
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
        faint = sum("faint" in one.style for one in series)
        faint_points = min(most, FAINT_POINTS, ALL_FAINT_POINTS // max(1, faint))
        for one in series:
            is_faint = "faint" in one.style
            points = _fit(one.points, is_log=self.is_log)
            span = (points.x[0].item(), points.x[-1].item()) if len(points) else None
            if self.smooth and not is_faint:
                style = f"{one.style.partition(' ')[0]} raw"
                soft = smoothed(points, self.smooth)
                soft = sampled(within(soft, self.window), most)
                behind = sampled(within(points, self.window), most)
                name = f"{one.name}, raw"
                found.append(replace(one, name=name, points=behind, style=style))
                found.append(replace(one, points=soft, span=span))
                continue
            limit = faint_points if is_faint else most
            drawn = sampled(within(points, self.window), limit)
            found.append(replace(one, points=drawn, span=span))
        return [one for one in found if len(one.points)]


def charts_of(view: RunView, choice: Choice) -> list[Chart]:
    """Returns the charts of a run."""
    found: list[Chart] = []
    with view.lock:
        axis = view.epoch_axis()
        at = places(view.exchanges, choice.x, axis)
        for name in _metrics(view):
            lines: list[Series] = []
            style = "s0 bold"
            if name == "loss" and view.exchanges.first:
                lines = _losses(view.exchanges, choice.x, axis)
                style = "s2 d2 bold"
            lines += epoch_lines(view.epochs, name, choice.x, style)
            found.append(Chart(name=name, lines=choice.shown(lines)))
        rates = [
            (_place(epoch, choice.x), float(epoch["learning_rate"]))
            for epoch in view.epochs
            if epoch["learning_rate"] is not None
        ]
        points = Points.of_pairs(rates)
        line = Series(name="learning rate", points=points, style="s0 bold")
        found.append(Chart(name="learning rate", lines=choice.shown([line])))
        for name, lines in speed_lines(view.exchanges, at).items():
            drawn = [replace(one, points=forward(one.points)) for one in lines]
            found.append(Chart(name=name, part="speed", lines=choice.shown(drawn)))
    return [chart for chart in found if chart.lines]


def marks_of(view: RunView, x: str) -> list[Mark]:
    """Returns the moments of a run on an axis."""
    with view.lock:
        axis = view.epoch_axis()
        return [
            Mark(x=_at(axis, one, x), text=one.text, is_usual=one.is_usual)
            for one in view.moments
        ]


def merged_loss(exchanges: Exchanges, x: str, axis: EpochAxis | None = None) -> Points:
    """Returns the loss of all workers together.

    A point is the mean of as many exchanges as there are workers, weighed by samples.

    Args:
        exchanges: Exchanges of a run.
        x: Name of the axis.
        axis: See `places`.
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
    at = places(exchanges, x, axis)[ends[has_rows]]
    return forward(Points(at, total[has_rows] / weight[has_rows]))


def forward(points: Points) -> Points:
    """Returns points whose x never goes back: what a rollback undid is left out.

    Example:
        >>> forward(Points.of([1, 3, 2, 4], [9, 8, 7, 6])).x.tolist()
        [1.0, 2.0, 4.0]
    """
    lowest_after = np.minimum.accumulate(points.x[::-1])[::-1]
    return points.take(points.x <= lowest_after)


def places(exchanges: Exchanges, x: str, axis: EpochAxis | None = None) -> Numbers:
    """Returns the place of each exchange on an axis, shape `(exchanges,)`.

    Args:
        exchanges: Exchanges of a run.
        x: Name of the axis.
        axis: Its epochs, for the axis "epoch".
    """
    if x == "epoch" and axis is not None:
        return axis.at(exchanges.samples.values)
    if x == "samples":
        return exchanges.samples.values
    return (exchanges.time if x == "time" else exchanges.t).values


def epoch_lines(
    epochs: Sequence[dict[str, Any]], name: str, x: str, style: str
) -> list[Series]:
    """Returns a metric at the ends of epochs, and that of the validation."""
    found: list[Series] = []
    for key, own in ((name, style), (f"val_{name}", "s1 d1 bold")):
        pairs: list[tuple[float, float]] = []
        for epoch in epochs:
            value = epoch["metrics"].get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                pairs.append((_place(epoch, x), float(value)))
        points = forward(Points.of_pairs(pairs))
        found.append(Series(name=key, points=points, style=own))
    return found


def _metrics(view: RunView) -> list[str]:
    """Returns the names of training metrics, the loss first."""
    names = {name for epoch in view.epochs for name in epoch["metrics"]}
    names = {name.removeprefix("val_") for name in names} | {"loss"}
    return sorted(names, key=lambda name: (name != "loss", name))


def _losses(exchanges: Exchanges, x: str, axis: EpochAxis) -> list[Series]:
    """Returns the losses of exchanges: of each worker faint, of all together."""
    merged = Series(
        name=EXCHANGE_LOSS, points=merged_loss(exchanges, x, axis), style="s0 bold"
    )
    drawn = sorted(exchanges.first)[:MOST_FAINT]
    if len(drawn) < 2:
        return [merged]
    points = Points(places(exchanges, x, axis), exchanges.loss.values)
    ranks, known = exchanges.rank.values, np.flatnonzero(np.isfinite(points.y))
    order = known[np.argsort(ranks[known], kind="stable")]
    bounds = np.searchsorted(ranks[order], [drawn, [rank + 1 for rank in drawn]])
    faint = [
        Series(
            name=f"worker {rank}",
            points=forward(points.take(order[start:stop])),
            style="faint",
        )
        for rank, start, stop in zip(drawn, *bounds, strict=True)
    ]
    return [*faint, merged]


def _fit(points: Points, *, is_log: bool) -> Points:
    fits = np.isfinite(points.x) & np.isfinite(points.y)
    return points.take(fits & (points.y > 0) if is_log else fits)


def _place(epoch: dict[str, Any], x: str) -> float:
    if x == "epoch":
        return epoch["epoch"] + 1.0
    return epoch[{"samples": "samples", "seconds": "t", "time": "time"}[x]]


def _at(axis: EpochAxis, moment: Moment, x: str) -> float:
    if x == "epoch":
        return axis.at(moment.samples).item()
    if x == "samples":
        return float(moment.samples)
    return moment.time if x == "time" else moment.t
