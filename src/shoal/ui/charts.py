"""Series of a run as drawn points, and as a picture. Pure.

A series of any length is drawn with a limited number of points: of each slice the
lowest and the highest stay, never every n-th, so that no peak disappears.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.terminal import one_line, without_colours

Numbers: TypeAlias = NDArray[np.float64]

MOST_POINTS = 2000
MOST_TEXT = 300
WIDTH, HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 40
_TICKS = 6


@final
@dataclass(frozen=True)
class Points:
    """Points of a line.

    Args:
        x: Their places, shape `(points,)`.
        y: Their values, shape `(points,)`.
    """

    x: Numbers = field(default_factory=lambda: np.empty(0))
    y: Numbers = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, x: ArrayLike, y: ArrayLike) -> Points:
        """Returns points of any two sequences of the same length."""
        return cls(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[float, float]]) -> Points:
        """Returns points of pairs of a place and a value."""
        return cls.of([x for x, _ in pairs], [y for _, y in pairs])

    def __len__(self) -> int:
        """Returns how many there are."""
        return len(self.x)

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Points:
        """Returns some of them."""
        return Points(self.x[which], self.y[which])


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart.

    Args:
        name: Name for the legend.
        points: Points, in the order of x.
        style: Class of the line in the style sheet, such as "s0" or "faint".
        span: Lowest and highest x of the whole line, if the points are a part of it.
    """

    name: str
    points: Points
    style: str = "s0"
    span: tuple[float, float] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Mark:
    """A moment of a run that is shown in its charts.

    Args:
        x: Its place on the axis.
        text: What happened.
        is_usual: Whether it is part of every run, and drawn less strongly.
    """

    x: float
    text: str
    is_usual: bool = False


