"""A million wrong frames at the server of a run that trains meanwhile.

Run: `make fuzz`, or `python -m benchmarks.fuzz --quick`. The fuzzer fires at the live
server and at a dummy listener in turns, within one run: what others do on the machine
is the same for both, and the ratio of the two throughputs is what the fire costs. A
third of the connections know no key, the others know a worker's; beside them thousands
begin to greet and dawdle.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil

import shoal
from benchmarks.fuzz_callers import Aim, serve_dummy, serve_orders
from shoal.engine.controller.controller import Controller
from shoal.engine.server.spec import ServerSpec
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.training.driver import Driver
from shoal.wire.handshake import worker_secret

ROWS, BATCH, PERIOD = 200_000, 64, 20
LIVE_S, DUMMY_S = 10.0, 4.0
BURST = 400  # slow connections in every other phase: more than a server accepts
SETTLE_S = 0.5  # after a change of the target; frames of it are not counted
MIB = 1 << 20


class Watch:
    """Records the server's address and the committed samples of the run."""

    def __init__(self) -> None:
        self.aim: Aim | None = None
        self.committed: Counter[int] = Counter()
        self.samples = 0
        self.has_trained = threading.Event()

    def install(self) -> None:
        """Reads the state of the run of this process."""
        give, on_records = Controller.give, Driver.on_records

        def keep(controller: Controller, server: ServerSpec, make: Any) -> None:
            self.aim = Aim(
                address=controller._pool.main.address,
                key=worker_secret(server.secret),
                digest=server.sizes.digest,
                metrics=server.sizes.metrics,
                up_bytes=server.sizes.up_bytes,
            )
            give(controller, server, make)

        def count(driver: Driver, records: Any, sums: Any) -> None:
            for record in records:
                self.committed[record.epoch] += record.samples
                self.samples += record.samples
            on_records(driver, records, sums)

        Controller.give, Driver.on_records = keep, count  # type: ignore[method-assign]


class Campaign(threading.Thread):
    """Sends in turns until enough was sent, then lets the run end."""

    def __init__(self, watch: Watch, frames: int, slow: int, rate: float) -> None:
        super().__init__(name="campaign")
        self._watch, self._frames, self._slow, self._rate = watch, frames, slow, rate
        self.tally: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.samples: Counter[str] = Counter()
        self.rss: list[int] = []
        self.is_over, self.error = threading.Event(), ""

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.is_over.set()

    def _run(self) -> None:
        self._watch.has_trained.wait()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        dummy = context.Process(target=serve_dummy, args=(theirs,))
        server = self._server()
        dummy.start()
        live = self._watch.aim
        if live is None:
            raise RuntimeError("the run has no server")
        blind = Aim(**{**vars(live), "address": ours.recv(), "is_dummy": True})
        pipe, end = context.Pipe()
        fuzzer = context.Process(target=serve_orders, args=(end, live, blind))
        fuzzer.start()
        pipe.recv()  # the fuzzer has loaded its imports
        self.rss.append(server.memory_info().rss)
        try:
            self._fire(pipe, server)
        finally:
            pipe.send(None)
            ours.send(None)
            fuzzer.join(20)
            dummy.join(20)

    def _server(self) -> psutil.Process:
        """The server: it is the first process that a run starts."""
        children = psutil.Process().children()
        return min(children, key=lambda child: child.create_time())

    def _fire(self, pipe: Any, server: psutil.Process) -> None:
        phase, slow, rate, mean = 0, 0, self._rate, 2.0
        while self.tally["frames"] < self._frames or self.tally["slow"] < self._slow:
            is_dummy = phase % 2 == 1
            where, length_s = ("dummy", DUMMY_S) if is_dummy else ("live", LIVE_S)
            left = max(0, self._slow - self.tally["slow"])
            slow = slow if is_dummy else min(BURST, left) * (phase % 4 == 0)
            pipe.send((is_dummy, rate, mean, slow, phase))
            time.sleep(SETTLE_S)
            began, samples = time.monotonic(), self._watch.samples
            time.sleep(length_s)
            self.seconds[where] += time.monotonic() - began
            self.samples[where] += self._watch.samples - samples
            pipe.send(None)
            tally, seconds = pipe.recv()
            self.rss.append(server.memory_info().rss)
            if is_dummy:
                self.tally["frames at the dummy"] += tally["frames"]
            else:
                self.tally += tally
                calls = sum(n for k, n in tally.items() if k.endswith("connections"))
                # The dummy gets as many frames: the slower of both sets the rate.
                rate = min(self._rate, tally["frames"] / seconds)
                mean = tally["frames"] / max(1, calls)
            self._tell(where, tally["frames"] / seconds)
            if is_dummy:
                rate = self._rate
            phase += 1

    def _tell(self, where: str, rate: float) -> None:
        print(
            f"{self.tally['frames']:>10,} frames {self.tally['slow']:>7,} slow  "
            f"{where:5} {rate:7,.0f} frames/s  "
            f"live {self.throughput('live'):9,.0f} samples/s  "
            f"dummy {self.throughput('dummy'):9,.0f}  "
            f"server {self.rss[-1] / MIB:6.1f} MiB",
            flush=True,
        )

    def throughput(self, where: str) -> float:
        """Samples a second."""
        return self.samples[where] / max(1e-9, self.seconds[where])


