"""Elephas and Shoal side by side: the same events, model, rate, epochs and two slots.

Run: `SHOAL_DATA=... python -m benchmarks.elephas`. Each program trains three times in
a process of its own, on a session of Spark, and programs take turns. What is compared
follows the same rule: averages of an epoch, changes added once an epoch, and after
every batch. Elephas has its own environment, with the PySpark and NumPy that it needs.
"""

from __future__ import annotations

import argparse
import json
import statistics as st
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.contest import Entrant
from benchmarks.works import EVENTS, WORKS

RULES = {
    "averages": ("averaging", "synchronous"),
    "changes, each epoch": ("downpour:period=0", "epoch"),
    "changes, each batch": ("downpour:period=1", "batch"),
}
"""Rule -> the strategy of Shoal, the mode or frequency of Elephas."""
BATCH, EPOCHS, ASKED = 64, 6, 3.0
COLOURS = {"Shoal": "#0072B2", "Elephas": "#E69F00"}
HEADER = (
    "| rule | program | steady rows/s | second call | process to model | F1 | "
    "rows trained |\n|---|---|---|---|---|---|---|"
)


def entrants(epochs: int, rules: Sequence[str]) -> list[Entrant]:
    """Both programs for each of some rules."""
    found: list[Entrant] = []
    for rule in rules:
        ours, theirs = RULES[rule]
        given: dict[str, Any] = {
            "work": "events", "batch": BATCH, "rows": EVENTS, "epochs": epochs,
            "limit_s": 600.0,
        }  # fmt: skip
        found.append(
            Entrant(
                name=f"{rule} | Elephas, {theirs}", module="spark_elephas",
                options=("--mode", theirs), environment="elephas", **given,
                variables={"KERAS_BACKEND": "tensorflow", "PYTHONWARNINGS": "ignore"},
            )
        )  # fmt: skip
        found.append(
            Entrant(
                name=f"{rule} | Shoal, {ours}", module="spark_shoal",
                options=("--mode", ours), **given,
            )
        )  # fmt: skip
    return found


def middle(answers: list[dict[str, Any]], name: str) -> float:
    """Returns the median of a number that programs told."""
    return float(st.median(one[name] for one in answers))


def rate(answers: list[dict[str, Any]]) -> float:
    """Returns the median rows/s of an epoch, without the start of a training."""
    return EVENTS / st.median(one["spans"][0] for one in answers)


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Returns a table, and the ratios that are required."""
    lines = [HEADER]
    for name, answers in found.items():
        cold_s = st.median(one["trained_at"] - one["began"] for one in answers)
        f1 = sorted(one["f1"] for one in answers)
        lines.append(
            f"| {name} | {rate(answers):,.0f} | {middle(answers, 'whole_s'):.1f} s | "
            f"{cold_s:.1f} s | {st.mean(f1):.3f} ({f1[0]:.3f} to {f1[-1]:.3f}) | "
            f"{middle(answers, 'trained'):,.0f} |"
        )
    lines += ["", "| rule | steady, x Elephas | second call | process to model |"]
    lines.append("|---|---|---|---|")
    names = [*found]
    for theirs, ours in zip(names[::2], names[1::2], strict=True):
        a, b = found[theirs], found[ours]
        cold = [one["trained_at"] - one["began"] for one in (*a, *b)]
        cold_ratio = st.median(cold[: len(a)]) / st.median(cold[len(a) :])
        lines.append(
            f"| {ours.partition(' |')[0]} | {rate(b) / rate(a):.1f} | "
            f"{middle(a, 'whole_s') / middle(b, 'whole_s'):.1f} | {cold_ratio:.1f} |"
        )
    best = max(rate(found[name]) for name in names[::2])
    least = min(rate(found[name]) for name in names[1::2])
    lines.append(
        f"\nThe slowest of Shoal is {least / best:.2f} times the fastest of Elephas; "
        f"{ASKED:g} is asked of the same rule."
    )
    return "\n".join(lines)


def rules_of(found: Iterable[str]) -> list[str]:
    """Returns the rules of participants, each once."""
    return list(dict.fromkeys(name.partition(" |")[0] for name in found))


def plot(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draws steady speed and F1 of both programs for each rule."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    for ax, title, value, form in (
        (axes[0], "rows a second, steady", rate, ",.0f"),
        (axes[1], "F1 on held out events", lambda a: middle(a, "f1"), ".3f"),
    ):
        for offset, program in enumerate(("Shoal", "Elephas")):
            names = [name for name in found if f"| {program}" in name]
            values = [value(found[name]) for name in names]
            places = [number + 0.4 * offset for number in range(len(names))]
            bars = ax.barh(places, values, 0.38, color=COLOURS[program], label=program)
            ax.bar_label(bars, [format(v, form) for v in values], padding=3)
        ax.set_yticks([n + 0.2 for n in range(len(found) // 2)], rules_of(found))
        ax.invert_yaxis()
        ax.margins(x=0.25)
        ax.set_title(title)
    axes[1].set_yticks([])
    axes[0].legend(loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Prints tables and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--rules", nargs="*", choices=RULES, default=[*RULES])
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    parser.add_argument("--plot", type=Path, help="a file for the picture")
    given = parser.parse_args()
    WORKS["events"].samples(1)  # read from the archive now, and kept
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(given.repeats):
        for entrant in entrants(given.epochs, given.rules):
            answer = entrant.answer()
            if answer is None:
                continue
            found.setdefault(entrant.name, []).append(answer)
            print(
                f"{number + 1} {entrant.name:44} {EVENTS / answer['spans'][0]:9,.0f} "
                f"rows/s   call {answer['whole_s']:6.1f} s   F1 {answer['f1']:.3f}",
                flush=True,
            )
    print(f"\n{table(found)}\n")
    if given.plot is not None:
        plot(found, given.plot)
    written = json.dumps(found)
    print(written)
    if given.out is not None:
        given.out.write_text(written + "\n")


if __name__ == "__main__":
    main()
