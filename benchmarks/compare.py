"""Learning quality of every strategy on real data, at equal samples.

Run: `python -m benchmarks.compare` (`make compare`). Trains on Higgs and MNIST of
$SHOAL_DATA with the inline cluster: the real strategies, sequencer and programs, all
workers in one thread. What is finished is kept in docs/reference/learning-quality.json,
so that the command can be cut and goes on where it was; then it writes the page and
the picture. `--report` writes these from what is there, `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Programs differ little from cell to cell: XLA need not compile them again.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir(), "shoal-compare-xla"))
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import keras
import numpy as np

import shoal
from benchmarks.compare_report import write_report
from shoal.strategies import get
from shoal.training.comparing import Task, train_baseline, train_one
from tests.datasets import read_higgs, read_mnist

RESULTS = Path("docs/reference/learning-quality.json")
STRATEGIES = (
    "all_reduce", "local_sgd", "easgd", "aeasgd", "dynsgd", "diloco",
    "downpour", "adag", "eamsgd", "async_diloco",
)  # fmt: skip
# As the docstring of EAMSGD asks: the learning rate lowered by 1 - momentum.
LOWERED = {"eamsgd (rate x 0.1)": ("eamsgd", 0.1)}
WORKERS = (2, 4, 8, 16)
SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One data set and a model for it.

    Args:
        name: Name of the data.
        recipe: Model and training in words; a result counts for this recipe only.
        task: Learning-rate factor -> what to learn.
    """

    name: str
    recipe: str
    task: Callable[[float], Task]


def dense(shape: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> Any:
    """A plain multi-layer perceptron, not compiled."""
    layers = keras.layers
    model = keras.Sequential([keras.Input(shape), layers.Flatten()])
    for units in hidden:
        model.add(layers.Dense(units, activation="relu"))
    model.add(layers.Dense(classes, activation="softmax"))
    return model


def _compiled(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def higgs(folder: Path) -> Problem:
    """18,311 events for training, 4,578 for validation; 30 features, two classes."""
    events = read_higgs(folder / "atlas_higgs_22889.csv.gz")
    order = np.random.default_rng(0).permutation(len(events.x))
    x, y, cut = events.x[order], events.y[order], len(order) * 8 // 10

    def task(factor: float) -> Task:
        def make_model() -> Any:
            optimizer = keras.optimizers.Adagrad(0.03 * factor)
            return _compiled(dense((30,), (64, 64), 2), optimizer)

        return Task(
            make_model=make_model, x=x[:cut], y=y[:cut], f1="binary", epochs=20,
            validation_data=(x[cut:], y[cut:]), batch_size=32, cluster="inline",
            has_curves=False,
        )  # fmt: skip

    recipe = "MLP 30-64-64-2, Adagrad(0.03), batch_size 32, 20 epochs of 18,311 events"
    return Problem(name="Higgs", recipe=recipe, task=task)


def mnist(folder: Path) -> Problem:
    """60,000 digits for training, 10,000 for validation."""
    digits = read_mnist(folder / "mnist.npz")

    def task(factor: float) -> Task:
        def make_model() -> Any:
            optimizer = keras.optimizers.Adam(0.003 * factor)
            return _compiled(dense((28, 28), (64,), 10), optimizer)

        return Task(
            make_model=make_model, x=digits.x, y=digits.y, f1="macro", epochs=10,
            validation_data=(digits.x_test, digits.y_test), batch_size=64,
            cluster="inline", has_curves=False,
        )  # fmt: skip

    recipe = "MLP 784-64-10, Adam(0.003), batch_size 64, 10 epochs of 60,000 digits"
    return Problem(name="MNIST", recipe=recipe, task=task)


def cells() -> list[tuple[str, int, int]]:
    """(strategy, workers, seed), whole seeds first: a run that is cut is of use.

    `all_reduce` comes last: each of its steps is a call of the program for every
    worker, and by law 1 it is plain training.
    """
    grid = [(n, w, s) for s in SEEDS for n in (*STRATEGIES, *LOWERED) for w in WORKERS]
    early = [cell for cell in grid if cell[0] != "all_reduce"]
    late = [cell for cell in grid if cell[0] == "all_reduce"]
    plain = [("single", 1, seed) for seed in SEEDS]
    return plain + early + sorted(late, key=lambda cell: (cell[2], cell[1]))


def measure(problem: Problem, name: str, workers: int, seed: int) -> dict[str, Any]:
    """Trains one cell."""
    began = time.perf_counter()
    word, factor = LOWERED.get(name, (name, 1.0))
    task = problem.task(factor)
    if name == "single":
        entry = train_baseline(task, seed)
    else:
        entry = train_one(task, shoal.fit, get(word), workers, seed)
    return {
        "data": problem.name, "recipe": problem.recipe, "strategy": name,
        "workers": entry.workers, "seed": seed,
        **{key: round(value, 6) for key, value in entry.metrics.items()},
        "seconds": round(time.perf_counter() - began, 2),
    }  # fmt: skip


def load(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"] if path.is_file() else []


def save(path: Path, found: list[dict[str, Any]]) -> None:
    """Writes the file in one step: the run may be cut at any moment."""
    text = ",\n".join(json.dumps(cell) for cell in found)
    beside = path.with_suffix(".part")
    beside.write_text(f'{{"version": 1, "cells": [\n{text}\n]}}\n')
    beside.replace(path)


def run(found: list[dict[str, Any]], problems: list[Problem], path: Path) -> None:
    """Trains the cells that are missing."""
    done = {(c["recipe"], c["strategy"], c["workers"], c["seed"]) for c in found}
    todo = [
        (problem, *cell)
        for cell in cells()
        for problem in problems
        if (problem.recipe, *cell) not in done
    ]
    print(f"{len(found)} cells are there, {len(todo)} to train", flush=True)
    began = time.perf_counter()
    for number, (problem, name, workers, seed) in enumerate(todo, start=1):
        cell = measure(problem, name, workers, seed)
        found.append(cell)
        save(path, found)
        spent = time.perf_counter() - began
        left = spent / number * (len(todo) - number)
        print(
            f"{number}/{len(todo)} {problem.name} {name} x{workers} seed {seed}: "
            f"accuracy {cell['accuracy']:.4f} in {cell['seconds']:.1f} s, "
            f"about {left / 60:.0f} min left",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = [] if options.fresh else load(options.results)
    folder = Path(os.environ.get("SHOAL_DATA", "data"))
    if not options.report:
        run(found, [higgs(folder), mnist(folder)], options.results)
    write_report(found, [*STRATEGIES, *LOWERED], WORKERS)


if __name__ == "__main__":
    main()
