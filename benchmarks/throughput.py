"""Steady-state samples per second on the Higgs-shaped MLP, against plain Keras.

Run: `python -m benchmarks.throughput`. Every figure is the median of alternating
repeats in one run; the first epoch of each, with its compilation, is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics as st
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import shoal


def make(steps_per_execution: int = 1) -> Any:
    """30-600-600-2, dropout 0.2, adagrad."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((30,)),
            layers.Dense(600, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(600, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(
        "adagrad",
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


class Marks(keras.callbacks.Callback):
    """Notes when epochs begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[float, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops the clock."""
        self.spans.append((self._began, time.perf_counter()))


def data(rows: int) -> tuple[Any, Any]:
    """Samples of the shape of the Higgs data, with something to be learnt."""
    x = np.random.default_rng(0).standard_normal((rows, 30)).astype("f4")
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype("i4")


def rate(marks: Marks, rows: int) -> float:
    """Samples per second of the epochs after the first."""
    return rows / st.median(end - began for began, end in marks.spans[1:])


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=128_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="1 repeat of 2 epochs")
    given = parser.parse_args()
    if given.quick:
        given.repeats, given.epochs = 1, 2
    x, y = data(given.rows)

    def plain(batch: int, steps: int) -> float:
        marks = Marks()
        make(steps).fit(
            x, y, batch_size=batch, epochs=given.epochs, verbose=0, callbacks=[marks]
        )
        return rate(marks, given.rows)

    def ours(strategy: str, batch: int) -> float:
        marks = Marks()
        shoal.fit(
            make(), x, y, batch_size=batch, epochs=given.epochs, verbose=0,
            callbacks=[marks], strategy=strategy, workers=2, run=False,
        )  # fmt: skip
        return rate(marks, given.rows)

    cases: dict[str, Callable[[], float]] = {
        "keras 64 spe 1": lambda: plain(64, 1),
        "keras 64 spe 32": lambda: plain(64, 32),
        "aeasgd 64": lambda: ours("aeasgd", 64),
        "downpour 64": lambda: ours("downpour", 64),
        "keras 256 spe 1": lambda: plain(256, 1),
        "keras 256 spe 32": lambda: plain(256, 32),
        "all_reduce 256": lambda: ours("all_reduce", 256),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(given.repeats):
        for name, measure in cases.items():
            found[name].append(measure())
            print(f"{name:18} {found[name][-1]:10,.0f} samples/s", flush=True)
    middle = {name: st.median(values) for name, values in found.items()}
    best = {
        batch: max(v for n, v in middle.items() if n.startswith(f"keras {batch}"))
        for batch in (64, 256)
    }
    for name, value in middle.items():
        ratio = value / best[256 if "256" in name else 64]
        print(f"{name:18} median {value:10,.0f} samples/s  {ratio:5.2f} x best plain")
    print(json.dumps(middle))


if __name__ == "__main__":
    main()
