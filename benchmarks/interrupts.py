"""Ctrl-C at random moments: every run must end soon, and leave nothing behind.

Run: `make interrupts`, or `python -m benchmarks.interrupts --runs 20`. A process trains
one model again and again, as a notebook would, and gets one to three SIGINTs, 0 to 400
milliseconds apart: while it starts, trains, ends an epoch, writes a checkpoint or
closes; in one of three runs its processes are stopped (SIGSTOP) a moment before.
After each run there may be no process of it, and no file of Shoal's in shared memory or
in the temporary folder; the model must have all its variables, finite, and predict;
handlers of signals are those of before; the run says how it ended. What is measured is
the time from the first press to the end. The third press ends the process, and another
one is started.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil

MOMENTS = ("start", "training", "epoch", "checkpoint", "closing")
STRATEGIES = ("all_reduce", "aeasgd", "downpour", "local_sgd", "diloco")
LIMIT_S = 5.0
"""Longest time from the first Ctrl-C to the end of `fit`."""

HANGS_S = 60.0
LATEST_S = 0.4  # longest delay from a moment to the first Ctrl-C, and between two
DELAYS_S = {"start": 2.5, "closing": 0.1}
"""Other longest delays: a start takes longer, an end is shorter."""

PROGRAM = """
import json, os, signal, sys
import keras, numpy as np, psutil, shoal
from shoal.runs.catalogue import list_runs
from shoal.training.checkpoint_writer import Keeper

def say(word, **more):
    sys.stdout.write("AT " + json.dumps({"word": word, **more}) + "\\n")
    sys.stdout.flush()

