"""A chart as a table, for readers who do not see it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from shoal.ui.charts import Series, number

MOST_ROWS = 100


@final
@dataclass(frozen=True, kw_only=True)
class Table:
    """Values of the lines of a chart, as texts.

    Args:
        names: Names of the lines.
        rows: A place, and the value of each line there, "" where it has none.
    """

    names: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def table_of(
    lines: Sequence[Series], tell_x: Callable[[float], str], most: int = MOST_ROWS
) -> Table:
    """Returns values of lines, of each as many, its first and last among them.

    Lines of single workers and raw ones behind smoothed ones are left out, as in
    `static/charts.js`.

    Args:
        lines: Lines of a chart.
        tell_x: Returns the text of a place.
        most: Rows, at least 2 for each line.

    Example:
        >>> from shoal.ui.charts import Points
        >>> line = Series(name="loss", points=Points.of([0, 1, 2], [4, 5, 6]))
        >>> table_of([line], number, most=2).rows
        [('0', ['4']), ('2', ['6'])]
    """
    shown = [one for one in lines if not {"faint", "raw"} & set(one.style.split())]
    each = max(2, most // max(1, len(shown)))
    places = {x for one in shown for x in _spread(one.points.x.tolist(), each)}
    values = [
        dict(zip(one.points.x.tolist(), one.points.y.tolist(), strict=True))
        for one in shown
    ]
    rows = [
        (tell_x(x), [number(own[x]) if x in own else "" for own in values])
        for x in sorted(places)
    ]
    return Table(names=[one.name for one in shown], rows=rows)


def _spread(places: Sequence[float], most: int) -> list[float]:
    """Returns at most so many places, spread over all."""
    count = min(most, len(places))
    chosen = np.linspace(0, len(places) - 1, count).round().astype(int)
    return [places[at] for at in chosen.tolist()] if count else []
