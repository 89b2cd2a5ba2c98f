"""Compares speeds on a machine whose pace changes: programs that take short turns.

Run: `python -m benchmarks.paired`. Each program trains all the time, in a process of
its own with all its children, but only one at a time may run: the others are stopped
(SIGSTOP). Turns are short against the changes of the machine's pace, so the ratio of
two programs in one turn says more than that of two trainings of a minute. `throughput`
is the figure for whole trainings; this one tells whether a change was for the better:

    python -m benchmarks.paired --turns 12 --strategy all_reduce --batch 256 \\
        --other ../before     # the same, of another checkout
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import signal
import statistics as st
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROWS = 64_000
SETTLE_S = 0.4  # seconds of a turn before samples count
START_S = 180.0
HERE = Path(__file__).parents[1]


class Counter:
    """A count of trained samples, in a file that two processes map."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def value(self) -> int:
        """The count."""
        return struct.unpack("q", self._memory[:])[0]

    def add(self, samples: int) -> None:
        """Counts samples."""
        self._memory[:] = struct.pack("q", self.value + samples)


def train(who: str, batch: int, counter: Counter) -> None:
    """Trains until it is killed.

    Args:
        who: "keras" or the name of a strategy.
        batch: Samples of a step.
        counter: Counter of its samples.
    """
    import keras

    import shoal
    from benchmarks.works import WORKS

    work = WORKS["higgs"]
    x, y = work.samples(ROWS)
    steps = 32  # steps of an execution, as in `throughput`
    given: dict[str, Any] = {"batch_size": batch, "epochs": 1_000_000, "verbose": 0}
    if who == "keras":

        class Count(keras.callbacks.Callback):
            def on_train_batch_end(self, batch_: int, logs: Any = None) -> None:
                counter.add(steps * batch)

        work.make(steps).fit(x, y, callbacks=[Count()], **given)
        return
    from shoal.training.driver import Driver

    before = Driver.on_records

    def count(self: Driver, records: Any, sums: Any) -> None:
        counter.add(sum(record.samples for record in records))
        before(self, records, sums)

    Driver.on_records = count  # type: ignore[method-assign]
    shoal.fit(work.make(), x, y, strategy=who, workers=2, run=False, **given)


@dataclass
class Runner:
    """A program that trains while it has the turn.

    Args:
        name: Name in the table.
        who: See `train`.
        batch: Samples of a step.
        home: Checkout whose code runs.
        folder: Folder for its counter.
    """

    name: str
    who: str
    batch: int
    home: Path
    folder: Path
    rates: list[float] = field(default_factory=list[float])
    _process: psutil.Popen | None = None
    _family: list[psutil.Process] = field(default_factory=list[psutil.Process])

    def start(self) -> None:
        """Starts it, and stops it once it trains."""
        path = self.folder / f"{self.name.replace(' ', '-')}.count"
        self._counter = Counter(path)
        command = [sys.executable, str(Path(__file__).resolve()), "--train", self.who,
                   str(self.batch), str(path)]  # fmt: skip
        paths = f"{self.home / 'src'}{os.pathsep}{HERE}"
        self._process = psutil.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_S
        while self._counter.value < ROWS:  # the epoch that compiles
            if self._process.poll() is not None or time.monotonic() > until:
                line = " ".join(command)
                sys.exit(f"{self.name} does not train; try: PYTHONPATH={paths} {line}")
            time.sleep(0.1)
        self._family = self._everybody()
        self._tell(signal.SIGSTOP)

    def turn(self, seconds: float) -> None:
        """Lets it train for this long."""
        self._tell(signal.SIGCONT)
        time.sleep(SETTLE_S)
        before, began = self._counter.value, time.perf_counter()
        time.sleep(seconds)
        done, took_s = self._counter.value - before, time.perf_counter() - began
        self._tell(signal.SIGSTOP)
        self.rates.append(done / took_s)

    def end(self) -> None:
        """Kills its processes."""
        for process in self._everybody():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.wait()

    def _everybody(self) -> list[psutil.Process]:
        """Its processes, also before it trains."""
        if self._family or self._process is None:
            return self._family
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self._process, *self._process.children(True)]
        return []

    def _tell(self, number: signal.Signals) -> None:
        for process in self._family:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                sys.exit(f"{self.name}: process {process.pid} is gone")


def report(runners: list[Runner]) -> None:
    """Prints medians, and ratios of turns with their quartiles."""
    first = runners[0]
    for runner in runners:
        ratios = [a / b for a, b in zip(runner.rates, first.rates, strict=True)]
        low, middle, high = st.quantiles(ratios, n=4)
        print(
            f"{runner.name:28} {st.median(runner.rates):10,.0f} samples/s   x "
            f"{first.name}: {middle:.3f} ({low:.3f} to {high:.3f})"
        )


def main() -> None:
    """Parses the command line, and takes turns."""
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), Counter(Path(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="all_reduce")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    given = parser.parse_args()
    if given.turns < 2:
        parser.error("--turns is at least 2, for quartiles")
    with tempfile.TemporaryDirectory(prefix="paired-") as folder:
        place = Path(folder)
        wanted = [("keras", "keras", HERE), (given.strategy, given.strategy, HERE)]
        if given.other is not None:
            home = given.other.resolve()
            wanted.append((f"{given.strategy} of {home.name}", given.strategy, home))
        runners = [Runner(n, who, given.batch, home, place) for n, who, home in wanted]
        begun: list[Runner] = []
        try:
            for runner in runners:
                begun.append(runner)
                runner.start()
            for number in range(given.turns):
                for runner in runners if number % 2 else runners[::-1]:
                    runner.turn(given.seconds)
                print(f"turn {number + 1} of {given.turns}", flush=True)
        finally:
            for runner in begun:
                runner.end()
        report(runners)


if __name__ == "__main__":
    main()