class Told(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.first = True
    def on_train_batch_end(self, batch, logs=None):
        if self.first:
            self.first = False
            say("training")
    def on_epoch_end(self, epoch, logs=None):
        say("epoch")
    def on_train_end(self, logs=None):
        say("closing")

keep = Keeper.keep
def told(self, checkpoint):
    say("checkpoint")
    keep(self, checkpoint)
Keeper.keep = told

random = np.random.default_rng(0)
x = random.standard_normal((4096, 8)).astype("float32")
y = x[:, :1] * 2 + random.standard_normal((4096, 1)).astype("float32")
model = keras.Sequential([
    keras.Input((8,)), keras.layers.Dense(16), keras.layers.BatchNormalization(),
    keras.layers.Dropout(0.1), keras.layers.Dense(1),
])
model.compile(keras.optimizers.SGD(0.001, momentum=0.5), "mse")
say("ready")
for line in sys.stdin:
    asked = json.loads(line)
    say("start")
    how = "interrupted"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        shoal.fit(
            model, x, y, strategy=asked["strategy"], workers=2, threads=1,
            batch_size=16, epochs=asked["epochs"], verbose=0,
            validation_data=(x[:256], y[:256]),
            callbacks=[Told()], run=sys.argv[1], checkpoint_every=0.5,
        )
        how = "finished"
    except KeyboardInterrupt:
        pass
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whatever comes now is too late
    runs = list_runs(sys.argv[1])
    status = max(runs, key=lambda run: run.started + run.id).status if runs else "none"
    every = [*model.variables, *model.optimizer.variables]
    say(
        "done", how=how, status=status,
        children=len(psutil.Process().children(recursive=True)),
        is_whole=all(np.isfinite(np.asarray(v)).all() for v in every)
        and bool(np.isfinite(model.predict(x[:8], verbose=0)).all()),
        has_handlers=handlers == (signal.default_int_handler, signal.SIG_DFL),
    )
"""


@dataclass(frozen=True, kw_only=True)
class Press:
    """The signals to one run.

    Args:
        moment: When, one of `MOMENTS`.
        strategy: Strategy of the run.
        delay_s: Seconds from the moment to the first press.
        gaps_s: Seconds from each press to the next one.
        is_stopped: Whether its processes are stopped before.
    """

    moment: str
    strategy: str
    delay_s: float
    gaps_s: tuple[float, ...]
    is_stopped: bool

    @classmethod
    def drawn(cls, dice: random.Random, number: int) -> Press:
        """Draws one case: moments take turns, all else is random."""
        moment = MOMENTS[number % len(MOMENTS)]
        return cls(
            moment=moment,
            strategy=dice.choice(STRATEGIES),
            delay_s=dice.uniform(0.0, DELAYS_S.get(moment, LATEST_S)),
            gaps_s=tuple(dice.uniform(0.0, LATEST_S) for _ in range(dice.randrange(3))),
            is_stopped=dice.random() < 1 / 3,
        )


@dataclass
class Found:
    """The result of one run.

    Args:
        seconds: Seconds from the first press to the end.
        how: "interrupted", "finished", "ended" (its process, by the third press).
        wrong: What is wrong, empty for nothing.
    """

    seconds: float
    how: str
    wrong: list[str] = field(default_factory=list[str])


class Trainee:
    """The process that trains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder / "runs")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(folder / "errors").open("ab"), text=True, cwd=folder,
            env={**os.environ, "TMPDIR": str(folder / "tmp")}, start_new_session=True,
        )  # fmt: skip
        self._said: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        if self.hear("ready", 10 * HANGS_S) is None:
            raise RuntimeError((folder / "errors").read_text()[-2000:])

    def _listen(self) -> None:
        if self.process.stdout is not None:
            for line in self.process.stdout:
                if line.startswith("AT "):
                    self._said.put(json.loads(line.removeprefix("AT ")))
        self._said.put(None)

    def hear(self, word: str, limit_s: float) -> dict[str, Any] | None:
        """Waits for a line, or for "done"; None when the process ends or hangs."""
        until = time.monotonic() + limit_s
        while True:
            try:
                said = self._said.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return None
            if said is None or said["word"] in (word, "done"):
                return said

    def run(self, press: Press) -> Found | None:
        """Trains once, and sends the signals; returns None if the process had ended."""
        if self.process.stdin is None:
            raise RuntimeError("a process without a pipe")
        epochs = 2 if press.moment == "closing" else 10_000
        asked = {"strategy": press.strategy, "epochs": epochs}
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
        said = self.hear(press.moment, HANGS_S)
        if said is None and self.process.wait(HANGS_S) == -signal.SIGINT:
            return None  # the last Ctrl-C came after the end of its run
        if said is None or said["word"] == "done":
            raise RuntimeError(f"never came to {press.moment}: {said}")
        time.sleep(press.delay_s)
        children = psutil.Process(self.process.pid).children(recursive=True)
        if press.is_stopped:
            for child in children:
                _tell(child.pid, signal.SIGSTOP)
        began = time.monotonic()
        self._press()
        for gap_s in press.gaps_s:
            if self._has_ended(gap_s):  # the run has ended: no further Ctrl-C is sent
                break
            self._press()
        said = self.hear("done", HANGS_S)
        seconds = time.monotonic() - began
        return self._judged(press, said, seconds, children)

    def _has_ended(self, limit_s: float) -> bool:
        """Whether `fit` ends within this many seconds."""
        said = self.hear("done", limit_s)
        if said is None:
            return self.process.poll() is not None
        self._said.put(said)
        return True

    def _press(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def _judged(
        self,
        press: Press,
        said: dict[str, Any] | None,
        seconds: float,
        children: list[psutil.Process],
    ) -> Found:
        found = self._ended(seconds) if said is None else _told(press, said, seconds)
        wrong = found.wrong
        if seconds > LIMIT_S:
            wrong.append(f"took {seconds:.1f} s")
        _, alive = psutil.wait_procs(children, timeout=2.0)
        alive = [c for c in alive if c.status() != psutil.STATUS_ZOMBIE]
        if alive:
            wrong.append(f"{len(alive)} processes live: {[_words(c) for c in alive]}")
        left = [str(p) for p in (self.folder / "tmp").rglob("shoal*")]
        left += [
            p.name for p in Path("/dev/shm").glob("shoal*") if _is_ours(p, began_at)
        ]
        if left:
            wrong.append(f"left: {left}")
        return found

    def _ended(self, seconds: float) -> Found:
        """Handles a process without further output: it has ended, or hangs."""
        try:
            code = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return Found(seconds, "hangs", [f"hangs: {_stack(self.process.pid)}"])
        found = Found(seconds, "ended")
        if code != -signal.SIGINT:
            found.wrong.append(f"ended with status {code}")
        return found

    def close(self) -> None:
        """Ends the process in any state."""
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            for one in (*children, self.process):
                _tell(one.pid, signal.SIGKILL)
        self.process.wait()


def _told(press: Press, said: dict[str, Any], seconds: float) -> Found:
    """What the process prints about the run."""
    found = Found(seconds, said["how"])
    if not said["is_whole"]:
        found.wrong.append("the model is not whole")
    if not said["has_handlers"]:
        found.wrong.append("handlers are others")
    if said["children"]:
        found.wrong.append(f"{said['children']} children")
    # Ctrl-C while a run closes is raised after the run has finished.
    if said["status"] not in (said["how"], "finished", "none"):
        found.wrong.append(f"the run is {said['status']}")
    return found


began_at = time.time()


def _is_ours(path: Path, since: float) -> bool:
    """Whether a file was made after a time, by this user."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and found.st_mtime > since


def _tell(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:60]
    except psutil.Error:
        return str(process.pid)


def _stack(pid: int) -> str:
    """The stack of a process that hangs, if a tool can read it."""
    try:
        done = subprocess.run(
            ["py-spy", "dump", "--pid", str(pid)],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout[-3000:]


def main() -> None:
    """Sends the signals, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    dice = random.Random(given.seed)
    presses = [Press.drawn(dice, number) for number in range(given.runs)]
    seconds: dict[tuple[str, int, bool], list[float]] = defaultdict(list)
    ends: Counter[str] = Counter()
    failures = 0
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="interrupts-") as root:
        trainee: Trainee | None = None
        for number, press in enumerate(presses):
            found = None
            while found is None:
                if trainee is None or trainee.process.poll() is not None:
                    if trainee is not None:
                        trainee.close()
                    trainee = Trainee(Path(tempfile.mkdtemp(dir=root)))
                found = trainee.run(press)
            ends[found.how] += 1
            key = (press.moment, len(press.gaps_s) + 1, press.is_stopped)
            seconds[key].append(found.seconds)
            if found.wrong:
                failures += 1
                print(f"{number}: {press}: {'; '.join(found.wrong)}", flush=True)
            if found.how == "hangs":
                trainee.close()
            if number % 25 == 24:
                print(f"{number + 1} runs, load {os.getloadavg()[0]:.1f}", flush=True)
        if trainee is not None:
            trainee.close()
    _show(seconds)
    print(f"{given.runs} runs, {dict(ends)}; {failures} of them not as they have to be")
    sys.exit(min(1, failures))


def _show(seconds: dict[tuple[str, int, bool], list[float]]) -> None:
    head = ("moment", "presses", "stopped", "runs", "median s", "most s")
    print("\n" + "".join(f"{word:>12}" for word in head))
    for (moment, presses, is_stopped), found in sorted(seconds.items()):
        middle = sorted(found)[len(found) // 2]
        stopped = "yes" if is_stopped else "no"
        row = (
            moment,
            presses,
            stopped,
            len(found),
            f"{middle:.2f}",
            f"{max(found):.2f}",
        )
        print("".join(f"{cell:>12}" for cell in row))


if __name__ == "__main__":
    main()
