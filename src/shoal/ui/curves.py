"""What the charts of a run show: its series and marks along a chosen axis. Pure.

Exchanges give the loss of each worker and of all together, speed and staleness; ends of
epochs give metrics. All points enter smoothing; sampling for the screen comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, final

from shoal.ui.charts import MOST_POINTS, Mark, Points, Series, sampled, smoothed, within
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
        return [one for one in found if one.points]


def charts_of(view: RunView, choice: Choice) -> list[Chart]:
    """Returns the charts of a run."""
    found: list[Chart] = []
    with view.lock:
        for name in _metrics(view):
            lines = _losses(view.exchanges, choice.x) if name == "loss" else []
            lines += epoch_lines(view.epochs, name, choice.x)
            found.append(Chart(name=name, lines=choice.shown(lines)))
        rate = [
            (_place(epoch, choice.x), float(epoch["learning_rate"]))
            for epoch in view.epochs
            if epoch["learning_rate"] is not None
        ]
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
    points: Points = []
    total = weight = 0.0
    seen: set[int] = set()
    count = 0
    for at, (place, loss, rank) in enumerate(
        zip(places(exchanges, x), exchanges.loss, exchanges.rank, strict=True)
    ):
        rows = exchanges.rows[at]
        if math.isnan(loss):
            continue
        if rank not in seen:
            seen.add(rank)
            count = len(seen)
        total, weight = total + loss * rows, weight + rows
        if (at + 1) % count == 0 and weight > 0:
            points.append((place, total / weight))
            total = weight = 0.0
    return forward(points)


def forward(points: Points) -> Points:
    """Returns points whose x never goes back: what a rollback undid is left out.

    Example:
        >>> forward([(1.0, 9.0), (3.0, 8.0), (2.0, 7.0), (4.0, 6.0)])
        [(1.0, 9.0), (2.0, 7.0), (4.0, 6.0)]
    """
    found: Points = []
    for point in points:
        while found and found[-1][0] > point[0]:
            found.pop()
        found.append(point)
    return found


def places(exchanges: Exchanges, x: str) -> Sequence[float]:
    """Returns the place of each exchange on an axis."""
    if x == "samples":
        return exchanges.samples
    return exchanges.time if x == "time" else exchanges.t


def epoch_lines(epochs: Sequence[dict[str, Any]], name: str, x: str) -> list[Series]:
    """Returns a metric at the ends of epochs, and that of the validation."""
    found: list[Series] = []
    for key, style in ((name, "s0 bold"), (f"val_{name}", "s1 d1 bold")):
        points: Points = []
        for epoch in epochs:
            value = epoch["metrics"].get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                points.append((_place(epoch, x), float(value)))
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
    drawn = sorted(set(exchanges.rank))[:MOST_FAINT]
    of_rank: dict[int, Points] = {rank: [] for rank in drawn if len(drawn) > 1}
    for place, loss, rank in zip(
        places(exchanges, x), exchanges.loss, exchanges.rank, strict=True
    ):
        if rank in of_rank and loss == loss:  # not NaN
            of_rank[rank].append((place, loss))
    faint = [
        Series(name=f"worker {rank}", points=forward(points), style="faint")
        for rank, points in of_rank.items()
    ]
    merged = Series(
        name=EXCHANGE_LOSS, points=merged_loss(exchanges, x), style="s0 thin"
    )
    return [*faint, merged]


def _speed(exchanges: Exchanges, choice: Choice) -> list[Chart]:
    """Returns samples a second, and staleness, in slices of equal time."""
    times, at = exchanges.t, places(exchanges, choice.x)
    if len(times) < 2 or not times[-1] > times[0]:
        return []
    width = (times[-1] - times[0]) / min(BINS, len(times) - 1)
    speed: Points = []
    middle: Points = []
    highest: Points = []
    start, since, done = 0, times[0], exchanges.samples[0]
    for place in range(1, len(times)):
        if times[place] - since < width and place + 1 < len(times):
            continue
        samples, span = exchanges.samples[place], times[place] - since
        if span > 0 and samples >= done:
            speed.append((at[place], (samples - done) / span))
        waits = exchanges.staleness[start : place + 1]
        middle.append((at[place], float(median(waits))))
        highest.append((at[place], float(max(waits))))
        start, since, done = place + 1, times[place], samples
    line = Series(name="samples/s", points=forward(speed), style="s0 bold")
    charts = [Chart(name="samples/s", part="speed", lines=choice.shown([line]))]
    if any(exchanges.staleness):
        lines = [
            Series(name="highest", points=forward(highest), style="s1 d1 thin"),
            Series(name="median", points=forward(middle), style="s0 bold"),
        ]
        charts.append(Chart(name="staleness", part="speed", lines=choice.shown(lines)))
    return charts


def _fit(points: Points, *, is_log: bool) -> Points:
    return [point for point in points if point[1] > 0] if is_log else points


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
