"""Kills the training process at random moments, and resumes its run each time.

Run: `python -m benchmarks.kills`. Each run is killed once, every third one again while
it is resumed; it must end with every sample of every epoch counted once.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STRATEGIES = ("aeasgd", "all_reduce", "local_sgd", "downpour", "diloco")
ROWS, EPOCHS = 60_000, 6
POLL_S = 0.02
LATEST = 0.9  # share of the undisturbed time; later the run may have ended
LONGEST_END_S = 60.0  # until the processes of the last killed run have ended

_TRAIN = f"""
import sys, numpy as np, keras, shoal
x = np.random.default_rng(0).normal(size=({ROWS}, 30)).astype("f4")
y = (x[:, 0] * x[:, 1] > 0).astype("i4")
layers = keras.layers
model = keras.Sequential([keras.Input((30,)), layers.Dense(128, "relu"),
                          layers.Dropout(0.2), layers.Dense(2, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
shoal.fit(model, x, y, epochs={EPOCHS}, batch_size=64, strategy=sys.argv[1], workers=2,
          run=sys.argv[2], verbose=0, checkpoint_every=0.5, validation_split=0.05)
"""
_RESUME = "import sys, shoal; shoal.resume(sys.argv[1], verbose=0)"


def run_for(
    code: str, *words: str, root: Path | None = None, seconds: float | None = None
) -> tuple[int, float]:
    """Runs Python, and kills it some seconds after its run has begun.

    Args:
        code: A program.
        *words: Its arguments.
        root: Folder in which its run will be, None if the run exists.
        seconds: Until it is killed, None to let it end.

    Returns:
        How it ended, as `subprocess` says it, and the Unix time when its run began.
    """
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command) as process:
        while root is not None and not begun(root) and process.poll() is None:
            time.sleep(POLL_S)
        began = time.time()
        try:
            return process.wait(seconds), began
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(), began


def begun(root: Path) -> bool:
    """Whether a run has stored its first files."""
    return any(root.glob("*/inputs/inputs.pickle"))


def left_over(longest_s: float = LONGEST_END_S) -> set[str]:
    """Processes and shared memory of Shoal, which may take a while to end."""
    until = time.monotonic() + longest_s
    while (found := _left_over()) and time.monotonic() < until:
        time.sleep(POLL_S)
    return found


def _left_over() -> set[str]:
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "shoal" in name}
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes()
            if words.startswith(b"shoal: ") or b"shoal.launchers.child" in words:
                found.add(place.parent.name)
        except OSError:
            continue
    return found


def undisturbed(root: Path, strategy: str) -> float:
    """Returns the seconds of a run, from the first moment of a kill to its end."""
    from shoal.runs.events import read_events
    from shoal.runs.store import open_run

    found: list[float] = []
    for number in range(2):  # the first run compiles, later ones use its cache
        place = root / str(number)
        _, began = run_for(_TRAIN, strategy, str(place), root=place)
        [folder] = place.iterdir()
        events = read_events(open_run(str(folder)).folder)
        [ended] = [e["time"] for e in events if e["kind"] == "run_finished"]
        found.append(ended - began)
    return round(min(found), 2)


def one(root: Path, strategy: str, draw: random.Random, whole_s: float) -> str:
    """Kills one run and resumes it; returns what happened."""
    from shoal.runs.store import open_run

    moment = draw.uniform(0.0, LATEST * whole_s)
    run_for(_TRAIN, strategy, str(root), root=root, seconds=moment)
    [folder] = root.iterdir()
    kills = 1
    summary = open_run(str(folder)).summary()
    if summary.status == "finished":
        return f"{moment:5.1f} s   over before it was killed"
    before = summary.samples_committed
    if draw.random() < 1 / 3:
        run_for(_RESUME, str(folder), seconds=draw.uniform(0.0, LATEST * whole_s))
        kills += 1
    began = time.perf_counter()
    if open_run(str(folder)).summary().status != "finished":
        run_for(_RESUME, str(folder))
    summary = open_run(str(folder)).summary()
    exact = summary.samples_committed == summary.samples_expected
    mark = "exact" if exact and summary.status == "finished" else "BROKEN"
    return (
        f"{moment:5.1f} s, {kills} kill(s), {before:7,} samples before, then "
        f"{summary.samples_committed:,} of {summary.samples_expected:,} in "
        f"{time.perf_counter() - began:.1f} s: {mark}"
    )


def main() -> None:
    """Prints a line a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="4 runs")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        whole_s = {name: undisturbed(Path(folder, name), name) for name in STRATEGIES}
        print(f"undisturbed, in seconds: {whole_s}", flush=True)
        for number in range(4 if given.quick else given.runs):
            strategy = STRATEGIES[number % len(STRATEGIES)]
            said = one(Path(folder, str(number)), strategy, draw, whole_s[strategy])
            lines.append(said)
            print(f"{number:3} {strategy:10} {said}", flush=True)
    broken = sum("BROKEN" in line for line in lines)
    exact = sum("exact" in line for line in lines)
    left = sorted(left_over()) or "nothing"
    print(f"{exact} exact, {broken} broken; left over: {left}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
