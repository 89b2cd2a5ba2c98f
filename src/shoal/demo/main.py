"""The demo: speeds on the same samples, and the cost of a killed process.

This file decides the acts, the table and the sentences. The sentences follow from the
measurements: on some machines plain Keras wins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import keras
from rich.console import Console
from rich.table import Table

from shoal.demo.contest import (
    DEFAULT,
    LONG_EXECUTION,
    Result,
    Settings,
    train_plainly,
    train_with_shoal,
)
from shoal.demo.flights import Flights, load_flights
from shoal.demo.picture import draw
from shoal.demo.resumed import describe_resume, kill_and_resume
from shoal.plan import environment

STRATEGIES = ("diloco", "aeasgd")
"""Compared beside the call without options; the first one wins there."""


def run_demo(
    out: str | os.PathLike[str] = "shoal-demo.png",
    workers: int = 2,
    *,
    settings: Settings | None = None,
    root: str | None = None,
    console: Console | None = None,
) -> list[Result]:
    """Trains on real data against plain Keras, kills processes, draws a picture.

    Args:
        out: Path of the PNG.
        workers: Training processes of Shoal.
        settings: Amount of training; default None takes two to three minutes.
        root: Folder of the runs; default None means the usual one.
        console: Console for the output; default None means standard output.

    Returns:
        One result a contestant: plain Keras, Shoal without options, the strategies, the
        killed run.

    Raises:
        ConfigError: The packages of the extra "demo" are not installed.
    """
    console, settings = console or Console(), settings or Settings()
    flights = load_flights()
    console.print(_introduction(flights, settings))
    contest = _first_act(flights, settings, workers, root, console)
    console.print(table(contest), verdict(contest), "")
    again = contest[2]
    with console.status(f"{STRATEGIES[0]} again, and a worker is killed"):
        killed = train_with_shoal(
            flights, settings, strategy=STRATEGIES[0], workers=workers,
            is_killed=True, root=root,
        )  # fmt: skip
    console.print(describe_kill(killed, again), "")
    with console.status(f"{STRATEGIES[0]} again, and everything is killed"):
        resumed = kill_and_resume(
            flights, settings, strategy=STRATEGIES[0], workers=workers,
            root=root or environment().runs,
        )  # fmt: skip
    console.print(describe_resume(resumed), "")
    draw(contest, again, killed, resumed, out)
    results = [*contest, killed]
    console.print(f"Picture: {Path(out).resolve()}", soft_wrap=True, markup=False)
    console.print(f"Run that was resumed: {resumed.run}", soft_wrap=True, markup=False)
    for result in results:
        if result.run:
            text = f"Run of {result.who}: {result.run}"
            console.print(text, soft_wrap=True, markup=False)
    where = f" --root {root}" if root else ""
    page = f"All of them in a browser: shoal ui{where}"
    console.print(page, soft_wrap=True, markup=False)
    return results


def _introduction(flights: Flights, settings: Settings) -> str:
    majority = max(flights.y_test.mean(), 1 - flights.y_test.mean())
    return (
        "The task: predict whether a flight from New York arrives late. "
        f"{flights.x.shape[1]} features, {settings.rows:,} flights to train on, "
        f"{len(flights.x_test):,} to test ({majority:.1%} by always guessing 'on "
        f"time'). Each training sees {settings.samples:,} samples.\n"
    )


def _first_act(
    flights: Flights,
    settings: Settings,
    workers: int,
    root: str | None,
    console: Console,
) -> list[Result]:
    """Trains plain Keras with its best settings, Shoal without any, each strategy."""
    plain: dict[int, Result] = {}
    is_torch = keras.backend.backend() == "torch"  # Keras refuses more than 1 there
    for steps in (1,) if is_torch else (1, LONG_EXECUTION):
        with console.status(f"keras.Model.fit, steps_per_execution={steps}"):
            plain[steps] = train_plainly(flights, settings, steps)
    best = max(plain, key=lambda steps: plain[steps].speed)
    speeds = ", ".join(f"{n}: {r.speed:,.0f} samples/s" for n, r in plain.items())
    why = f"its best ({speeds})" if len(plain) > 1 else "as PyTorch allows no other"
    console.print(f"keras.Model.fit is shown with steps_per_execution={best}, {why}.\n")
    with console.status("shoal.fit without options"):
        ours = train_with_shoal(
            flights, settings, strategy=DEFAULT, workers="auto", root=root
        )
    found = [plain[best], ours]
    for strategy in STRATEGIES:
        with console.status(f"shoal {strategy}"):
            found.append(
                train_with_shoal(
                    flights, settings, strategy=strategy, workers=workers, root=root
                )
            )
    return found


def table(contest: Sequence[Result]) -> Table:
    """Returns the table of act 1; plain Keras comes first, and gives the loss."""
    found = Table(box=None, pad_edge=False, header_style="bold")
    found.add_column("who")
    for name in (
        "workers", "seconds to\nplain Keras' loss", "accuracy", "seconds\nin all",
        "samples/s after\nthe first epoch", "ratio to\nplain Keras",
    ):  # fmt: skip
        found.add_column(name, justify="right")
    for result in contest:
        seconds = result.seconds_to_loss_of(contest[0])
        found.add_row(
            result.who,
            f"{result.entry.workers}",
            "not reached" if seconds is None else f"{seconds:.1f}",
            f"{result.accuracy:.1%}",
            f"{result.entry.seconds:.1f}",
            f"{result.speed:,.0f}",
            f"{result.speed / contest[0].speed:.2f}",
        )
    return found


def verdict(contest: Sequence[Result]) -> str:
    """Returns a sentence about who reaches plain Keras' loss first, and who does not.

    Example:
        >>> from shoal.training.comparison import ComparisonEntry, Point
        >>> def result(who, *losses):
        ...     points = [Point(seconds=n + 1.0, samples=0, metrics={"val_loss": loss})
        ...               for n, loss in enumerate(losses)]
        ...     entry = ComparisonEntry(strategy="", workers=2, seed=1, seconds=9.0,
        ...         metrics={"accuracy": 0.8}, samples_per_s=1.0, points=tuple(points))
        ...     return Result(who=who, entry=entry, committed=600, expected=600)
        >>> plain = result("plain Keras", 0.9, 0.7, 0.5)
        >>> print(verdict([plain, result("shoal diloco", 0.7, 0.5)]))
        shoal diloco reaches the loss of plain Keras first: in 2.0 s instead of 3.0...
    """
    plain, *others = contest
    times = {result.who: result.seconds_to_loss_of(plain) for result in contest}
    reached = [result for result in contest if times[result.who] is not None]
    first = min(reached, key=lambda result: times[result.who] or 0.0)
    if first is plain:
        best = max(others, key=lambda result: result.speed)
        text = (
            "Plain Keras wins on this machine: nobody reaches its loss in less time, "
            f"and {best.who} has {best.speed / plain.speed:.2f} times its samples/s"
        )
    else:
        text = (
            f"{first.who} reaches the loss of plain Keras first: in "
            f"{times[first.who]:.1f} s instead of {times[plain.who]:.1f}, with "
            f"{first.speed / plain.speed:.2f} times the samples/s, at "
            f"{_points(first, plain)} of accuracy"
        )
    late = [result.who for result in contest if result not in reached]
    if late:
        text += f"; {' and '.join(late)} did not reach it with the same samples"
    return f"{text}."


def _points(result: Result, plain: Result) -> str:
    return f"{100 * (result.accuracy - plain.accuracy):+.1f} points"


def describe_kill(killed: Result, undisturbed: Result) -> str:
    """Returns a sentence about the cost of the killed worker.

    Example:
        >>> from shoal.training.comparison import ComparisonEntry
        >>> entry = ComparisonEntry(strategy="aeasgd", workers=2, seed=1, seconds=9.0,
        ...                         metrics={"accuracy": 0.8}, samples_per_s=86.0)
        >>> run = Result(who="shoal aeasgd", entry=entry, committed=600, expected=600,
        ...              killed_at=3.0, replaced_s=2.5)
        >>> print(describe_kill(run, run))
        A worker was killed after 3.0 s: samples committed 600 of 600, worker replaced in 2.5 s...
    """  # noqa: E501
    if killed.killed_at is None:
        return "The run was over before a worker could be killed."
    replaced = (
        "the run was over before its replacement was ready"
        if killed.replaced_s is None
        else f"worker replaced in {killed.replaced_s:.1f} s"
    )
    return (
        f"A worker was killed after {killed.killed_at:.1f} s: samples committed "
        f"{killed.committed:,} of {killed.expected:,}, {replaced}; "
        f"{killed.entry.seconds:.1f} s in all, with programs that the first run had "
        f"compiled, instead of {undisturbed.entry.seconds:.1f}; "
        f"accuracy {killed.accuracy:.1%} instead of {undisturbed.accuracy:.1%}."
    )
