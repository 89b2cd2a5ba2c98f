"""What a comparison of runs shows beside curves: settings, a table, bars. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

from shoal.facts import Monitor
from shoal.plan.monitor import direction_of
from shoal.runs.history import best_epoch
from shoal.runs.summary import RunSummary
from shoal.training.comparison import Comparison
from shoal.ui.charts import number

STYLES = 10
"""Colours of the style sheet, and as many dashes."""
MOST_DIFFERING = 40
MEASURED = ("machine", "choice", "warnings", "places", "explained")
"""Fields of a plan that are no settings: what was found on the machines, as the memory
that was free, and what the planner says."""
IN_ROWS = ("strategy.name", "workers", "seed")
"""Settings that are columns of `shoal compare` as well."""
DIRECTIONS = {"seconds": "down", "samples_per_s": "up", "ratio": "up"}
"""Columns of `shoal compare` that are no metrics, and the way in which they improve."""
LABELS = {
    "strategy": "Strategy", "workers": "Workers", "seed": "Seed", "seconds": "Seconds",
    "samples_per_s": "Samples/s", "ratio": "Ratio to single",
}  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value of a table.

    Args:
        text: As it is shown.
        exact: All of it, where that is more; "" otherwise.
        is_best: Whether it is the best of its column.
    """

    text: str = ""
    exact: str = ""
    is_best: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table.

    Args:
        label: Its heading.
        cells: A cell for each run.
    """

    label: str
    cells: Sequence[Cell]


@final
@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of one number, one for each run.

    Args:
        title: What they show.
        bars: Text and length of each; the longest has 100.
    """

    title: str
    bars: Sequence[tuple[str, float]]


