"""Runs with processes that are killed and stopped at random, beside undisturbed ones.

Run: `make chaos`, or `python -m benchmarks.chaos --quick` for one strategy and a
minute. It needs `mnist.npz` in the folder $SHOAL_DATA. Runs have three workers and a
standby server; a strategy runs undisturbed, then with one spare process, then without
(`--spares 1` or `--spares 0` for one of the two). Every 15 seconds the seed
draws a worker, the server or its standby and sends it SIGKILL or SIGSTOP, until the run
ends or three minutes are over. Then

- the run ended, and committed rows x epochs samples exactly;
- its accuracy on test data is within 1 point of that of the undisturbed run;
- no process, port, shared memory or temporary file of it is left.

Goodput is committed samples / (samples per second of the undisturbed run x seconds),
from the call of `fit` to its return, and also of the time of the hits alone. It is a
figure of this machine: where all cores are busy, starting a process takes them from the
others.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_report import Hit, Result, draw, report
from benchmarks.soak import is_since
from shoal.errors import ShoalError, ShoalWarning
from tests.datasets import Digits, read_mnist

STRATEGIES = ("aeasgd", "local_sgd", "all_reduce")
WORKERS, BATCH = 3, 64
PICTURE = Path(__file__).parents[1] / "docs/assets/chaos.png"
EVERY_S = 15.0
GRACE_S = 5.0  # until the last process has ended
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


@dataclass
class Monkey:
    """Kills or stops child processes at regular times, until it is told to end.

    Args:
        seed: Seed of the choice of processes and signals.
        seconds: Duration of the disturbance, 0 for none.
    """

    seed: int
    seconds: float
    hits: list[Hit] = field(default_factory=list[Hit])
    seen: dict[int, psutil.Process] = field(default_factory=dict[int, psutil.Process])

    def run(self, is_over: threading.Event) -> None:
        """Follows child processes, and disturbs them."""
        chance = random.Random(self.seed)
        began = due = time.monotonic()
        while not is_over.wait(0.1):
            living = [p for p in children() if p.pid not in self.stopped]
            self.seen.update((p.pid, p) for p in living)
            now = time.monotonic()
            if now < due + EVERY_S or due + EVERY_S - began > self.seconds:
                continue
            due += EVERY_S
            if roles := roles_of(living):
                self._hit(roles, chance)

    @property
    def stopped(self) -> set[int]:
        """Processes that must not be disturbed again."""
        return {hit.pid for hit in self.hits}

    def _hit(
        self, roles: list[tuple[str, psutil.Process]], chance: random.Random
    ) -> None:
        name, victim = chance.choice(roles)
        number = chance.choice(SIGNALS)
        try:
            victim.send_signal(number)
        except psutil.NoSuchProcess:
            return
        hit = Hit(time.time(), name, number.name, victim.pid)
        self.hits.append(hit)
        print(f"    {hit.signal} to {hit.name} {hit.pid}", flush=True)


def children() -> list[psutil.Process]:
    """Living child processes, the oldest first."""
    found: list[tuple[float, int, psutil.Process]] = []
    for child in psutil.Process().children():
        try:
            is_dead = child.status() == psutil.STATUS_ZOMBIE
            if not is_dead and "shoal" in " ".join(child.cmdline()):
                found.append((child.create_time(), child.pid, child))
        except psutil.NoSuchProcess:
            continue
    return [child for _, _, child in sorted(found, key=lambda each: each[:2])]


def roles_of(living: Sequence[psutil.Process]) -> list[tuple[str, psutil.Process]]:
    """The leader, the standby and the workers; processes that still start are left out.

    Args:
        living: Processes, the oldest first: a leading server is older than its standby.
    """
    servers, workers = list[psutil.Process](), list[psutil.Process]()
    for process in living:
        try:
            states = {c.status for c in process.net_connections(kind="tcp")}
        except psutil.NoSuchProcess:
            continue
        if psutil.CONN_LISTEN in states:
            servers.append(process)
        elif psutil.CONN_ESTABLISHED in states:
            workers.append(process)
    named = list(zip(("server", "standby"), servers, strict=False))
    return [*named, *(("worker", worker) for worker in workers)]


def make() -> Any:
    """A small convolutional network, whose steps take milliseconds."""
    import keras

    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(8, 5, strides=2, activation="relu"),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    net.compile(
        keras.optimizers.SGD(0.03, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return net


def train(
    strategy: str, digits: Digits, epochs: int, seed: int, seconds: float, spares: int
) -> Result:
    """One run from the call of `fit` to its return, disturbed for some seconds."""
    import shoal
    from shoal.runs.events import read_events
    from shoal.runs.folder import Folder

    began, is_over = time.time(), threading.Event()
    monkey = Monkey(seed=seed, seconds=seconds)
    thread = threading.Thread(target=monkey.run, args=(is_over,))
    thread.start()
    model, error, history = make(), "", None
    try:
        history = shoal.fit(
            model, digits.x[..., None], digits.y, strategy=strategy, workers=WORKERS,
            epochs=epochs, batch_size=BATCH, verbose=0, run="chaos", max_restarts=1000,
            standby=1, spares=spares,
        )  # fmt: skip
    except ShoalError as raised:
        error = f"{type(raised).__name__}: {raised}"
    ended = time.time()
    is_over.set()
    thread.join()
    left = leftovers(monkey, began)
    _, accuracy = model.evaluate(digits.x_test[..., None], digits.y_test, verbose=0)
    events = [] if history is None else read_events(Folder.at(history.run.url))
    return Result(
        strategy=strategy,
        spares=spares,
        expected=len(digits.x) * epochs,
        began=began,
        seconds=ended - began,
        accuracy=float(accuracy),
        hits=monkey.hits,
        events=list(events),
        leftovers=left,
        error=error,
    )


def leftovers(monkey: Monkey, began: float) -> list[str]:
    """What a finished run has left, after a moment for the last processes to end."""
    until = time.monotonic() + GRACE_S
    while (found := look(monkey, began)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def look(monkey: Monkey, began: float) -> list[str]:
    """Processes, ports and files that exist now."""
    found = [f"process {pid}" for pid, p in monkey.seen.items() if p.is_running()]
    found += [
        f"port {c.laddr.port}"
        for c in psutil.Process().net_connections(kind="tcp")
        if c.status == psutil.CONN_LISTEN
    ]
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        found += [str(p) for p in folder.glob("shoal*") if is_since(p, began)]
    return found


def epochs_for(strategy: str, digits: Digits, seconds: float, spares: int) -> int:
    """Number of epochs of about this duration, from a short run."""
    result = train(strategy, digits, 3, 0, 0.0, spares)
    times = [e["time"] for e in result.events if e["kind"] == "epoch_ended"]
    return max(2, round(seconds / (times[-1] - times[-2])))


def compare(
    strategy: str, digits: Digits, seed: int, seconds: float, choices: Sequence[int]
) -> list[tuple[Result, Result]]:
    """An undisturbed run of about this many seconds, and the same run, disturbed.

    Args:
        strategy: Name of the strategy.
        digits: The data.
        seed: Seed of the signals.
        seconds: Duration of the disturbance.
        choices: Spare processes, a disturbed run for each.
    """
    epochs = epochs_for(strategy, digits, seconds, 0)
    print(f"{strategy}: {epochs} epochs of {len(digits.x):,} samples", flush=True)
    calm = train(strategy, digits, epochs, seed, 0.0, 0)
    print(f"    undisturbed: {calm.seconds:.0f} s, {calm.accuracy:.2%}", flush=True)
    pairs: list[tuple[Result, Result]] = []
    for spares in choices:
        wild = train(strategy, digits, epochs, seed, seconds, spares)
        told = f"{wild.seconds:.0f} s, {wild.accuracy:.2%}"
        print(f"    disturbed, {spares} spare(s): {told}", flush=True)
        pairs.append((calm, wild))
    return pairs


def main() -> None:
    """Parses the command line, trains, and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="aeasgd for a minute")
    parser.add_argument("--strategy", choices=STRATEGIES, help="only this one")
    parser.add_argument("--seconds", type=float, default=180.0, help="of hits")
    parser.add_argument("--spares", type=int, help="only with so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="of the picture; not with --quick")
    options = parser.parse_args()
    names = [options.strategy] if options.strategy else list(STRATEGIES)
    seconds = 60.0 if options.quick else options.seconds
    path = Path(os.environ.get("SHOAL_DATA", ""), "mnist.npz")
    if not path.is_file():
        parser.error(f"{path} is no file: set SHOAL_DATA to the folder of mnist.npz")
    digits = read_mnist(path)
    warnings.simplefilter("ignore", ShoalWarning)  # more workers than cores
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        settle(Path(folder))
        choices = (1, 0) if options.spares is None else (options.spares,)
        pairs = [
            pair
            for name in (names[:1] if options.quick else names)
            for pair in compare(name, digits, options.seed, seconds, choices)
        ]
    is_well = report(pairs)
    if not options.quick:
        draw(pairs[:: len(choices)], options.out or PICTURE)
    sys.exit(0 if is_well else 1)


def settle(folder: Path) -> None:
    """Gives this process folders of its own for runs, programs and temporary files."""
    for variable in ("TMPDIR", "SHOAL_RUNS", "SHOAL_CACHE"):
        os.environ[variable] = str(folder / variable)
        (folder / variable).mkdir()
    tempfile.tempdir = None  # Python reads the environment again


if __name__ == "__main__":
    main()
