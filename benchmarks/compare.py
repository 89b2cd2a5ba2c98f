"""Learning quality of every strategy on real data, at equal samples.

Run: `python -m benchmarks.compare` (`make compare`). Trains on Higgs, MNIST and
CIFAR-10 of $SHOAL_DATA and on texts of PyPI with the inline cluster: the real
strategies, sequencer and programs, all workers in one thread. What is finished is kept
in docs/reference/learning-quality.json, so that the command can be cut and goes on
where it was; then it writes the page and the picture. `--data mnist reuters` trains on
these alone, `--report` writes the page from what is there, `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Programs differ little from cell to cell: XLA need not compile them again.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir(), "shoal-compare-xla"))
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import shoal
from benchmarks import compare_problems as problems
from benchmarks.compare_problems import Problem
from benchmarks.compare_report import write_report
from shoal.strategies import get
from shoal.testing import Conditions
from shoal.training.comparing import Task, train_baseline, train_one

RESULTS = Path("docs/reference/learning-quality.json")
STRATEGIES = (
    "all_reduce", "local_sgd", "easgd", "aeasgd", "dynsgd", "diloco",
    "downpour", "adag", "eamsgd", "async_diloco",
)  # fmt: skip
# As the docstring of EAMSGD asks: the learning rate lowered by 1 - momentum.
LOWERED = {"eamsgd (rate x 0.1)": ("eamsgd", 0.1)}
SLOW, CHANGING = "one 5 times slower", "workers leave and join"
"""What befalls four workers."""
LASTING = ("aeasgd", "dynsgd", "async_diloco", "diloco")
"""Strategies that are compared on long works."""
ASYNCHRONOUS = LASTING[:3]
TROUBLED = {
    f"{name} ({words})": (name, words)
    for name in ASYNCHRONOUS
    for words in (SLOW, CHANGING)
}
WORKERS, MANY, FOUR = (2, 4, 8, 16), 32, 4
SEEDS = (0, 1, 2)
PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "higgs": problems.higgs,
    "mnist": problems.mnist,
    "reuters": problems.reuters,
    "cifar-sgd": problems.cifar_sgd,
    "cifar-adam": problems.cifar_adam,
    "shakespeare": problems.shakespeare,
}


def cells(problem: Problem) -> list[tuple[str, int, int]]:
    """(strategy, workers, seed), whole seeds first: a run that is cut is of use.

    `all_reduce` comes last: each of its steps is a call of the program for every
    worker, and by law 1 it is plain training.
    """
    names = LASTING if problem.is_long else (*STRATEGIES, *LOWERED)
    grid = [(n, w, s) for s in SEEDS for n in names for w in WORKERS]
    grid += [(name, MANY, seed) for seed in SEEDS for name in ASYNCHRONOUS]
    grid += [(name, FOUR, seed) for seed in SEEDS for name in TROUBLED]
    grid.sort(key=lambda cell: cell[2])
    early = [cell for cell in grid if cell[0] != "all_reduce"]
    late = [cell for cell in grid if cell[0] == "all_reduce"]
    plain = [("single", 1, seed) for seed in SEEDS]
    return plain + early + sorted(late, key=lambda cell: (cell[2], cell[1]))


def measure(problem: Problem, name: str, workers: int, seed: int) -> dict[str, Any]:
    """Trains one cell."""
    began = time.perf_counter()
    told, words = TROUBLED.get(name, (name, ""))
    word, factor = LOWERED.get(told, (told, 1.0))
    task = problem.task(factor)
    if name == "single":
        entry = train_baseline(task, seed)
    else:
        with conditions(words, task, workers):
            entry = train_one(task, shoal.fit, get(word), workers, seed)
    return {
        "data": problem.name, "recipe": problem.recipe, "strategy": name,
        "workers": entry.workers, "seed": seed,
        **{key: round(value, 6) for key, value in entry.metrics.items()},
        "seconds": round(time.perf_counter() - began, 2),
    }  # fmt: skip


def conditions(words: str, task: Task, workers: int) -> Conditions:
    """What befalls the workers of a training.

    Args:
        words: `SLOW`, `CHANGING`, or "" for nothing.
        task: What is trained.
        workers: Number of workers.
    """
    found = Conditions()
    if words == SLOW:
        return found.slow(rank=0, times=5)
    if words == CHANGING:
        # Twice an epoch one leaves, in turn, and joins when the next one leaves: as a
        # rule one is absent.
        half = len(task.x) / (2 * (task.batch_size or 32) * workers)
        for number in range(1, 2 * task.epochs):
            rank = number % workers
            found = found.leave(rank=rank, step=number * half)
            found = found.join(rank=rank, step=(number + 1) * half)
    return found


def load(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"] if path.is_file() else []


def save(path: Path, found: list[dict[str, Any]]) -> None:
    """Writes the file in one step: the run may be cut at any moment."""
    text = ",\n".join(json.dumps(cell) for cell in found)
    beside = path.with_suffix(".part")
    beside.write_text(f'{{"version": 1, "cells": [\n{text}\n]}}\n')
    beside.replace(path)


def run(
    found: list[dict[str, Any]],
    chosen: list[Problem],
    path: Path,
    workers: list[int],
    seeds: list[int],
) -> None:
    """Trains the cells that are missing."""
    done = {(c["recipe"], c["strategy"], c["workers"], c["seed"]) for c in found}
    todo = [
        (problem, *cell)
        for problem in chosen
        for cell in cells(problem)
        if cell[1] in (1, *workers) and cell[2] in seeds
        if (problem.recipe, *cell) not in done
    ]
    print(f"{len(found)} cells are there, {len(todo)} to train", flush=True)
    began = time.perf_counter()
    for number, (problem, name, count, seed) in enumerate(todo, start=1):
        cell = measure(problem, name, count, seed)
        found.append(cell)
        save(path, found)
        spent = time.perf_counter() - began
        left = spent / number * (len(todo) - number)
        print(
            f"{number}/{len(todo)} {problem.name} {name} x{count} seed {seed}: "
            f"accuracy {cell['accuracy']:.4f} in {cell['seconds']:.1f} s, "
            f"about {left / 60:.0f} min left",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--data", nargs="*", choices=PROBLEMS, default=[*PROBLEMS])
    counts = [*WORKERS, MANY]
    parser.add_argument("--workers", nargs="*", type=int, default=counts)
    parser.add_argument("--seeds", nargs="*", type=int, default=[*SEEDS])
    options = parser.parse_args()
    found = [] if options.fresh else load(options.results)
    if not options.report:
        chosen = [PROBLEMS[name]() for name in options.data]
        run(found, chosen, options.results, options.workers, options.seeds)
    write_report(found, [*STRATEGIES, *LOWERED, *TROUBLED], (*WORKERS, MANY))


if __name__ == "__main__":
    main()
