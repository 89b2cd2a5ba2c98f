"""Private memory of server and workers beyond plain Keras, in vectors of the model.

Run: `python -m benchmarks.memory`. A model of 100 MB is trained by plain Keras, in a
process that does nothing else, and by Shoal. It measures private memory (USS) after
the first epoch, in the median. Slots that worker and server share are counted once, in
a row of their own. The server is compared with the server of a tiny model.
"""

from __future__ import annotations

import argparse
import json
import statistics as st
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import keras
import numpy as np
import psutil

import shoal
from shoal.launchers.process import ProcessLauncher

MB = 1e6
BATCH, STEPS, EPOCHS, INPUTS = 32, 60, 4, 1000
ASKED = {"server": 3.0, "worker": 2.0}


def make(megabytes: float) -> Any:
    """A perceptron of about this many bytes of weights, and plain SGD."""
    width = max(1, round(np.sqrt(megabytes * MB / 4 + INPUTS**2 / 4) - INPUTS / 2))
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((INPUTS,)),
            layers.Dense(width, activation="relu"),
            layers.Dense(width, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


def samples(workers: int) -> tuple[Any, Any]:
    """Rows for as many steps of each worker as plain Keras takes."""
    x = np.random.default_rng(0).standard_normal((BATCH * STEPS * workers, INPUTS))
    return x.astype("f4"), np.zeros(len(x), "f4")


class Watch(keras.callbacks.Callback):
    """Measures private memory of processes repeatedly, after the first epoch.

    Args:
        processes: Returns their names and what to ask.
    """

    def __init__(self, processes: Callable[[], dict[str, psutil.Process]]) -> None:
        super().__init__()
        self.found: dict[str, list[int]] = {}
        self._processes, self._is_over = processes, threading.Event()
        self._thread = threading.Thread(target=self._look_again, daemon=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins after the first."""
        self._look()
        if epoch == 0:
            self._thread.start()

    def on_train_end(self, logs: Any = None) -> None:
        """Stops."""
        self._is_over.set()
        self._thread.join()

    def _look_again(self) -> None:
        while not self._is_over.wait(0.2):
            self._look()

    def _look(self) -> None:
        for name, process in self._processes().items():
            with suppress(psutil.NoSuchProcess):  # the run ends
                private = process.memory_full_info().uss
                self.found.setdefault(name, []).append(private)


@contextmanager
def named() -> Generator[dict[str, psutil.Process]]:
    """Watches which processes are started; yields them by name."""
    start, known = ProcessLauncher.start, dict[str, psutil.Process]()

    def noted(self: ProcessLauncher, role: Any) -> str:
        token = start(self, role)
        known[role.name] = psutil.Process(self.pid(token))
        return token

    ProcessLauncher.start = noted  # type: ignore[method-assign]
    try:
        yield known
    finally:
        ProcessLauncher.start = start  # type: ignore[method-assign]


def plain(megabytes: float) -> dict[str, float]:
    """Bytes of a process that trains with plain Keras, and of the model."""
    model = make(megabytes)
    x, y = samples(1)
    watch = Watch(lambda: {"keras": psutil.Process()})
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[watch])
    return {"keras": st.median(watch.found["keras"]), "model": 4 * model.count_params()}


def ours(megabytes: float, strategy: str) -> dict[str, float]:
    """Bytes of server and worker."""
    with named() as known:
        watch = Watch(lambda: known)
        x, y = samples(2)
        batch = BATCH * (2 if strategy == "all_reduce" else 1)
        shoal.fit(
            make(megabytes), x, y, batch_size=batch, epochs=EPOCHS, verbose=0,
            callbacks=[watch], strategy=strategy, workers=2, run=False,
        )  # fmt: skip
    found = {name: st.median(values) for name, values in watch.found.items()}
    workers = [value for name, value in found.items() if "server" not in name]
    return {"server": found["server"], "worker": max(workers)}


def main() -> None:
    """Prints a table and JSON; each measurement has a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=float, default=100.0, help="megabytes")
    parser.add_argument("--quick", action="store_true", help="one strategy")
    parser.add_argument("--measure", nargs=2, metavar=("WHO", "MB"))
    given = parser.parse_args()
    if given.measure is not None:
        who, megabytes = given.measure[0], float(given.measure[1])
        found = plain(megabytes) if who == "keras" else ours(megabytes, who)
        print(json.dumps(found))
        return

    def measure(who: str, megabytes: float) -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", "--measure", who,
             str(megabytes)], check=True, capture_output=True, text=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    keras_ = measure("keras", given.model)
    vector = keras_["model"]
    print(f"model {vector / MB:.1f} MB; plain Keras {keras_['keras'] / MB:.0f} MB")
    rows = list[dict[str, Any]]()
    for strategy in (
        ("aeasgd",) if given.quick else ("aeasgd", "downpour", "all_reduce")
    ):
        small, large = measure(strategy, 0.1), measure(strategy, given.model)
        beyond = {
            "server": large["server"] - small["server"],
            "worker": large["worker"] - keras_["keras"],
        }
        for role, value in beyond.items():
            rows.append({"strategy": strategy, "role": role, "bytes": value,
                         "vectors": value / vector, "asked": ASKED[role]})  # fmt: skip
            print(
                f"{strategy:12} {role:8} {value / MB:8.1f} MB beyond   "
                f"{value / vector:5.2f} vectors (asked: at most {ASKED[role]:g})"
            )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
