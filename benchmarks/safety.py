"""What safety costs: samples/s with a standby, checkpoints and a record, and without.

Run: `python -m benchmarks.safety`. The Higgs-shaped MLP, two workers, in turns. "All
off" keeps no run folder. TLS is between hosts only: see `exchange`.
"""

from __future__ import annotations

import argparse
import json
import statistics as st
import tempfile
from typing import Any

import shoal
from benchmarks.entrants.keras_fit import Marks
from benchmarks.works import WORKS

BATCHES = {"aeasgd": 64, "all_reduce": 256}
CHECKPOINT_S = 10.0
WAYS: dict[str, dict[str, Any]] = {
    "all off": {"run": False},
    "record": {"checkpoint_every": False},
    "record, checkpoints": {"checkpoint_every": CHECKPOINT_S},
    "standby": {"run": False, "standby": 1},
    "all on": {"checkpoint_every": CHECKPOINT_S, "standby": 1},
}
LEAST = 0.9


def measure(strategy: str, rows: int, epochs: int, way: dict[str, Any]) -> float:
    """Samples/s of the epochs after the first, in the median."""
    work, marks = WORKS["higgs"], Marks()
    x, y = work.samples(rows)
    with tempfile.TemporaryDirectory() as folder:
        shoal.fit(
            work.make(), x, y, batch_size=BATCHES[strategy], epochs=epochs, verbose=0,
            callbacks=[marks], strategy=strategy, workers=2, **({"run": folder} | way),
        )  # fmt: skip
    return rows / st.median(marks.spans[1:])


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=128_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="1 repeat of 3 epochs")
    given = parser.parse_args()
    if given.quick:
        given.repeats, given.epochs = 1, 3
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(given.repeats):
        for strategy in BATCHES:
            for name, way in WAYS.items():
                rate = measure(strategy, given.rows, given.epochs, way)
                found.setdefault(strategy, {}).setdefault(name, []).append(rate)
                print(f"{strategy:11} {name:20} {rate:10,.0f} samples/s", flush=True)
    for strategy, rates in found.items():
        off = st.median(rates["all off"])
        for name, values in rates.items():
            middle = st.median(values)
            print(
                f"{strategy:11} {name:20} median {middle:10,.0f} samples/s   "
                f"{middle / off:5.3f} of all off"
            )
    print(f"asked: all on at least {LEAST} of all off")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