def styles_of(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns a colour and a dash for each run; seeds of one setting share the colour.

    Args:
        settings: What differs between the plans, see `differing`.

    Example:
        >>> styles_of([{"seed": "1", "beta": "2"}, {"seed": "2", "beta": "2"}])
        ['s0 d0', 's0 d1']
        >>> styles_of([{}, {}])
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


def differing(plans: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns the settings of each plan that are not the same in all of them.

    Example:
        >>> two = [{"seed": 1, "machine": {"memory_bytes": 5}}, {"seed": 2}]
        >>> differing(two)
        [{'seed': '1'}, {'seed': '2'}]
    """
    flat = [_settings(plan) for plan in plans]
    names = dict.fromkeys(name for plan in flat for name in plan)
    kept = [n for n in names if len({plan.get(n, "") for plan in flat}) > 1]
    return [{name: plan.get(name, "") for name in kept} for plan in flat]


def _settings(plan: Mapping[str, Any]) -> dict[str, str]:
    found = _flat({name: x for name, x in plan.items() if name not in MEASURED})
    if "model.name" in found:  # Keras numbers the models of a program
        found["model.name"] = re.sub(r"_[0-9]+$", "", found["model.name"])
    return found


def _flat(
    values: Mapping[str, Any], before: str = "", depth: int = 0
) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping) and depth < 3:
            found |= _flat(_part(values, name), f"{key}.", depth + 1)
        elif isinstance(value, (str, int, float, bool)):
            found[key] = str(value)
    return found


def columns_of(
    runs: Sequence[RunSummary],
    plans: Sequence[Mapping[str, Any]],
    settings: Sequence[Mapping[str, str]],
) -> list[Column]:
    """Returns the columns of `shoal compare`, then settings that differ.

    Args:
        runs: Their summaries.
        plans: Their plans.
        settings: What differs between the plans.
    """
    rows = Comparison.of_runs(runs).rows
    for row, run in zip(rows, runs, strict=True):
        row["seed"] = None if run.seed is None else str(run.seed)  # no quantity
    columns: list[Column] = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if all(value is None for value in values):
            continue
        best = _best(values, _direction(name, plans))
        cells = [_cell(x, is_best=x is not None and x == best) for x in values]
        columns.append(Column(label=LABELS.get(name, name), cells=cells))
    names = [n for n in (settings[0] if settings else ()) if n not in IN_ROWS]
    for name in names[:MOST_DIFFERING]:
        cells = [_cell(_number(own[name])) for own in settings]
        columns.append(Column(label=name, cells=cells))
    return columns


def bars_of(
    runs: Sequence[RunSummary],
    plans: Sequence[Mapping[str, Any]],
    metric: str,
    told: Callable[[float | None], str],
) -> list[Bars]:
    """Returns bars of a metric and of the time.

    Args:
        runs: Their summaries.
        plans: Their plans.
        metric: Name of the metric; "" for the time alone.
        told: Returns a duration for people.
    """
    times = _lengths([run.seconds for run in runs], told)
    found = [Bars(title="time of the run", bars=times)]
    if metric:
        way = _direction(metric, plans)
        values = [_reached(run, metric, way) for run in runs]
        word = "best" if way else "last"
        bars = Bars(title=f"{word} {metric}", bars=_lengths(values, number))
        found.insert(0, bars)
    return found


def metrics_of(runs: Sequence[RunSummary]) -> list[str]:
    """Returns the metrics of runs: what they monitor and what all have comes first.

    Example:
        >>> one = RunSummary(metrics=({"loss": 1.0, "mae": 2.0},))
        >>> metrics_of([one, RunSummary(metrics=({"loss": 3.0, "auc": 0.5},))])
        ['loss', 'auc', 'mae']
    """
    counts: dict[str, int] = {}
    for run in runs:
        for name in {name for metrics in run.metrics for name in metrics}:
            counts[name] = counts.get(name, 0) + 1
    best = [(run.report.get("best") or {}).get("metric") for run in runs]
    return sorted(counts, key=lambda name: (-counts[name], -best.count(name), name))


def _direction(name: str, plans: Sequence[Mapping[str, Any]]) -> str:
    """Returns the way in which a column improves in all runs, "" if not known."""
    if name in DIRECTIONS:
        return DIRECTIONS[name]
    if name in LABELS:
        return ""
    ways = {_direction_in(name.removeprefix("val_"), plan) for plan in plans}
    return ways.pop() if len(ways) == 1 else ""


def _direction_in(name: str, plan: Mapping[str, Any]) -> str:
    monitor = _part(plan, "monitor")
    if str(monitor.get("name", "")).removeprefix("val_") == name:
        return "up" if monitor.get("is_higher_better") else "down"
    return direction_of(name, _part(_part(plan, "model"), "metrics"))


def _part(plan: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a part of a plan, empty if it is none: plans of runs may be anything."""
    found = plan.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _best(values: Sequence[Any], direction: str) -> float | None:
    known = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    if not direction or len(set(known)) < 2:
        return None
    return max(known) if direction == "up" else min(known)


def _reached(run: RunSummary, metric: str, direction: str) -> float | None:
    """Returns the best value of a metric; the last one if the way is not known."""
    if direction:
        best = best_epoch(
            run.metrics, Monitor(name=metric, is_higher_better=direction == "up")
        )
        return best[1] if best else None
    values = [metrics[metric] for metrics in run.metrics if metric in metrics]
    return float(values[-1]) if values else None


def _cell(value: Any, *, is_best: bool = False) -> Cell:
    if value is None:
        return Cell()
    exact = str(value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        text = number(value)
        return Cell(text=text, exact=exact * (text != exact), is_best=is_best)
    return Cell(text=exact)


def _number(text: str) -> str | int | float:
    """Returns the number that a setting is, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _lengths(
    values: Sequence[float | None], told: Callable[[float], str]
) -> list[tuple[str, float]]:
    known = [0.0 if v is None or not math.isfinite(v) else v for v in values]
    most = max(map(abs, known), default=0.0) or 1.0
    texts = ["none" if value is None else told(value) for value in values]
    return [(t, 100 * max(0.0, v) / most) for t, v in zip(texts, known, strict=True)]
