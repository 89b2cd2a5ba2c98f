"""From the call of `fit` to the first trained step, each in a fresh process.

Run: `python -m benchmarks.start`. Both figures start when data and model are
there; the time Python and Keras take to import is printed beside them. In a
`shoal.Session` the second call is measured, of a model that is made anew. Shoal's
own files are compiled to bytecode before, as those of every installed package are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics as st
import subprocess
import sys
import tempfile

from benchmarks.environments import compile_shoal

_PLAIN = """
import time; began = time.perf_counter()
import numpy as np, keras, shoal
from benchmarks.works import WORKS
x, y = np.ones((6400, 30), "f4"), np.zeros(6400, "i4")
model = WORKS["higgs"].make()
class First(keras.callbacks.Callback):
    at = None
    def on_train_batch_end(self, batch, logs=None):
        self.at = self.at or time.perf_counter()
first = First(); called = time.perf_counter()
{call}
print(first.at - called, called - began, time.perf_counter() - called)
"""
_SESSION = """
given = dict(
    batch_size=64, verbose=0, run=False, callbacks=[first], strategy={strategy!r},
    workers=2,
)
with shoal.Session() as session:
    session.fit(model, x, y, **given)
    model, first.at = WORKS["higgs"].make(), None
    called = time.perf_counter()
    session.fit(model, x, y, **given)
"""
_KERAS = "model.fit(x, y, batch_size=64, verbose=0, callbacks=[first])"
_SHOAL = (
    "shoal.fit(model, x, y, batch_size=64, verbose=0, run=False, "
    "callbacks=[first], strategy={strategy!r}, workers=2)"
)


def measure(call: str, cache: str) -> list[float]:
    """Seconds to the first step, of imports, and of the whole call."""
    if cache == "new":
        with tempfile.TemporaryDirectory() as empty:
            return measure(call, empty)
    out = subprocess.run(
        [sys.executable, "-c", _PLAIN.format(call=call)],
        check=True, capture_output=True, text=True,
        env={**os.environ, "SHOAL_CACHE": cache},
    )  # fmt: skip
    return [float(word) for word in out.stdout.split()[-3:]]


def main() -> None:
    """Prints a table and JSON."""
    compile_shoal()
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="1 repeat, not 5")
    repeats = 1 if parser.parse_args().quick else 5
    calls = {"keras": (_KERAS, "off")}
    cache = tempfile.mkdtemp()
    for strategy in ("aeasgd", "all_reduce"):
        call = _SHOAL.format(strategy=strategy)
        measure(call, cache)  # fills the cache of compiled programs
        calls[strategy] = (call, cache)
        calls[f"{strategy}, new model"] = (call, "new")
        calls[f"{strategy}, second fit"] = (_SESSION.format(strategy=strategy), cache)
    found: dict[str, list[list[float]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, (call, where) in calls.items():
            found[name].append(measure(call, where))
    middle = {
        name: [st.median(column) for column in zip(*rows, strict=True)]
        for name, rows in found.items()
    }
    for name, (first, imports, whole) in middle.items():
        ratio = first / middle["keras"][0]
        print(
            f"{name:22} first step {first:6.2f} s ({ratio:4.2f} x keras)   "
            f"whole call {whole:6.2f} s   imports and model {imports:5.2f} s"
        )
    print(json.dumps(middle))


if __name__ == "__main__":
    main()
