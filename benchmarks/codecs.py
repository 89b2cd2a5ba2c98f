"""Accuracy with codecs: Higgs events on two hosts, each codec in turn.

Run as root: `SHOAL_DATA=... python -m benchmarks.codecs`. The perceptron of
`time_to_accuracy`, ten epochs; loss of the last one and the best accuracy on what was
held back, means of the repeats. Seeds differ from repeat to repeat, not from codec to
codec.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics as st
from typing import Any

import keras

import shoal
from benchmarks.entrants.shoal_hosts import fit_on_hosts
from benchmarks.works import WORKS

CODECS = ("float32", "bfloat16", "int8")
STRATEGIES: dict[str, dict[str, Any]] = {
    "aeasgd": {}, "downpour": {}, "diloco": {"period": 20}, "all_reduce": {},
}  # fmt: skip
EPOCHS = 10


def measure(name: str, codec: str, seed: int) -> tuple[float, float]:
    """Loss of training and best accuracy of validation."""
    work = WORKS["events"]
    keras.utils.set_random_seed(seed)
    x, y = work.samples(work.rows)
    history = fit_on_hosts(
        None, model=work.make(), x=x, y=y, batch_size=64, epochs=EPOCHS, codec=codec,
        strategy=shoal.strategies.get(name, **STRATEGIES[name]),
        validation_data=work.held_back(),
    ).history  # fmt: skip
    return history["loss"][-1], max(history["val_accuracy"])


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 repeat")
    given = parser.parse_args()
    if os.geteuid() or shutil.which("ip") is None:
        print("Not measured: it takes root and iproute2, for network namespaces.")
        return
    rows = list[dict[str, Any]]()
    print("| strategy | codec | loss | accuracy |\n|---|---|---|---|", flush=True)
    for name in STRATEGIES:
        for codec in CODECS:
            seeds = range(1 if given.quick else given.repeats)
            found = [measure(name, codec, seed) for seed in seeds]
            loss, accuracy = (st.mean(each) for each in zip(*found, strict=True))
            rows.append({"strategy": name, "codec": codec, "found": found})
            print(f"| `{name}` | {codec} | {loss:.4f} | {accuracy:.4f} |", flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
