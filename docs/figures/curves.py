"""Figure: accuracy of each strategy against plain Keras, as it was measured.

The numbers are those of `docs/reference/learning-quality.json`, which `make compare`
writes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import mean

from figures.drawing import Drawing

DATA = Path(__file__).parents[1] / "reference" / "learning-quality.json"
SETS, WORKERS = ("Higgs", "MNIST"), (2, 4, 8, 16)
FAMILIES = (
    ("Gradients, and averaged weights", ("all_reduce", "local_sgd")),
    ("Elastic", ("easgd", "aeasgd", "eamsgd", "eamsgd (rate x 0.1)")),
    ("Added changes", ("dynsgd", "downpour", "adag")),
    ("An outer optimizer", ("diloco", "async_diloco")),
)
KINDS = ("first", "second", "third", "fourth")
LEFTS, WIDE, TALL = (36, 200), 132, 84
HIGHEST, LOWEST = 1.0, -3.0
APART = (WIDE - 24) / (len(WORKERS) - 1)

Gaps = dict[tuple[str, str, int], float]


def measured() -> Gaps:
    """Returns the mean difference to plain Keras in points of accuracy.

    The key is the data set, the strategy and the number of workers; the mean is over
    seeds, each against plain Keras with the same seed.
    """
    cells = json.loads(DATA.read_text())["cells"]
    plain = {
        (cell["data"], cell["seed"]): cell["accuracy"]
        for cell in cells
        if cell["strategy"] == "single"
    }
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for cell in cells:
        key = cell["data"], cell["strategy"], cell["workers"]
        gap = cell["accuracy"] - plain[cell["data"], cell["seed"]]
        found[key].append(100 * gap)
    return {key: mean(gaps) for key, gaps in found.items()}


def draw() -> str:
    """Returns the figure as SVG."""
    gaps = measured()
    worst = ", ".join(
        f"{name} {gaps['MNIST', name, 16]:.1f}"
        for _, names in FAMILIES
        for name in names
        if gaps["MNIST", name, 16] < LOWEST
    )
    d = Drawing(
        "strategy-curves",
        "Accuracy against plain Keras",
        "Differences of accuracy to plain Keras in points, for 2, 4, 8 and 16 workers "
        "on Higgs and on MNIST, in four panels of strategies. All are near zero with "
        "few workers. The table on the page Learning quality has all numbers. Below "
        f"the panels, on MNIST with 16 workers: {worst}.",
    )
    d.text(LEFTS[0], 16, SETS[0], "title")
    d.text(LEFTS[1], 16, SETS[1], "title")
    y = 40.0
    for title, names in FAMILIES:
        y = _family(d, y, title, names, gaps)
    d.text(
        LEFTS[0], y - 4, "workers, at equal samples; points of accuracy", "small quiet"
    )
    return d.svg(y + 6)


def _family(
    d: Drawing, y: float, title: str, names: tuple[str, ...], gaps: Gaps
) -> float:
    """Draws the panels of a family; returns where the next one begins."""
    d.text(8, y, title, "title")
    for number, name in enumerate(names):
        x, line = 8 + 166 * (number % 2), y + 16 + 15 * (number // 2)
        d.line((x, line - 4), (x + 24, line - 4), kind=f"curve {KINDS[number]}")
        d.text(x + 30, line, name.replace(" x ", " × "), "small")  # noqa: RUF001
    top = y + 11 + 15 * ((len(names) + 1) // 2)
    for data, left in zip(SETS, LEFTS, strict=True):
        _panel(d, left, top)
        for number, name in enumerate(names):
            values = [gaps[data, name, count] for count in WORKERS]
            _curve(d, left, top, values, KINDS[number])
    return top + TALL + 38


def _panel(d: Drawing, left: float, top: float) -> None:
    """Draws the axes of one panel."""
    for value in (1, 0, -1, -2, -3):
        y = _height(top, value)
        d.line((left, y), (left + WIDE, y), kind="line" if value == 0 else "grid")
        shown = f"−{-value}" if value < 0 else str(value)  # noqa: RUF001
        d.text(left - 6, y + 4, shown, "small", "end")
    for place, count in enumerate(WORKERS):
        d.text(_across(left, place), top + TALL + 14, str(count), "small", "middle")


def _curve(d: Drawing, left: float, top: float, values: list[float], kind: str) -> None:
    """Draws a curve as far as it lies in the panel."""
    for place, (here, there) in enumerate(pairwise(values)):
        if max(here, there) < LOWEST:
            continue
        x, y = _across(left, place), _height(top, max(here, LOWEST))
        end, low = _across(left, place + 1), _height(top, max(there, LOWEST))
        if min(here, there) < LOWEST:
            share = (max(here, there) - LOWEST) / abs(here - there)
            if here < there:
                x = end - share * APART
            else:
                end = x + share * APART
        d.line((x, y), (end, low), kind=f"curve {kind}")


def _across(left: float, place: int) -> float:
    """Returns x of a number of workers."""
    return left + 12 + place * APART


def _height(top: float, value: float) -> float:
    """Returns y of a difference."""
    return top + TALL * (HIGHEST - value) / (HIGHEST - LOWEST)
