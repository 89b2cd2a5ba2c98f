"""The cost of checkpoints: the share of an interval in which training waits for one.

Run: `python -m benchmarks.pause`. It trains the Higgs-shaped MLP with a checkpoint each
2 s in a local folder, and without, in turns. The thread that follows the run is busy
from the bytes of a checkpoint until the writing thread has it; the server is busy while
it packs. The command ends with 1 if one of both is busy for 5 % of the interval.
"""

from __future__ import annotations

import argparse
import copyreg
import json
import statistics as st
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from benchmarks.entrants.keras_fit import Marks
from benchmarks.works import WORKS
from shoal.engine.server.checkpoint import ServerCheckpoint
from shoal.engine.server.spec import ServerSpec
from shoal.training.driver import Driver

BATCH = {"aeasgd": 64, "all_reduce": 256}
MOST = 0.05


@dataclass
class Seen:
    """Measurements of checkpoints, one number for each checkpoint.

    Args:
        at: Time of each, in seconds.
        read: Seconds in which this process read its bytes.
        kept: Seconds in which this process added callbacks and history.
        packed: Seconds in which the server made their bytes.
    """

    at: list[float] = field(default_factory=list[float])
    read: list[float] = field(default_factory=list[float])
    kept: list[float] = field(default_factory=list[float])
    packed: list[float] = field(default_factory=list[float])

    def shares(self, seconds: list[float]) -> list[float]:
        """Parts of the intervals, each from one checkpoint to the next."""
        spans = np.diff(self.at)
        return [s / span for s, span in zip(seconds, spans, strict=False)]

    @property
    def driver(self) -> list[float]:
        """Seconds of the thread that follows the run."""
        return [a + b for a, b in zip(self.read, self.kept, strict=False)]


def timed(function: Callable[..., Any], note: Callable[[float], None]) -> Any:
    """Returns a function that measures each call."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        found = function(*arguments)
        note(time.perf_counter() - began)
        return found

    return call


def swap(old: Any, new: Any) -> None:
    """Replaces a function wherever the engine uses it."""
    name = old.__name__
    for module in [m for n, m in sys.modules.items() if n.startswith("shoal.engine")]:
        if vars(module).get(name) is old:
            setattr(module, name, new)


def watched(file: Path, kind: type, fields: dict[str, Any]) -> Any:
    """Runs in a server's process when it reads its spec."""
    from shoal.engine.server.checkpoint import pack_checkpoint

    def note(seconds: float) -> None:
        with file.open("a") as lines:
            lines.write(f"{seconds}\n")

    swap(pack_checkpoint, timed(pack_checkpoint, note))
    return kind(**fields)


@contextmanager
def watching(file: Path) -> Generator[Seen]:
    """Measures the functions of checkpoints, here and in the server's process."""
    from shoal.engine.server.checkpoint import read_checkpoint

    seen, keep = Seen(), Driver.on_checkpoint
    read, kept = timed(read_checkpoint, seen.read.append), timed(keep, seen.kept.append)

    def on_checkpoint(self: Driver, found: ServerCheckpoint) -> None:
        seen.at.append(time.perf_counter())
        kept(self, found)

    swap(read_checkpoint, read)
    Driver.on_checkpoint = on_checkpoint
    copyreg.pickle(ServerSpec, lambda spec: (watched, (file, ServerSpec, vars(spec))))
    try:
        yield seen
    finally:
        swap(read, read_checkpoint)
        Driver.on_checkpoint = keep
        copyreg.dispatch_table.pop(ServerSpec, None)
    seen.packed = [float(line) for line in file.read_text().split()]


def train(
    strategy: str, x: Any, y: Any, *, epochs: int, every: float | bool
) -> tuple[float, Seen]:
    """Returns samples per second after the first epoch, and the measurements."""
    marks = Marks()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "packed")
        file.touch()
        with watching(file) as seen:
            shoal.fit(
                WORKS["higgs"].make(), x, y, batch_size=BATCH[strategy],
                epochs=epochs, verbose=0, callbacks=[marks], strategy=strategy,
                workers=2, run=str(Path(folder, "runs")), checkpoint_every=every,
            )  # fmt: skip
    return len(x) / st.median(marks.spans[1:]), seen


def told(rates: dict[bool, list[float]], found: list[Seen]) -> dict[str, float]:
    """The figures of one strategy."""
    driver = [share for seen in found for share in seen.shares(seen.driver)]
    server = [share for seen in found for share in seen.shares(seen.packed)]
    return {
        "checkpoints": sum(len(seen.at) for seen in found),
        "interval_s": st.median(np.concatenate([np.diff(seen.at) for seen in found])),
        "driver_ms": 1e3 * st.median(s for seen in found for s in seen.driver),
        "server_ms": 1e3 * st.median(s for seen in found for s in seen.packed),
        "driver_share": st.median(driver),
        "driver_worst": max(driver),
        "server_share": st.median(server),
        "server_worst": max(server),
        "samples_per_s": st.median(rates[True]),
        "without": st.median(rates[False]),
    }


def main() -> None:
    """Prints a line for each training, then a block for each strategy, and JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rows", type=int, default=256_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every", type=float, default=2.0, help="seconds")
    parser.add_argument("--quick", action="store_true", help="1 repeat of 2 epochs")
    given = parser.parse_args()
    if given.quick:
        given.repeats, given.epochs = 1, 2
    x, y = WORKS["higgs"].samples(given.rows)
    figures: dict[str, dict[str, float]] = {}
    for strategy in BATCH:
        rates: dict[bool, list[float]] = {True: [], False: []}
        found: list[Seen] = []
        for _ in range(given.repeats):
            for is_kept in (True, False):
                every = given.every if is_kept else False
                speed, seen = train(strategy, x, y, epochs=given.epochs, every=every)
                rates[is_kept].append(speed)
                found += [seen] if is_kept else []
                words = f"every {every} s" if is_kept else "none"
                print(f"{strategy:10} {words:12} {speed:9,.0f} samples/s", flush=True)
        figures[strategy] = told(rates, found)
    for strategy, figure in figures.items():
        print(f"\n{strategy}")
        for name, value in figure.items():
            text = f"{value:.2%}" if "share" in name or "worst" in name else None
            print(f"  {name:14} {text or f'{value:,.1f}'}")
    print(json.dumps(figures))
    worst = max(max(f["driver_share"], f["server_share"]) for f in figures.values())
    sys.exit(1 if worst >= MOST else 0)


if __name__ == "__main__":
    main()
