"""The page and the picture of `benchmarks.compare`, from the cells it has trained."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

PAGE = Path("docs/reference/learning-quality.md")
PICTURE = Path("docs/assets/learning-quality.png")
BOUND = 1.0
BOUND_WORKERS = 8
HELD = (
    "all_reduce", "local_sgd", "easgd", "aeasgd", "dynsgd", "diloco", "async_diloco",
)  # fmt: skip
"""Strategies that must stay within the bound up to that many workers."""

BY_LOSS = frozenset({"Shakespeare"})
"""Data whose usual measure is the loss, in percent."""

Cell = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Accuracy against `single` of the same seed, in points.

    Of data that are measured by the loss it is that in percent, negative if higher.

    Args:
        mean: Mean over the seeds.
        deviation: Standard deviation between the seeds.
        seeds: Number of seeds.
    """

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        sign = "+" if self.mean >= 0 else "−"  # noqa: RUF001 - a minus, as typeset
        spread = f" ± {self.deviation:.2f}" if self.seeds > 1 else ""
        return f"{sign}{abs(self.mean):.2f}{spread}"


Table = dict[tuple[str, int], Loss]


def losses(cells: Iterable[Cell], data: str) -> Table:
    """(strategy, workers) -> loss, for one data set."""
    mine = [cell for cell in cells if cell["data"] == data]
    base = {c["seed"]: c for c in mine if c["strategy"] == "single"}
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for cell in mine:
        if cell["strategy"] != "single" and cell["seed"] in base:
            gap = _gap(cell, base[cell["seed"]], by_loss=data in BY_LOSS)
            found[cell["strategy"], cell["workers"]].append(gap)
    return {
        key: Loss(
            mean=float(np.mean(gaps)), deviation=float(np.std(gaps)), seeds=len(gaps)
        )
        for key, gaps in found.items()
    }


def _gap(cell: Cell, plain: Cell, *, by_loss: bool) -> float:
    if by_loss:
        return 100 * (1 - cell["loss"] / plain["loss"])
    return 100 * (cell["accuracy"] - plain["accuracy"])


def write_report(
    cells: list[Cell], strategies: Sequence[str], workers: Sequence[int]
) -> None:
    """Writes the page and the picture."""
    names = list(dict.fromkeys(cell["data"] for cell in cells))
    tables = {name: losses(cells, name) for name in names}
    # Those with a line on the first data set: the others have no place in its legend.
    first = tables[names[0]]
    drawn = [
        name for name in strategies if len([key for key in first if key[0] == name]) > 1
    ]
    draw(tables, drawn, workers)
    head, _, rest = PAGE.read_text().partition("<!-- figures -->")
    _, _, tail = rest.partition("<!-- /figures -->")
    parts = [_verdict(tables), *(_section(cells, n, tables[n], strategies, workers)
                                 for n in names), _machine()]  # fmt: skip
    text = "\n\n".join(parts)
    PAGE.write_text(f"{head}<!-- figures -->\n\n{text}\n\n<!-- /figures -->{tail}")
    print(f"wrote {PAGE} and {PICTURE}")


def _verdict(tables: dict[str, Table]) -> str:
    """Strategies that keep the promise, and those that do not."""
    broken = [
        f"`{name}` with {count} workers on {data} ({loss})"
        for data, table in tables.items()
        for (name, count), loss in table.items()
        if name in HELD and count <= BOUND_WORKERS and loss.mean < -BOUND
    ]
    held = ", ".join(f"`{name}`" for name in HELD)
    start = (
        f"Expected: {held} within {BOUND:g} point of `single` up to "
        f"{BOUND_WORKERS} workers. "
    )
    if not broken:
        return f"{start}Measured: all of them are."
    return f"{start}Measured: they are, but for {'; '.join(broken)}."


def _section(
    cells: list[Cell], data: str, table: Table, strategies: Sequence[str],
    workers: Sequence[int],
) -> str:  # fmt: skip
    mine = [cell for cell in cells if cell["data"] == data]
    singles = [cell for cell in mine if cell["strategy"] == "single"]
    workers = [n for n in workers if any(count == n for _, count in table)]
    lines = [
        f"## {data}",
        "",
        f"{mine[0]['recipe']}. `single`: {_told(singles, by_loss=data in BY_LOSS)}.",
        "",
        "| Strategy | " + " | ".join(f"{n} workers" for n in workers) + " |",
        "|---|" + "---:|" * len(workers),
    ]
    for name in strategies:
        if not any((name, count) in table for count in workers):
            continue
        shown = [_shown(table.get((name, count))) for count in workers]
        lines.append(f"| {_named(name)} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _told(singles: Sequence[Cell], *, by_loss: bool) -> str:
    """Returns what plain Keras reaches."""
    count = len(singles)
    of = f"mean and deviation of {count} seeds" if count > 1 else "one seed"
    key, scale, digits = ("loss", 1, 3) if by_loss else ("accuracy", 100, 2)
    plain = [scale * cell[key] for cell in singles]
    told = f"{np.mean(plain):.{digits}f}"
    if count > 1:
        told += f" ± {np.std(plain):.{digits}f}"
    if by_loss:
        return (
            f"a loss of {told} ({of}); the table tells the loss against it in percent"
        )
    return f"{told} % ({of})"


def _shown(loss: Loss | None) -> str:
    if loss is None:
        return "-"
    return f"**{loss}**" if loss.mean < -BOUND else str(loss)


def _named(name: str) -> str:
    word, _, rest = name.partition(" ")
    return f"`{word}` {rest}".rstrip()


def _machine() -> str:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("jax", "keras", "numpy")
    )
    return (
        f"Measured on an {platform.machine()} machine, Python "
        f"{platform.python_version()}, {packages}."
    )


def draw(
    tables: dict[str, Table], strategies: Sequence[str], workers: Sequence[int]
) -> None:
    """Loss against workers, one panel for each data set."""
    rows = -(-len(tables) // 2)
    figure = Figure(figsize=(11, 4.2 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes in panels[len(tables) :]:
        axes.remove()
    for axes, (data, table) in zip(panels, tables.items(), strict=False):
        for place, name in enumerate(strategies):
            counts = [count for count in workers if (name, count) in table]
            if not counts:
                continue
            axes.errorbar(
                counts,
                [table[name, count].mean for count in counts],
                yerr=[table[name, count].deviation for count in counts],
                label=name,
                color=f"C{place % 10}" if place < 10 else "black",
                linestyle="-" if name in HELD else "--",
                marker="o" if name in HELD else "x",
                capsize=2,
                linewidth=1.2,
            )
        axes.axhspan(-BOUND, 0, color="tab:green", alpha=0.1)
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [str(count) for count in workers])
        axes.set_yscale("symlog", linthresh=1.0)
        ticks = [-50, -20, -10, -5, -2, -1, -0.5, 0, 0.5, 1]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        what = "loss, %" if data in BY_LOSS else "accuracy, points"
        axes.set(title=data, xlabel="workers", ylabel=f"{what} against plain Keras")
        axes.grid(visible=True, alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=120)
