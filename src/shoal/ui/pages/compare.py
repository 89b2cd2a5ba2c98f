"""Several runs side by side: curves over each other, a table, and what differs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.errors import ShoalError
from shoal.runs.catalogue import read_plan
from shoal.runs.summary import RunSummary
from shoal.training.comparison import Comparison
from shoal.ui.charts import Points, Series, draw
from shoal.ui.pages.run import AXES, cell
from shoal.ui.site import Site

MOST_RUNS = 20
STYLES = 10
"""Colours of the style sheet, each with a dash of its own."""
MOST_DIFFERING = 40


@final
@dataclass(frozen=True, kw_only=True)
class Compared:
    """A run of a comparison.

    Args:
        root: Name of its root in addresses.
        run: Its summary.
        row: Its columns, as in `shoal compare`.
        settings: Settings in its plan that differ between the runs.
        style: Class of its lines.
    """

    root: str
    run: RunSummary
    row: Mapping[str, Any]
    settings: Mapping[str, str]
    style: str


def show_comparison(site: Site, request: Request) -> Response:
    """The page of several runs."""
    found = _compared(site, request)
    x = request.query_params.get("x", "samples")
    x = x if x in AXES else "samples"
    return site.render(
        "compare.html",
        runs=found,
        chosen=[f"{one.root}/{one.run.id}" for one in found],
        columns=_columns(found),
        best=_best(found),
        settings=list(found[0].settings) if found else [],
        charts=_charts(found, x),
        axes=AXES,
        x=x,
    )


def send_comparison(site: Site, request: Request) -> Response:
    """The points of all curves, as CSV."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["run", "metric", "epoch", "seconds", "samples", "value"])
    for one in _compared(site, request):
        for end, metrics in zip(one.run.epoch_ends, one.run.metrics, strict=False):
            for name, value in metrics.items():
                place = (int(end["epoch"]) + 1, end["seconds"], int(end["samples"]))
                rows.writerow([cell(one.run.id), cell(name), *place, value])
    headers = {"Content-Disposition": 'attachment; filename="comparison.csv"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


def _compared(site: Site, request: Request) -> list[Compared]:
    """Reads the runs that an address names; those that are gone are left out."""
    named = dict.fromkeys(request.query_params.getlist("runs"))
    read: list[tuple[str, RunSummary, dict[str, Any]]] = []
    for name in list(named)[:MOST_RUNS]:
        root, _, run = name.partition("/")
        try:
            folder = site.find(root, run)
        except HTTPException:
            continue
        view = site.views.of(folder)
        view.advance()
        plan: dict[str, Any] = {}
        with suppress(ShoalError, OSError):
            plan = read_plan(folder)
        read.append((root, view.summary(), plan))
    rows = Comparison.of_runs(run for _, run, _ in read).rows
    settings = _differing([plan for _, _, plan in read])
    return [
        Compared(root=root, run=run, row=row, settings=own, style=f"s{at % STYLES}")
        for at, ((root, run, _), row, own) in enumerate(
            zip(read, rows, settings, strict=True)
        )
    ]


def _differing(plans: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns the settings of each plan that are not the same in all of them."""
    flat = [_flat(plan) for plan in plans]
    names = dict.fromkeys(name for plan in flat for name in plan)
    differing = [n for n in names if len({plan.get(n, "") for plan in flat}) > 1]
    kept = differing[:MOST_DIFFERING]
    return [{name: plan.get(name, "") for name in kept} for plan in flat]


def _flat(
    values: Mapping[str, Any], before: str = "", depth: int = 0
) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping) and depth < 3:
            found |= _flat(value, f"{key}.", depth + 1)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, (str, int, float, bool)):
            found[key] = str(value)[:60]
    return found


def _columns(found: Sequence[Compared]) -> list[str]:
    hidden = ("seed", "ratio", "strategy", "workers")
    names = dict.fromkeys(name for one in found for name in one.row)
    return [name for name in names if name not in hidden]


def _best(found: Sequence[Compared]) -> dict[str, float]:
    """Returns the best value of each column, with losses and times lowest."""
    best: dict[str, float] = {}
    for name in _columns(found):
        values = [one.row.get(name) for one in found]
        known = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
        if len(known) > 1 and len(set(known)) > 1:
            is_lower = name.endswith(("loss", "error", "mae", "mse")) or (
                name == "seconds"
            )
            best[name] = min(known) if is_lower else max(known)
    return best


def _charts(found: Sequence[Compared], x: str) -> list[tuple[str, str]]:
    names = {name for one in found for metrics in one.run.metrics for name in metrics}
    ordered = sorted(names, key=lambda n: (n.removeprefix("val_") != "loss", n))
    charts: list[tuple[str, str]] = []
    for name in ordered:
        series = [
            Series(name=one.run.id, points=_points(one.run, name, x), style=one.style)
            for one in found
        ]
        title = f"{name} against {AXES[x]}"
        picture = draw(series, x_label=AXES[x], title=title)
        if picture:
            charts.append((name, picture))
    return charts


def _points(run: RunSummary, name: str, x: str) -> Points:
    points: Points = []
    for end, metrics in zip(run.epoch_ends, run.metrics, strict=False):
        value = metrics.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            place = end["epoch"] + 1 if x == "epoch" else end[x]
            points.append((float(place), float(value)))
    return points
