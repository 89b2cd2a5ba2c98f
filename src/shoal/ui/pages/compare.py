"""Several runs side by side: curves over each other, a table, bars, what differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.errors import ShoalError
from shoal.runs.catalogue import read_plan
from shoal.runs.summary import RunSummary
from shoal.ui.charts import Points, Series
from shoal.ui.comparing import bars_of, columns_of, differing, metrics_of, styles_of
from shoal.ui.curves import AXES, EXCHANGE_LOSS, Chart, Choice, merged_loss, places
from shoal.ui.live import RunView
from shoal.ui.pages.series import as_csv, cell, choice_of, packed, pictures
from shoal.ui.site import Site, seconds

MOST_RUNS = 20
"""Runs that are compared; the page names the others."""
MOST_POINTS = 1000
"""Drawn points of each run."""
CSV_COLUMNS = ("run", "metric", "worker", "epoch", "seconds", "samples", "value")
COMPARED_AXES = {name: label for name, label in AXES.items() if name != "time"}
"""Each run begins at 0."""


@final
@dataclass(frozen=True, kw_only=True)
class Compared:
    """A run of a comparison.

    Args:
        root: Name of its root in addresses.
        run: Its summary.
        view: What is known of it.
        plan: Its plan, empty if it cannot be read.
        settings: Settings in its plan that differ between the runs.
        style: Classes of its lines: a colour, and a dash.
    """

    root: str
    run: RunSummary
    view: RunView
    plan: Mapping[str, Any]
    settings: Mapping[str, str]
    style: str


def show_comparison(site: Site, request: Request) -> Response:
    """The page of several runs."""
    found, left_out = _compared(site, request)
    choice = _choice(request)
    query = request.query_params
    is_plain = not site.has_charts or query.get("draw") == "svg"
    runs, plans = [one.run for one in found], [one.plan for one in found]
    metrics = metrics_of(runs)
    asked = query.get("bar", "")
    bar = asked if asked in metrics else next(iter(metrics), "")
    return site.render(
        "compare.html",
        runs=found,
        left_out=left_out,
        most=MOST_RUNS,
        chosen=[f"{one.root}/{one.run.id}" for one in found],
        command=site.command("runs", "compare", *(one.run.url for one in found)),
        columns=columns_of(runs, plans, [one.settings for one in found]),
        bars=bars_of(runs, plans, bar, seconds),
        bar=bar,
        asked_bar=bar if asked else "",
        metrics=metrics,
        pictures=pictures(_charts(found, choice), [], choice) if is_plain else [],
        is_plain=is_plain,
        axes=COMPARED_AXES,
        choice=choice,
        shown=_asked(choice),
    )


def send_series(site: Site, request: Request) -> Response:
    """The drawn points of the charts."""
    choice = _choice(request)
    return packed(_charts(_compared(site, request)[0], choice), [], choice)


def send_comparison(site: Site, request: Request) -> Response:
    """All points of all curves within the window of an address, as CSV."""
    choice, (found, _) = _choice(request), _compared(site, request)
    of_each = (
        chain(_exchange_rows(one, choice), _epoch_rows(one, choice)) for one in found
    )
    return as_csv(chain([CSV_COLUMNS], *of_each), "comparison.csv")


def _exchange_rows(one: Compared, choice: Choice) -> Iterator[Sequence[Any]]:
    """Yields the losses of exchanges, which have no place on an axis of epochs."""
    if choice.x == "epoch":
        return
    low, high = choice.window or (-math.inf, math.inf)
    name = cell(one.run.id)
    with one.view.lock:
        found = one.view.exchanges
        columns = (
            places(found, choice.x), found.rank.values, found.t.values,
            found.samples.values, found.loss.values,
        )  # fmt: skip
        values = zip(*(column.tolist() for column in columns), strict=True)
    for x, rank, t, samples, loss in values:
        if not math.isnan(loss) and low <= x <= high:
            yield name, EXCHANGE_LOSS, rank, "", t, int(samples), loss


def _epoch_rows(one: Compared, choice: Choice) -> Iterator[Sequence[Any]]:
    low, high = choice.window or (-math.inf, math.inf)
    for end, metrics in zip(one.run.epoch_ends, one.run.metrics, strict=False):
        epoch, samples = int(end["epoch"]) + 1, int(end["samples"])
        if low <= _place(end, choice.x) <= high:
            for name, value in metrics.items():
                place = (epoch, end["seconds"], samples)
                yield cell(one.run.id), cell(name), "", *place, value


def _choice(request: Request) -> Choice:
    choice = choice_of(request)
    return choice if choice.x in COMPARED_AXES else replace(choice, x="samples")


def _asked(choice: Choice) -> dict[str, Any]:
    """Returns a choice as it is in an address."""
    low, high = choice.window or ("", "")
    return {
        "x": choice.x if choice.x != "samples" else "",
        "scale": "log" if choice.is_log else "",
        "smooth": choice.smooth or "",
        "from": low,
        "to": high,
    }


def _compared(site: Site, request: Request) -> tuple[list[Compared], list[str]]:
    """Reads the runs that an address names.

    Returns:
        The runs, and the names of those that are left out: they are gone, or one too
        many.
    """
    named = list(dict.fromkeys(request.query_params.getlist("runs")))
    left_out: list[str] = named[MOST_RUNS:]
    read: list[tuple[str, RunView, dict[str, Any]]] = []
    for name in named[:MOST_RUNS]:
        root, _, run = name.partition("/")
        try:
            folder = site.find(root, run)
        except HTTPException:
            left_out.append(name)
            continue
        view = site.views.of(folder)
        view.advance()
        plan: dict[str, Any] = {}
        with suppress(ShoalError, OSError):
            plan = read_plan(folder)
        read.append((root, view, plan))
    settings = differing([plan for _, _, plan in read])
    found = [
        Compared(
            root=root, run=view.summary(), view=view, plan=plan, settings=own,
            style=style,
        )
        for (root, view, plan), own, style in zip(
            read, settings, styles_of(settings), strict=True
        )
    ]  # fmt: skip
    return found, left_out


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
            pairs.append((_place(end, x), float(value)))
    return Points.of_pairs(pairs)


def _place(end: Mapping[str, float], x: str) -> float:
    return end["epoch"] + 1.0 if x == "epoch" else float(end[x])
