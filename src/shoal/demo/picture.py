"""The picture of the demo: loss against time, and the moments of the kills."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from typing import Any

from shoal.demo.contest import Result
from shoal.demo.resumed import Resumed

# Colours that colour-blind readers can tell apart (Okabe and Ito, 2008).
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7")
KILLED_COLOUR = COLOURS[2]
"""Of the strategy whose workers are killed: the third contestant."""
KILL_COLOUR = "#D55E00"


def draw(
    contest: Sequence[Result],
    undisturbed: Result,
    killed: Result,
    resumed: Resumed,
    out: str | PathLike[str],
) -> None:
    """Writes the picture: the contest, a killed worker, a resumed run.

    Args:
        contest: The results of act 1, plain Keras first.
        undisturbed: The run of act 1 that act 2 repeats.
        killed: The run in which a worker was killed.
        resumed: The run whose processes were all killed.
        out: Path of the PNG.
    """
    # A Figure of its own: pyplot would keep it, and look for a display.
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(15, 4.4), layout="constrained"
    )
    left, right, last = figure.subplots(1, 3, sharey=True)
    for result, colour in zip(contest, COLOURS, strict=False):
        _curve(left, result, colour)
    left.set_title("The same samples, the same model")
    _curve(right, undisturbed, "#999999")
    _curve(right, killed, KILLED_COLOUR)
    if killed.killed_at is not None:
        _mark(right, killed, killed.killed_at)
    right.set_title("One worker killed with SIGKILL")
    left.set_ylabel("loss on test flights")
    if resumed.curve:
        _resumed(last, resumed)
    last.set_title("Everything killed, and resumed")
    for axes in (left, right, last):
        since = "start of the run" if axes is last else "call of fit"
        axes.set_xlabel(f"seconds since the {since}")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=120, format="png")


def _curve(axes: Any, result: Result, colour: str) -> None:
    seconds, loss = zip(*result.curve, strict=True)
    label = f"{result.who}: {result.accuracy:.1%}"
    axes.plot(seconds, loss, "o-", markersize=3, color=colour, label=label)


def _resumed(axes: Any, resumed: Resumed) -> None:
    seconds, loss = zip(*resumed.curve, strict=True)
    label = f"shoal {resumed.strategy}, resumed: {resumed.accuracy:.1%}"
    axes.plot(seconds, loss, "o-", markersize=3, color=KILLED_COLOUR, label=label)
    if resumed.killed_at is not None:
        text = f"killed, {resumed.saved:,} samples saved"
        axes.axvline(resumed.killed_at, color=KILL_COLOUR, linewidth=1.5, label=text)


def _mark(axes: Any, killed: Result, at: float) -> None:
    """Draws a line at the kill, and a band until the replacement works."""
    axes.axvline(at, color=KILL_COLOUR, linewidth=1.5, label="worker killed")
    if killed.replaced_s is not None:
        axes.axvspan(
            at, at + killed.replaced_s, color=KILL_COLOUR, alpha=0.15, linewidth=0,
            label=f"replaced in {killed.replaced_s:.1f} s",
        )  # fmt: skip
