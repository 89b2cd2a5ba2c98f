"""`shoal.fit(model, x, y)` without options against the best plain `keras.Model.fit`.

Run: `python -m benchmarks.default_call [mlp-64 images cold-mlp-64 ...]`. All train in
turns, each in a process of its own (`contest`). Plain Keras has the better of 1 and 32
steps an execution. `all_reduce` with one and with two workers shows whether the default
chooses the faster one. A contest `cold-...` measures the seconds of a small epoch,
from the start of the process, with programs that nobody has compiled before. Ctrl-C
prints what there is.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics as st
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contest import Aim, Contest, Entrant, keep
from benchmarks.environments import compile_shoal
from benchmarks.throughput import PLAIN
from benchmarks.works import WORKS

OURS = "shoal.fit without options"
CHOICES = ("all_reduce, workers=1", "all_reduce, workers=2")
LEAST, MOST_COLD = 1.0, 1.3
SMALL = 6_400
CONTESTS: dict[str, tuple[str, int]] = {
    "mlp-64": ("higgs", 64),
    "mlp-128": ("higgs", 128),
    "mlp-256": ("higgs", 256),
    "images": ("images", 64),
    "text": ("text", 64),
}
"""Work and batch size by name: those that are promised."""
OTHERS: dict[str, tuple[str, int]] = {
    "mlp-1024": ("higgs", 1024),
    "images-16": ("images", 16),
    "images-128": ("images", 128),
    "text-256": ("text", 256),
    "transformer": ("transformer", 64),
}
"""More, which tell whether the default chooses well."""
ALL = {**CONTESTS, **OTHERS}


def entrants(work: str, batch: int, rows: int, *, epochs: int = 4) -> list[Entrant]:
    """Plain Keras, the default call, and the two choices that it has.

    Args:
        work: Key of `WORKS`.
        batch: Batch size.
        rows: Rows of an epoch.
        epochs: Epochs to train.
    """
    given: dict[str, Any] = {
        "work": work, "batch": batch, "rows": rows, "epochs": epochs,
    }  # fmt: skip
    plain = [
        Entrant(name=name, module="keras_fit", options=("--steps", steps), **given)
        for name, steps in zip(PLAIN, ("1", "32"), strict=True)
    ]
    chosen = [
        Entrant(
            name=name, module="shoal_fit",
            options=("--strategy", "all_reduce", "--workers", name[-1]), **given,
        )
        for name in CHOICES
    ]  # fmt: skip
    return [*plain, Entrant(name=OURS, module="shoal_fit", **given), *chosen]


def warm(name: str, *, is_quick: bool) -> Contest:
    """Samples/s after the first epoch."""
    work, batch = ALL[name]
    rows = WORKS[work].rows // (4 if is_quick else 1)
    return Contest(
        f"{name}: {work}, batch {batch}",
        entrants(work, batch, rows, epochs=3 if work == "images" else 4),
        [Aim(OURS, PLAIN, LEAST, "best plain `fit`")],
    )


class Cold(NamedTuple):
    """Seconds of a small epoch: of the process with its imports, and of the call."""

    process_s: float
    call_s: float


def hold_cold(name: str, repeats: int) -> dict[str, list[Cold]]:
    """Trains a small epoch in turns; each time nothing is compiled."""
    work, batch = ALL[name]
    rows = min(SMALL, WORKS[work].rows)
    found: dict[str, list[Cold]] = {}
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(repeats):
            for one in entrants(work, batch, rows, epochs=1)[:3]:
                with tempfile.TemporaryDirectory() as empty:
                    told = replace(one, variables={"SHOAL_CACHE": empty}).answer()
                if told is None:
                    continue
                cold = Cold(told["trained_at"] - told["began"], told["call_s"])
                found.setdefault(one.name, []).append(cold)
                print(
                    f"{number + 1}/{repeats} {one.name:40} {cold.process_s:6.2f} s, "
                    f"the call {cold.call_s:6.2f} s",
                    flush=True,
                )
    return found


def cold_table(name: str, found: dict[str, list[Cold]]) -> str:
    """Markdown: medians, and the default call over plain Keras."""
    middle = {
        who: Cold(*map(st.median, zip(*f, strict=True))) for who, f in found.items()
    }
    lines = [
        f"### Cold: {name}, {SMALL:,} samples, one epoch\n",
        "| program | seconds of the process | of the call |",
        "|---|---|---|",
    ]
    lines += [
        f"| {w} | {m.process_s:.2f} | {m.call_s:.2f} |" for w, m in middle.items()
    ]
    plain = [middle[who] for who in PLAIN if who in middle]
    if OURS in middle and plain:
        ours, best = middle[OURS], Cold(*map(min, zip(*plain, strict=True)))
        lines.append(
            f"\nThe default call: {ours.process_s / best.process_s:.2f} of plain "
            f"(at most {MOST_COLD} is required), "
            f"{ours.call_s / best.call_s:.2f} without imports."
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints tables, and JSON of the contests."""
    known = [*ALL, *(f"cold-{name}" for name in ALL)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [*CONTESTS, "cold-mlp-64", "cold-images", "cold-text"]
    parser.add_argument("contests", nargs="*", metavar="CONTEST", default=usual)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="1 repeat, fewer rows")
    parser.add_argument(
        "--no-choices", action="store_true", help="without one and two workers"
    )
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args(arguments)
    if unknown := {*given.contests} - {*known}:
        parser.error(f"no contest {', '.join(unknown)}; there are: {', '.join(known)}")
    compile_shoal()
    repeats, held, tables = 1 if given.quick else given.repeats, list[Contest](), ""
    try:
        for name in given.contests:
            print(f"== {name}", flush=True)
            cold = name.removeprefix("cold-")
            WORKS[ALL[cold][0]].samples(1)  # fills caches of data before the clock
            if cold != name:
                tables += "\n" + cold_table(cold, hold_cold(cold, repeats)) + "\n"
                continue
            held.append(warm(name, is_quick=given.quick))
            if given.no_choices:
                held[-1].entrants = held[-1].entrants[: len(PLAIN) + 1]
            held[-1].hold(repeats)
    except KeyboardInterrupt:
        print("interrupted: what there is")
    print(tables)
    keep([contest for contest in held if contest.found], given.out)


if __name__ == "__main__":
    main()