def sampled(points: Points, most: int = MOST_POINTS) -> Points:
    """Returns at most `most` points: first, last, lowest and highest of each slice.

    Args:
        points: Points, in the order of x.
        most: Limit, at least 4.

    Example:
        >>> line = Points.of(range(100), [9.0 if i == 55 else 0.0 for i in range(100)])
        >>> max(sampled(line, 8).y), len(sampled(line, 8)) <= 8
        (np.float64(9.0), True)
    """
    count = len(points)
    if count <= most:
        return points
    # Slices of the same width, the last one filled up with the last point but one.
    width = math.ceil((count - 2) / ((most - 2) // 2))
    starts = np.arange(1, count - 1, width)
    slices = np.minimum(starts[:, None] + np.arange(width), count - 2)
    values = points.y[slices]
    low = slices[np.arange(len(starts)), values.argmin(axis=1)]
    high = slices[np.arange(len(starts)), values.argmax(axis=1)]
    return points.take(np.unique(np.concatenate(([0, count - 1], low, high))))


def smoothed(points: Points, factor: float) -> Points:
    """Returns the exponential mean of points, without a pull to 0 at its beginning.

    Args:
        points: All points, not sampled ones.
        factor: Weight of what came before, in [0, 1).

    Example:
        >>> smoothed(Points.of([0, 1, 2], [4, 4, 0]), 0.5).y[:2].tolist()
        [4.0, 4.0]
    """
    # After each pass a mean holds twice as many of the points before it.
    means, reach = (1.0 - factor) * points.y, 1
    while reach < len(means) and factor**reach > 0.0:
        means[reach:] += factor**reach * means[:-reach]
        reach *= 2
    weights = 1.0 - factor ** np.arange(1.0, len(means) + 1.0)
    return Points(points.x, means / weights)


def within(points: Points, window: tuple[float, float] | None) -> Points:
    """Returns the points of a window of x, and one more at each of its sides.

    Example:
        >>> within(Points.of([0, 1, 2, 3], [1, 1, 1, 1]), (1.5, 1.6)).x.tolist()
        [1.0, 2.0]
    """
    if window is None:
        return points
    first = int(np.searchsorted(points.x, window[0], side="left"))
    last = int(np.searchsorted(points.x, window[1], side="right"))
    return points.take(slice(max(0, first - 1), last + 1))


def ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Returns round numbers between two others.

    Example:
        >>> ticks(0.0, 1.0)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    span = high - low
    if not span > 0:
        return [low]
    raw = span / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def number(value: float) -> str:
    """Returns a number for people.

    Example:
        >>> number(344064), number(0.42512), number(3e-7)
        ('344,064', '0.4251', '3e-07')
    """
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _shown(text: str) -> str:
    """Returns a text of a run as part of a picture."""
    return escape(one_line(without_colours(text[:MOST_TEXT])))


def draw(
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    *,
    x_label: str,
    title: str,
    is_log: bool = False,
    tell_x: Callable[[float], str] | None = None,
) -> str:
    """Returns a chart as SVG, to be put into a page.

    Args:
        series: Lines; those of no points are left out.
        marks: Moments, drawn as vertical lines with their text.
        x_label: Name and unit of the x axis.
        title: Name of the chart, for those who do not see it.
        is_log: Whether the y axis is logarithmic; points at or below 0 are left out.
        tell_x: Returns the text of a value of x; default None: `number`.
    """
    shown = [(one, _usable(one.points, is_log=is_log)) for one in series]
    shown = [(one, points) for one, points in shown if points]
    if not shown:
        return ""
    xs = [x for _, points in shown for x, _ in points]
    ys = [y for _, points in shown for _, y in points]
    frame = _Frame(min(xs), max(xs), min(ys), max(ys))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{_shown(title)}">'
    ]
    parts += _axes(frame, x_label, tell_x or number, is_log=is_log)
    for one, points in shown:
        text = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
        if len(points) == 1:
            x, y = points[0]
            parts.append(
                f'<circle class="line {escape(one.style)}" r="3" '
                f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"/>'
            )
        parts.append(
            f'<polyline class="line {escape(one.style)}" points="{text}">'
            f"<title>{_shown(one.name)}</title></polyline>"
        )
    for mark in marks:
        if frame.left <= mark.x <= frame.right:
            at = f"{frame.x(mark.x):.1f}"
            kind = "mark usual" if mark.is_usual else "mark"
            parts.append(
                f'<line class="{kind}" x1="{at}" x2="{at}" y1="{_TOP}" '
                f'y2="{HEIGHT - _BOTTOM}"><title>{_shown(mark.text)}</title></line>'
            )
    return "".join([*parts, "</svg>"])


@final
class _Frame:
    """The part of the plane that is drawn."""

    def __init__(self, left: float, right: float, low: float, high: float) -> None:
        self.left, self.right = left, right if right > left else left + 1
        rest = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        self.low, self.high = low - rest, high + rest

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _axes(
    frame: _Frame, x_label: str, tell_x: Callable[[float], str], *, is_log: bool
) -> list[str]:
    parts: list[str] = []
    floor, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in ticks(frame.low, frame.high):
        y = f"{frame.y(value):.1f}"
        label = number(10.0**value if is_log else value)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
            f'<text class="tick end" x="{_LEFT - 8}" y="{y}" dy="0.32em">{label}</text>'
        )
    for value in ticks(frame.left, frame.right, 9):
        x = f"{frame.x(value):.1f}"
        parts.append(
            f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{floor}"/>'
            f'<text class="tick middle" x="{x}" y="{floor + 16}">{tell_x(value)}</text>'
        )
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text class="tick middle" x="{middle}" y="{HEIGHT - 6}">'
        f"{_shown(x_label)}</text>"
    )
    return parts


def _usable(points: Points, *, is_log: bool) -> list[tuple[float, float]]:
    if is_log:
        points = points.take(points.y > 0)
        points = Points(points.x, np.log10(points.y))
    found = sampled(points)
    return list(zip(found.x.tolist(), found.y.tolist(), strict=True))