class Until(keras.callbacks.Callback):
    """Ends the run with an epoch, once the fuzzing is over."""

    def __init__(self, campaign: Campaign) -> None:
        super().__init__()
        self._campaign = campaign
        self.epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        self._campaign._watch.has_trained.set()
        if self._campaign.is_over.is_set():
            self.model.stop_training = True


def model() -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=["AUC"])
    return net


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((ROWS, 30)).astype("float32")
    return x, (x[:, :1] * x[:, 1:2] + x[:, 2:3] > 0).astype("float32")


def fuzz(frames: int, slow: int, rate: float, workers: int) -> list[str]:
    """Runs all of it and prints the results; returns the broken promises."""
    watch = Watch()
    watch.install()
    campaign = Campaign(watch, frames, slow, rate)
    until = Until(campaign)
    campaign.start()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            history = shoal.fit(
                model(), *data(), workers=workers, epochs=100_000, batch_size=BATCH,
                strategy=shoal.strategies.get("aeasgd", period=PERIOD), verbose=0,
                callbacks=[until], run=Path(folder, "run"),
            )  # fmt: skip
        finally:
            watch.has_trained.set()
            campaign.join()
        events = list(read_events(Folder.at(history.run.url)))
    return report(campaign, until, watch, events, time.monotonic() - began)


def report(
    campaign: Campaign,
    until: Until,
    watch: Watch,
    events: list[dict[str, Any]],
    seconds: float,
) -> list[str]:
    """Prints the figures; returns the promises that do not hold."""
    tally, kinds = campaign.tally, Counter(event["kind"] for event in events)
    exact = all(watch.committed[e] == ROWS for e in range(until.epochs))
    exact = exact and sum(watch.committed.values()) == ROWS * until.epochs
    live, dummy = campaign.throughput("live"), campaign.throughput("dummy")
    before, most, after = campaign.rss[0], max(campaign.rss), campaign.rss[-1]
    turned_away = sum(e.get("count", 1) for e in events if e["kind"] == "stranger")
    print(f"\n{seconds:,.0f} s, of them {campaign.seconds['live']:,.0f} s under fire")
    for name, value in [
        ("frames sent", tally["frames"]),
        ("  by callers that did not prove the secret", tally["stranger frames"]),
        ("  by callers that had not joined", tally["peer frames"]),
        ("  by workers that had joined", tally["worker frames"]),
        ("connections for them", sum(
            n for k, n in tally.items() if k.endswith("connections"))),
        ("slow or half-open connections", tally["slow"]),
        ("  of them closed by the server", tally["slow seen off"]),
        ("bytes sent to callers that did not prove the secret", tally["leaked"]),
        ("events about rejected callers", kinds["stranger"]),
        ("  callers in these events", turned_away),
        ("workers lost, servers lost", kinds["worker_lost"] + kinds["server_lost"]),
        ("epochs trained", until.epochs),
        ("samples committed", sum(watch.committed.values())),
    ]:  # fmt: skip
        print(f"{value:>12,}  {name}")
    print(f"{live:>12,.0f}  samples/s, fire at the server")
    print(f"{dummy:>12,.0f}  samples/s, the same fire at a dummy")
    print(f"{live / max(1e-9, dummy):>12.3f}  ratio")
    for size, when in ((before, "before"), (most, "most"), (after, "after")):
        print(f"{size / MIB:>12.1f}  MiB of the server, {when}")
    promises = {
        "the campaign ran to its end": not campaign.error,
        "every epoch has every sample once": exact,
        "callers that did not prove the secret were sent nothing": tally["leaked"] == 0,
        "no process was lost": kinds["worker_lost"] + kinds["server_lost"] == 0,
        "the server's memory is bounded (64 MiB more)": most - before < 64 * MIB,
        # A shared machine changes by more than that within a minute.
        "throughput within 10 %": live > 0.9 * dummy or campaign.seconds["live"] < 60,
    }
    broken = [name for name, holds in promises.items() if not holds]
    print(f"broken: {'; '.join(broken) or 'nothing'} {campaign.error}".rstrip())
    return broken


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20,000 frames, 200 slow")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--slow", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=1500.0, help="frames a second")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    frames, slow = (20_000, 200) if options.quick else (options.frames, options.slow)
    broken = fuzz(frames, slow, options.rate, options.workers)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
