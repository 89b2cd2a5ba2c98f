"""Programs that train the same work in turns, each time in a process of its own.

This file runs the programs and prints their figures, medians of the repeats. The first
one is what a user waits for: seconds from the start of the process, imports and
compiling included, to the training loss that plain Keras has after its epochs, or half
a percent more; a program that needs more epochs gets them. Losses are those of whole
epochs, and a line lies between them. Samples/s leave out the first epoch, in which
programs are compiled. The cold start includes it: it lasts to the end of the epochs
that all train.
"""

from __future__ import annotations

import json
import math
import os
import statistics as st
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of
from benchmarks.works import ROOT
from shoal.training.comparison import SAME_LOSS, seconds_to

LIMIT_S = 240.0
MORE = 4
"""Times the epochs of plain Keras that a program may need to its loss."""
HEADER = (
    "| program | samples/s | slowest to fastest | cold start to trained model | loss |",
    "|---|---|---|---|---|",
)


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A participant of a contest.

    Args:
        name: Name in the table.
        module: Module of `benchmarks.entrants`.
        work: Key of `WORKS`.
        batch: Batch size, as the module takes it.
        rows: Rows of an epoch.
        epochs: Epochs to train, without the first; at least 2.
        options: More arguments of the command line.
        environment: See `environments`.
        variables: Environment variables of the process.
        until: Validation accuracy at which it may end.
        loss: Training loss that it should reach, with up to `MORE` times the epochs.
        limit_s: Seconds after which it has failed.
    """

    name: str
    module: str
    work: str
    batch: int
    rows: int
    epochs: int = 4
    options: tuple[str, ...] = ()
    environment: str = "ours"
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    until: float | None = None
    loss: float | None = None
    limit_s: float = LIMIT_S

    def run(self) -> Result | None:
        """Trains once; returns None and prints its last output if it failed."""
        found = self.answer()
        if found is None:
            return None
        began, reached_at = found["began"], found.get("reached_at")
        ends_s = [end - began for end in _ends(found)]
        is_longer = len(ends_s) > self.epochs
        return Result(
            rate=self.rows / st.median(found["spans"][1:] or found["spans"]),
            cold_s=ends_s[self.epochs - 1]
            if is_longer
            else found["trained_at"] - began,
            losses=found["losses"],
            epochs=len(found["spans"]),
            reached_s=None if reached_at is None else reached_at - began,
            ends_s=ends_s,
        )

    def answer(self) -> dict[str, Any] | None:
        """Trains once; returns what it told, and when it began; None if it failed."""
        command = [
            str(python_of(self.environment)),
            "-m", f"benchmarks.entrants.{self.module}",
            "--work", self.work, "--batch", str(self.batch), "--rows", str(self.rows),
            "--epochs", str(self.epochs), *self.options,
        ]  # fmt: skip
        if self.until is not None:
            command += ["--until", str(self.until)]
        if self.loss is not None:
            most = MORE * self.epochs
            command += ["--loss", str(self.loss), "--most", str(most)]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": paths}
        env |= {"TF_CPP_MIN_LOG_LEVEL": "3", **self.variables}
        began = time.time()
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True,
                check=True, timeout=self.limit_s,
            )  # fmt: skip
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error)
            print(f"{self.name} failed: {said[-1500:]}", file=sys.stderr, flush=True)
            return None
        return {**json.loads(done.stdout.strip().splitlines()[-1]), "began": began}


@dataclass(frozen=True)
class Result:
    """The result of one training.

    Args:
        rate: Samples/s of the epochs after the first.
        cold_s: Seconds from the start of the process to the trained model.
        losses: Loss of each epoch, empty if the program prints none.
        epochs: Number of trained epochs.
        reached_s: Seconds from the start of the process to the accuracy that was
            asked for; None where it was not reached.
        ends_s: Seconds from the start of the process to the end of each epoch.
    """

    rate: float
    cold_s: float
    losses: Sequence[float]
    epochs: int
    reached_s: float | None = None
    ends_s: Sequence[float] = ()

    def seconds_to(self, loss: float) -> float:
        """Seconds from the start of the process to a loss; infinite if never."""
        found = seconds_to([*zip(self.ends_s, self.losses, strict=False)], loss)
        return math.inf if found is None else found


def _ends(found: Mapping[str, Any]) -> list[float]:
    """When each epoch ended; counted back from the end where it was not noted."""
    if "ends" in found:
        return found["ends"]
    spans = found["spans"]
    return [found["trained_at"] - sum(spans[n + 1 :]) for n in range(len(spans))]


@dataclass(frozen=True)
class Aim:
    """A ratio that is required.

    Args:
        of: Name of an entrant.
        over: Names of those it is compared with; the best of them counts.
        least: The ratio that is asked.
        words: Words for the comparison.
        is_of_seconds: Whether seconds to the loss of plain Keras are compared, the
            other's over its own; else samples/s.
    """

    of: str
    over: tuple[str, ...]
    least: float
    words: str
    is_of_seconds: bool = False


@dataclass
class Contest:
    """Participants, and the required ratios.

    Args:
        title: Title of the table.
        entrants: Participants in the order of their turns.
        aims: Judged at the end.
        plain: Names of the first entrants, whose loss the others have to reach; none:
            only speeds are compared.
    """

    title: str
    entrants: Sequence[Entrant]
    aims: Sequence[Aim] = ()
    plain: tuple[str, ...] = ()
    found: dict[str, list[Result]] = field(default_factory=dict[str, list["Result"]])
    goals: list[float] = field(default_factory=list[float])

    def hold(self, repeats: int) -> None:
        """Trains each in turn this many times; one that fails is left out."""
        waiting = [*self.entrants]
        for number in range(repeats):
            self.goals.append(math.nan)
            for entrant in [*waiting]:
                result = self._aimed(entrant).run()
                if result is None:
                    waiting.remove(entrant)
                    continue
                self.found.setdefault(entrant.name, []).append(result)
                if entrant.name in self.plain:  # the loss that both of them reach
                    goal = SAME_LOSS * result.losses[-1]
                    self.goals[-1] = max(goal, self.goals[-1])
                print(
                    f"{number + 1}/{repeats} {entrant.name:32} {result.rate:10,.0f} "
                    f"samples/s   cold {result.cold_s:6.1f} s",
                    flush=True,
                )

    def _aimed(self, entrant: Entrant) -> Entrant:
        """An entrant that trains to the loss of plain Keras, once that is known."""
        goal = self.goals[-1]
        if entrant.name in self.plain or math.isnan(goal):
            return entrant
        return replace(entrant, loss=goal)

    def seconds(self, name: str) -> list[float]:
        """A participant's seconds to the loss of plain Keras, of each repeat."""
        found = self.found.get(name, [])
        return [r.seconds_to(g) for r, g in zip(found, self.goals, strict=False)]

    def rate(self, name: str) -> float:
        """The median of a participant's samples/s, NaN if it failed."""
        results = self.found.get(name)
        return st.median(r.rate for r in results) if results else float("nan")

    def judged(self) -> list[tuple[Aim, float]]:
        """The required ratios, with the measured ones."""
        return [(aim, self._ratio(aim)) for aim in self.aims]

    def _ratio(self, aim: Aim) -> float:
        if not aim.is_of_seconds:
            return self.rate(aim.of) / max(map(self.rate, aim.over))
        ours, *others = (
            st.median(self.seconds(name) or [math.nan]) for name in (aim.of, *aim.over)
        )
        return min(others) / ours

    def table(self) -> str:
        """Markdown: all figures, then required and measured ratios."""
        lines = [f"### {self.title}\n", *HEADER]
        if self.plain:
            first = ("| program | seconds to plain Keras' loss ", "|---|---")
            lines[1:] = [
                start + line.removeprefix("| program " if n == 0 else "|---")
                for n, (start, line) in enumerate(zip(first, HEADER, strict=True))
            ]
        for name, results in self.found.items():
            rates = [r.rate for r in results]
            losses = results[-1].losses
            cells = [
                name, f"{st.median(rates):,.0f}",
                f"{min(rates):,.0f} to {max(rates):,.0f}",
                f"{st.median(r.cold_s for r in results):.1f} s",
                f"{losses[-1]:.3f} after {results[-1].epochs}" if losses else "",
            ]  # fmt: skip
            if self.plain:
                cells.insert(1, _shown(self.seconds(name)))
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", "| | measured | required |", "|---|---|---|"]
        for aim, ratio in self.judged():
            lines.append(f"| {aim.of}: {aim.words} | {ratio:.2f} | {aim.least:g} |")
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """All measurements, for JSON."""
        return {
            "title": self.title,
            "results": {
                name: [vars(result) for result in results]
                for name, results in self.found.items()
            },
            "aims": [
                {"of": aim.of, "over": aim.words, "asked": aim.least, "found": ratio}
                for aim, ratio in self.judged()
            ],
        }


def _shown(seconds: Sequence[float]) -> str:
    middle = st.median(seconds) if seconds else math.inf
    return f"{middle:.1f}" if math.isfinite(middle) else "not reached"


def keep(contests: Sequence[Contest], path: Path | None) -> None:
    """Prints the tables, then JSON; writes the JSON to a file if one is given."""
    for contest in contests:
        print(f"\n{contest.table()}\n")
    written = json.dumps([contest.facts() for contest in contests])
    print(written)
    if path is not None:
        path.write_text(written + "\n")
