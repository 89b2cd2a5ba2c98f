"""Seconds from the start of a process to a validation accuracy of 0.83 on Higgs events.

Run: `SHOAL_DATA=... python -m benchmarks.time_to_accuracy`. All programs train the same
perceptron with Adagrad at batch 64, in turns, and validate after each epoch. Imports,
starts of processes and compiling count. Elephas does not validate while it trains: it
gets the number of epochs that suffices. The search for this number does not count.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics as st
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contest import Entrant, Result
from benchmarks.throughput import DDP, PLAIN
from benchmarks.works import WORKS

ACCURACY = 0.83
MOST_EPOCHS = 40
TRIES = (4, 8, 16, 32)  # epochs of Elephas
ELEPHAS = "Elephas, asynchronous"
STRATEGIES = ("eamsgd", "diloco", "downpour", "aeasgd", "adag", "all_reduce")


def entrants(*, has_peers: bool) -> list[Entrant]:
    """Plain Keras, Shoal, and the other systems."""
    given: dict[str, Any] = {
        "work": "events", "batch": 64, "rows": WORKS["events"].rows,
        "epochs": MOST_EPOCHS, "until": ACCURACY,
    }  # fmt: skip
    found = [
        Entrant(name=name, module="keras_fit", options=("--steps", steps), **given)
        for name, steps in zip(PLAIN, ("1", "32"), strict=True)
    ]
    for name in STRATEGIES:
        options = ("--strategy", name)
        found.append(Entrant(name=name, module="shoal_fit", options=options, **given))
    if has_peers:
        both = given | {"batch": 32}
        found += [
            Entrant(name=DDP, module="torch_ddp", environment="torch", **both),
            Entrant(
                name=ELEPHAS, module="elephas_fit", environment="elephas",
                variables={"KERAS_BACKEND": "tensorflow"}, **given,
            ),
        ]  # fmt: skip
    return found


def settled(entrant: Entrant) -> Entrant | None:
    """Elephas with as many epochs as it needs; None if the maximum is too small."""
    if entrant.module != "elephas_fit":
        return entrant
    for epochs in TRIES:
        tried = replace(entrant, epochs=epochs)
        result = tried.run()
        if result is not None and result.reached_s is not None:
            return tried
    print(f"{entrant.name}: {TRIES[-1]} epochs are not enough", flush=True)
    return None


def table(found: dict[str, list[Result]]) -> str:
    """Markdown, the fastest first."""
    lines = ["| program | seconds | slowest to fastest | epochs |", "|---|---|---|---|"]
    for name in sorted(found, key=lambda name: middle(found[name])):
        spans = [math.inf if r.reached_s is None else r.reached_s for r in found[name]]
        epochs = st.median(r.epochs for r in found[name])
        lines.append(
            f"| {name} | {st.median(spans):.1f} | {max(spans):.1f} to "
            f"{min(spans):.1f} | {epochs:g} |"
        )
    return "\n".join(lines)


def middle(results: list[Result]) -> float:
    """The median of the seconds; infinite if the accuracy was not reached."""
    return st.median(math.inf if r.reached_s is None else r.reached_s for r in results)


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="1 repeat")
    parser.add_argument("--ours", action="store_true", help="no other systems")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    WORKS["events"].samples(1)  # reads the archive before the clock starts
    taking = [e for one in entrants(has_peers=not given.ours) if (e := settled(one))]
    found: dict[str, list[Result]] = {}
    for number in range(1 if given.quick else given.repeats):
        for entrant in taking:
            result = entrant.run()
            if result is None:
                continue
            found.setdefault(entrant.name, []).append(result)
            reached_s = math.inf if result.reached_s is None else result.reached_s
            print(
                f"{number + 1} {entrant.name:36} {reached_s:7.1f} s   "
                f"{result.epochs} epochs",
                flush=True,
            )
    print(f"\n{table(found)}\n")
    written = json.dumps({n: [vars(r) for r in rs] for n, rs in found.items()})
    print(written)
    if given.out is not None:
        given.out.write_text(written + "\n")


if __name__ == "__main__":
    main()
