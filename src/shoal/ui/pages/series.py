"""Points of charts: as JSON for those that a browser draws, as SVG, and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from shoal.terminal import one_line, without_colours
from shoal.ui.chart_tables import Table, table_of
from shoal.ui.charts import MOST_TEXT, Mark, Numbers, draw, number
from shoal.ui.curves import (
    AXES,
    MOST_SMOOTH,
    Chart,
    Choice,
    charts_of,
    marks_of,
    places,
)
from shoal.ui.live import RunView
from shoal.ui.site import Site


def choice_of(request: Request) -> Choice:
    """Returns what an address asks to be drawn; what makes no sense is left out."""
    query = request.query_params
    x = query.get("x", "samples")
    low, high = _number(query.get("from")), _number(query.get("to"))
    is_window = low is not None and high is not None and low < high
    smooth = _number(query.get("smooth")) or 0.0
    return Choice(
        x=x if x in AXES else "samples",
        is_log=query.get("scale") == "log",
        smooth=min(MOST_SMOOTH, max(0.0, smooth)),
        window=(low or 0.0, high or 0.0) if is_window else None,
    )


def send_series(site: Site, request: Request) -> Response:
    """The drawn points of a run's charts."""
    folder = site.find(request.path_params["root"], request.path_params["run"])
    view = site.views.of(folder)
    view.advance()
    choice = choice_of(request)
    with view.budget.spending():
        return packed(charts_of(view, choice), marks_of(view, choice.x), choice)


def packed(charts: Sequence[Chart], marks: Sequence[Mark], choice: Choice) -> Response:
    """Returns charts as `static/charts.js` reads them."""
    text = series_text(charts, marks, choice, {})
    return Response(text, media_type="application/json")


def series_text(
    charts: Sequence[Chart],
    marks: Sequence[Mark],
    choice: Choice,
    known: dict[str, str],
) -> str:
    """Returns charts as JSON.

    Args:
        charts: The charts.
        marks: Marks on all of them.
        choice: What the reader chose.
        known: Name of a chart -> its text that the reader has. Of those that are the
            same only the name is told. It holds the texts of now afterwards.
    """
    texts: dict[str, str] = {}
    told: list[str] = []
    for chart in charts:
        name = shown_text(chart.name)
        texts[name] = _json({"name": name, "part": chart.part, "lines": _lines(chart)})
        is_known = known.get(name) == texts[name]
        told.append(_json({"name": name, "same": True}) if is_known else texts[name])
    known.clear()
    known.update(texts)
    rest = {
        "x": choice.x,
        "label": AXES[choice.x],
        "marks": [{"x": round(mark.x, 4), "text": shown_text(mark.text),
                   "usual": mark.is_usual} for mark in marks],
    }  # fmt: skip
    return f'{_json(rest)[:-1]},"charts":[{",".join(told)}]}}'


def _lines(chart: Chart) -> list[dict[str, Any]]:
    return [
        {
            "name": shown_text(line.name),
            "style": line.style,
            "x": _places(line.points.x),
            "y": _values(line.points.y),
            "span": line.span,
        }
        for line in chart.lines
    ]


def _json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


@final
@dataclass(frozen=True, kw_only=True)
class Picture:
    """A chart for pages without uPlot.

    Args:
        name: What it shows.
        svg: Its picture.
        table: The same in numbers.
    """

    name: str
    svg: str
    table: Table


def pictures_of(view: RunView, choice: Choice) -> list[Picture]:
    """Returns the pictures of a run's charts."""
    return pictures(charts_of(view, choice), marks_of(view, choice.x), choice)


def pictures(
    charts: Sequence[Chart], marks: Sequence[Mark], choice: Choice
) -> list[Picture]:
    """Returns the pictures of charts; those without a point are left out."""
    found: list[Picture] = []
    label, tell_x = AXES[choice.x], number
    if choice.x == "time":
        label, tell_x = f"{label}, {_zone()}", _clock
    for chart in charts:
        svg = draw(
            chart.lines,
            marks,
            x_label=label,
            title=f"{chart.name} against {AXES[choice.x]}",
            is_log=choice.is_log,
            tell_x=tell_x,
        )
        if svg:
            table = table_of(chart.lines, tell_x)
            found.append(Picture(name=chart.name, svg=svg, table=table))
    return found


def send_points(site: Site, request: Request) -> Response:
    """All points of a run's curves within the window of an address, as CSV."""
    folder = site.find(request.path_params["root"], request.path_params["run"])
    view = site.views.of(folder)
    view.advance()
    choice = choice_of(request)
    low, high = choice.window or (-math.inf, math.inf)
    rows: list[Sequence[Any]] = [["what", "t_s", "samples", "worker", "value"]]
    of_epoch = {"samples": "samples", "seconds": "t", "time": "time"}.get(choice.x)
    with view.lock:
        found = view.exchanges
        at = places(found, choice.x, view.epoch_axis())
        columns = (
            at, found.t.values, found.samples.values, found.rank.values,
            found.loss.values,
        )  # fmt: skip
        for x, t, samples, rank, loss in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if not math.isnan(loss) and low <= x <= high:
                rows.append(["loss of exchange", t, int(samples), rank, loss])
        for epoch in view.epochs:
            x = epoch[of_epoch] if of_epoch else epoch["epoch"] + 1
            if low <= x <= high:
                rows += [
                    [cell(name), epoch["t"], epoch["samples"], "", value]
                    for name, value in epoch["metrics"].items()
                ]
    return as_csv(rows, "points.csv")


def as_csv(rows: Iterable[Sequence[Any]], name: str) -> Response:
    """Returns rows as a file to be saved."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


def cell(text: str) -> str:
    """Returns a text that a spreadsheet does not take for a formula.

    Example:
        >>> cell("=1+1"), cell("loss")
        ("'=1+1", 'loss')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def shown_text(text: str) -> str:
    """Returns a text of a run as one line without control characters."""
    return one_line(without_colours(text[:MOST_TEXT]))


def _number(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if math.isfinite(found) and abs(found) < 1e18 else None


def _places(values: Numbers) -> list[float] | list[int]:
    """Returns places on an axis, to a tenth of a millisecond."""
    whole = _whole(values)
    return np.round(values, 4).tolist() if whole is None else whole


def _whole(values: Numbers) -> list[int] | None:
    """Returns whole numbers as such, None if some are not."""
    whole = np.rint(values)
    if np.array_equal(whole, values) and np.all(np.abs(values) < 1e15):
        return whole.astype(np.int64).tolist()
    return None


def _values(values: Numbers) -> list[float] | list[int]:
    """Returns values with six digits, as a screen shows no more; whole ones exactly."""
    whole = _whole(values)
    if whole is not None:
        return whole
    with np.errstate(divide="ignore"):
        size = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
    # Powers of ten with a positive exponent are exact, and so are the last digits.
    up = 10.0 ** np.clip(5 - size, 0, 300)
    down = 10.0 ** np.clip(size - 5, 0, 300)
    return (np.rint(values * up / down) / up * down).tolist()


def _clock(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S")


def _zone() -> str:
    """Returns the zone of this machine's clock, which pictures take."""
    return datetime.now().astimezone().strftime("%Z, UTC%z")
