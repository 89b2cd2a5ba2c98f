"""One worker against plain Keras on the same GPU, and two workers that share it.

Run: `make bench-gpu`, on a machine with an NVIDIA GPU and a backend that is built for
it; elsewhere it says so. The perceptron, where starting programs is most of the time,
the small ResNet and a small transformer.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.contest import Aim, Contest, Entrant, keep
from benchmarks.throughput import PLAIN
from benchmarks.works import WORKS
from shoal.clusters.gpus import reaches_gpus, usable_gpus

ROWS = {"higgs": 512_000, "images": 6_400, "transformer": 25_600}
ONE, SHARED = "one worker", ("aeasgd", "all_reduce")


def contest(work: str, rows: int) -> Contest:
    """Plain Keras, one worker, and two that share the GPU."""
    given: dict[str, Any] = {"work": work, "batch": 64, "rows": rows}
    entrants = [
        Entrant(name=name, module="keras_fit", options=("--steps", steps), **given)
        for name, steps in zip(PLAIN, ("1", "32"), strict=True)
    ]
    one = ("--strategy", "single", "--workers", "1")
    entrants.append(Entrant(name=ONE, module="shoal_fit", options=one, **given))
    for name in SHARED:
        options = ("--strategy", name, "--workers", "2")
        entrants.append(
            Entrant(
                name=f"{name}, two workers", module="shoal_fit", options=options,
                **given,
            )
        )  # fmt: skip
    aims = [Aim(ONE, PLAIN, 1.0, "best plain `fit` on the same GPU")]
    return Contest(f"On a GPU: {work}, batch 64", entrants, aims)


def main() -> None:
    """Prints tables and JSON, or the reason why nothing can be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", metavar="WORK", default=[*ROWS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="1 repeat, fewer rows")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    backend = os.environ.get("KERAS_BACKEND", "jax")
    gpus = usable_gpus()
    if not gpus:
        print("No NVIDIA GPU here: nothing was measured.")
        return
    if not reaches_gpus(backend):
        print(f"{backend} is not built for GPUs here: nothing was measured.")
        return
    held = list[Contest]()
    for work in given.works:
        rows = ROWS[work] // (8 if given.quick else 1)
        WORKS[work].samples(1)
        held.append(contest(work, rows))
        print(f"== {held[-1].title}, on {gpus[0].total_mib} MiB", flush=True)
        held[-1].hold(1 if given.quick else given.repeats)
    keep(held, given.out)


if __name__ == "__main__":
    main()
