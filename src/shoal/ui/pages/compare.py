"""Several runs side by side: curves over each other, a table, bars, what differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.errors import ShoalError
from shoal.runs.catalogue import EXPLAINED, read_plan
from shoal.runs.summary import RunSummary
from shoal.training.comparison import Comparison
from shoal.ui.charts import Points, Series, number
from shoal.ui.curves import AXES, EXCHANGE_LOSS, Chart, Choice, merged_loss
from shoal.ui.live import RunView
from shoal.ui.pages.series import as_csv, cell, choice_of, packed, pictures
from shoal.ui.site import Site, seconds

MOST_RUNS = 20
STYLES = 10
"""Colours of the style sheet, and as many dashes."""
MOST_POINTS = 1000
"""Drawn points of each run."""
COMPARED_AXES = {name: label for name, label in AXES.items() if name != "time"}
"""Each run begins at 0."""
MOST_DIFFERING = 40


@final
@dataclass(frozen=True, kw_only=True)
class Compared:
    """A run of a comparison.

    Args:
        root: Name of its root in addresses.
        run: Its summary.
        view: What is known of it.
        row: Its columns, as in `shoal compare`.
        settings: Settings in its plan that differ between the runs.
        style: Classes of its lines: a colour, and a dash.
    """

    root: str
    run: RunSummary
    view: RunView
    row: Mapping[str, Any]
    settings: Mapping[str, str]
    style: str


def show_comparison(site: Site, request: Request) -> Response:
    """The page of several runs."""
    found = _compared(site, request)
    choice = _choice(request)
    query = request.query_params
    is_plain = not site.has_charts or query.get("draw") == "svg"
    return site.render(
        "compare.html",
        runs=found,
        chosen=[f"{one.root}/{one.run.id}" for one in found],
        columns=_columns(found),
        best=_best(found),
        bars=_bars(found),
        settings=list(found[0].settings) if found else [],
        pictures=pictures(_charts(found, choice), [], choice) if is_plain else [],
        is_plain=is_plain,
        axes=COMPARED_AXES,
        choice=choice,
    )


def send_series(site: Site, request: Request) -> Response:
    """The drawn points of the charts."""
    choice = _choice(request)
    return packed(_charts(_compared(site, request), choice), [], choice)


def send_comparison(site: Site, request: Request) -> Response:
    """The points of all curves, as CSV."""
    rows: list[Sequence[Any]] = [
        ["run", "metric", "epoch", "seconds", "samples", "value"]
    ]
    for one in _compared(site, request):
        for end, metrics in zip(one.run.epoch_ends, one.run.metrics, strict=False):
            for name, value in metrics.items():
                place = (int(end["epoch"]) + 1, end["seconds"], int(end["samples"]))
                rows.append([cell(one.run.id), cell(name), *place, value])
    return as_csv(rows, "comparison.csv")


def _choice(request: Request) -> Choice:
    choice = choice_of(request)
    return choice if choice.x in COMPARED_AXES else replace(choice, x="samples")


def _compared(site: Site, request: Request) -> list[Compared]:
    """Reads the runs that an address names; those that are gone are left out."""
    named = dict.fromkeys(request.query_params.getlist("runs"))
    read: list[tuple[str, RunView, dict[str, Any]]] = []
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
            plan.pop(EXPLAINED, None)
        read.append((root, view, plan))
    runs = [view.summary() for _, view, _ in read]
    rows = Comparison.of_runs(runs).rows
    settings = _differing([plan for _, _, plan in read])
    return [
        Compared(root=root, run=run, view=view, row=row, settings=own, style=style)
        for (root, view, _), run, row, own, style in zip(
            read, runs, rows, settings, _styles(settings), strict=True
        )
    ]


def _styles(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns a colour and a dash for each run; seeds of one setting share the colour.

    Example:
        >>> _styles([{"seed": "1", "beta": "2"}, {"seed": "2", "beta": "2"}])
        ['s0 d0', 's0 d1']
        >>> _styles([{}, {}])
        ['s0 d0', 's1 d1']
    """
    others = [
        tuple((k, v) for k, v in own.items() if k.rpartition(".")[2] != "seed")
        for own in settings
    ]
    has_seeds = any(k.rpartition(".")[2] == "seed" for own in settings for k in own)
    if not has_seeds:
        return [f"s{at % STYLES} d{at % STYLES}" for at in range(len(settings))]
    colours = {own: at for at, own in enumerate(dict.fromkeys(others))}
    return [f"s{colours[own] % STYLES} d{at % STYLES}" for at, own in enumerate(others)]


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


def _bars(found: Sequence[Compared]) -> list[tuple[str, list[tuple[str, float]]]]:
    """Returns bars of the best metric and of the time: text and length of 100."""
    bars: list[tuple[str, list[tuple[str, float]]]] = []
    best = [one.run.report.get("best") or {} for one in found]
    names = {one.get("metric") for one in best}
    if len(names) == 1 and None not in names:
        values = [float(one["value"]) for one in best]
        bars.append((f"best {names.pop()}", _lengths(values, number)))
    times = [one.run.seconds for one in found]
    bars.append(("seconds of the run", _lengths(times, seconds)))
    return bars


def _lengths(
    values: Sequence[float], told: Callable[[float], str]
) -> list[tuple[str, float]]:
    most = max((abs(value) for value in values), default=0.0) or 1.0
    return [(told(value), 100 * max(0.0, value) / most) for value in values]


def _charts(found: Sequence[Compared], choice: Choice) -> list[Chart]:
    names = {name for one in found for metrics in one.run.metrics for name in metrics}
    ordered = sorted(names, key=lambda n: (n.removeprefix("val_") != "loss", n))
    lines: dict[str, list[Series]] = {
        name: [
            Series(
                name=one.run.id,
                points=_points(one.run, name, choice.x),
                style=f"{one.style} bold",
            )
            for one in found
        ]
        for name in ordered
    }
    if choice.x != "epoch":
        lines[EXCHANGE_LOSS] = [_exchange_line(one, choice) for one in found]
    charts = [
        Chart(name=name, lines=choice.shown(drawn, MOST_POINTS))
        for name, drawn in lines.items()
    ]
    return [chart for chart in charts if chart.lines]


def _exchange_line(one: Compared, choice: Choice) -> Series:
    with one.view.lock:
        points = merged_loss(one.view.exchanges, choice.x)
    return Series(name=one.run.id, points=points, style=f"{one.style} thin")


def _points(run: RunSummary, name: str, x: str) -> Points:
    pairs: list[tuple[float, float]] = []
    for end, metrics in zip(run.epoch_ends, run.metrics, strict=False):
        value = metrics.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            place = end["epoch"] + 1 if x == "epoch" else end[x]
            pairs.append((float(place), float(value)))
    return Points.of_pairs(pairs)
