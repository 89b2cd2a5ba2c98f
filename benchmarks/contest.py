"""Programs that train the same work in turns, each time in a process of its own.

This file runs the programs and prints their figures, medians of the repeats. Samples/s
leave out the first epoch, in which programs are compiled. The cold start includes it:
it lasts from the start of the process to the trained model.
"""

from __future__ import annotations

import json
import os
import statistics as st
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of
from benchmarks.works import ROOT

LIMIT_S = 240.0
HEADER = (
    "| program | samples/s | slowest to fastest | cold start to trained model | |\n"
    "|---|---|---|---|---|"
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
    limit_s: float = LIMIT_S

    def run(self) -> Result | None:
        """Trains once; returns None and prints its last output if it failed."""
        found = self.answer()
        if found is None:
            return None
        began, reached_at = found["began"], found.get("reached_at")
        return Result(
            rate=self.rows / st.median(found["spans"][1:] or found["spans"]),
            cold_s=found["trained_at"] - began,
            losses=found["losses"],
            epochs=len(found["spans"]),
            reached_s=None if reached_at is None else reached_at - began,
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
    """

    rate: float
    cold_s: float
    losses: Sequence[float]
    epochs: int
    reached_s: float | None = None


@dataclass(frozen=True)
class Aim:
    """A ratio that is required.

    Args:
        of: Name of an entrant.
        over: Names of those it is compared with; the best of them counts.
        least: The ratio that is asked.
        words: Words for the comparison.
    """

    of: str
    over: tuple[str, ...]
    least: float
    words: str


@dataclass
class Contest:
    """Participants, and the required ratios.

    Args:
        title: Title of the table.
        entrants: Participants in the order of their turns.
        aims: Judged at the end.
    """

    title: str
    entrants: Sequence[Entrant]
    aims: Sequence[Aim] = ()
    found: dict[str, list[Result]] = field(default_factory=dict[str, list["Result"]])

    def hold(self, repeats: int) -> None:
        """Trains each in turn this many times; one that fails is left out."""
        waiting = [*self.entrants]
        for number in range(repeats):
            for entrant in [*waiting]:
                result = entrant.run()
                if result is None:
                    waiting.remove(entrant)
                    continue
                self.found.setdefault(entrant.name, []).append(result)
                print(
                    f"{number + 1}/{repeats} {entrant.name:32} {result.rate:10,.0f} "
                    f"samples/s   cold {result.cold_s:6.1f} s",
                    flush=True,
                )

    def rate(self, name: str) -> float:
        """The median of a participant's samples/s, NaN if it failed."""
        results = self.found.get(name)
        return st.median(r.rate for r in results) if results else float("nan")

    def judged(self) -> list[tuple[Aim, float]]:
        """The required ratios, with the measured ones."""
        return [
            (aim, self.rate(aim.of) / max(map(self.rate, aim.over)))
            for aim in self.aims
        ]

    def table(self) -> str:
        """Markdown: all figures, then required and measured ratios."""
        lines = [f"### {self.title}\n", HEADER]
        for name, results in self.found.items():
            rates = [r.rate for r in results]
            losses = results[-1].losses
            lines.append(
                f"| {name} | {st.median(rates):,.0f} | {min(rates):,.0f} to "
                f"{max(rates):,.0f} | {st.median(r.cold_s for r in results):.1f} s | "
                + (f"loss {losses[-1]:.3f} |" if losses else "|")
            )
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


def keep(contests: Sequence[Contest], path: Path | None) -> None:
    """Prints the tables, then JSON; writes the JSON to a file if one is given."""
    for contest in contests:
        print(f"\n{contest.table()}\n")
    written = json.dumps([contest.facts() for contest in contests])
    print(written)
    if path is not None:
        path.write_text(written + "\n")
