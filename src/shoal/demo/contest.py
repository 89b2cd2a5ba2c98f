"""The contestants of the demo: their data, their training, and their times.

This file decides that all of them train the same samples in the same number of
steps of the same size, and that plain Keras has the better of its own settings.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any, final

from shoal.api import fit
from shoal.demo.flights import Flights
from shoal.models.no_tensorflow import no_tensorflow
from shoal.plan import environment
from shoal.runs.events import read_events, unpack_exchanges
from shoal.runs.store import StoredRun, create

# Divides the steps of an epoch: Keras runs whole executions, even past the end.
LONG_EXECUTION = 32


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The amount of training of the demo.

    Args:
        units: Width of the two hidden layers.
        learning_rate: Learning rate of Adagrad, the same for all.
        batch_size: Samples of a step, as each strategy counts them.
        steps_per_epoch: Steps between two points of a curve, a multiple of 32.
        epochs_per_pass: Such epochs in one pass over the data.
        epochs: Total number of such epochs.
        kill_at: Share of all samples that is committed when the worker is killed.
    """

    units: int = 600
    learning_rate: float = 0.03
    batch_size: int = 64
    steps_per_epoch: int = 672
    epochs_per_pass: int = 6
    epochs: int = 8
    kill_at: float = 0.3

    @property
    def rows(self) -> int:
        """Samples of one pass."""
        return self.batch_size * self.steps_per_epoch * self.epochs_per_pass

    @property
    def samples(self) -> int:
        """Samples that every contender trains on."""
        return self.batch_size * self.steps_per_epoch * self.epochs


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one contestant.

    Args:
        who: Name in the table.
        workers: Training processes.
        accuracy: Accuracy on test rows.
        seconds: Seconds from the call of fit to its return.
        seconds_after: Seconds from the first step (or exchange) to the last.
        samples_after: Samples trained on in that time.
        curve: (seconds since the call of fit, training loss) of each epoch.
        committed: Committed samples.
        expected: Expected number of committed samples.
        run: Path or URL of the run folder, "" for none.
        killed_at: Seconds since the call of fit when a worker was killed.
        replaced_s: Seconds until it was replaced; None when the run was over first.
    """

    who: str
    workers: int
    accuracy: float
    seconds: float
    seconds_after: float
    samples_after: int
    curve: list[tuple[float, float]]
    committed: int
    expected: int
    run: str = ""
    killed_at: float | None = None
    replaced_s: float | None = None

    @property
    def speed(self) -> float:
        """Returns samples per second, without the start-up."""
        return self.samples_after / max(self.seconds_after, 1e-9)


@dataclass
class _Watch:
    """Records the ends of epochs and of the first step."""

    began: float = field(default_factory=time.perf_counter)
    began_at: float = field(default_factory=time.time)
    curve: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    first: float | None = None

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Adds a point to the curve."""
        del epoch
        self.curve.append((self.elapsed(), float(logs["loss"])))

    def batch_end(self, batch: int, logs: object) -> None:
        """Records the first step and ignores the others."""
        del batch, logs
        if self.first is None:
            self.first = self.elapsed()

    def elapsed(self) -> float:
        """Returns the seconds since the call of fit."""
        return time.perf_counter() - self.began


def train_plainly(
    flights: Flights, settings: Settings, steps_per_execution: int
) -> Result:
    """Trains with `keras.Model.fit` in this process, on all cores."""
    model = make_model(flights, settings, steps_per_execution)
    watch = _Watch()
    callback = import_module("keras").callbacks.LambdaCallback(
        on_epoch_end=watch.epoch_end, on_train_batch_end=watch.batch_end
    )
    # Keras computes on while this callback runs, as it would without it.
    callback.async_safe = True
    model.fit(*rows(flights, settings), callbacks=[callback], **request(settings))
    seconds = watch.elapsed()
    first = watch.first or 0.0
    return Result(
        who="keras.Model.fit",
        workers=1,
        accuracy=accuracy(model, flights),
        seconds=seconds,
        seconds_after=watch.curve[-1][0] - first,
        samples_after=settings.samples - settings.batch_size * steps_per_execution,
        curve=watch.curve,
        committed=settings.samples,
        expected=settings.samples,
    )


def train_with_shoal(
    flights: Flights,
    settings: Settings,
    *,
    strategy: str,
    workers: int,
    is_killed: bool = False,
    root: str | None = None,
) -> Result:
    """Trains with `shoal.fit`; kills one of its workers during the run if asked to."""
    model = make_model(flights, settings)
    name = f"demo-{strategy}{'-killed' if is_killed else ''}"
    run = create(root or environment().runs, name)
    watch = _Watch()
    callback = import_module("keras").callbacks.LambdaCallback(
        on_epoch_end=watch.epoch_end
    )
    goal = settings.kill_at * settings.samples if is_killed else float("inf")
    with Killer(run, goal, watch.elapsed) as killer:
        fit(
            model, *rows(flights, settings), strategy=strategy, workers=workers,
            callbacks=[callback], run=run, **request(settings),
        )  # fmt: skip
    seconds = watch.elapsed()
    summary = run.summary()
    first_at, first_samples = first_exchange(run)
    replaced = [e for e in read_events(run.folder) if e["kind"] == "worker_replaced"]
    return Result(
        who=f"shoal {strategy}{', one worker killed' if is_killed else ''}",
        workers=workers,
        accuracy=accuracy(model, flights),
        seconds=seconds,
        seconds_after=watch.curve[-1][0] - (first_at - watch.began_at),
        samples_after=settings.samples - first_samples,
        curve=watch.curve,
        committed=summary.samples_committed,
        expected=summary.samples_expected,
        run=run.url,
        killed_at=killer.killed_at,
        replaced_s=float(replaced[0]["seconds"]) if replaced else None,
    )


def make_model(
    flights: Flights, settings: Settings, steps_per_execution: int = 1
) -> Any:
    """Returns the demo's model, with the same weights each time."""
    keras = import_module("keras")
    with no_tensorflow():
        keras.utils.set_random_seed(2013)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((flights.x.shape[1],)),
            layers.Dense(settings.units, activation="relu"),
            layers.Dense(settings.units, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ],
        name="flights",
    )
    model.compile(
        keras.optimizers.Adagrad(settings.learning_rate),
        "binary_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


def first_exchange(run: StoredRun) -> tuple[float, int]:
    """Returns when the first exchange was (Unix time), and its samples."""
    for event in read_events(run.folder):
        if event["kind"] == "exchanges":
            records = list(unpack_exchanges(event))
            # Written when the last exchange was known; the records have the server's
            # clock.
            behind = float(records[-1]["t"]) - float(records[0]["t"])
            return float(event["time"]) - behind, int(records[0]["samples"])
    return time.time(), 0


def rows(flights: Flights, settings: Settings) -> tuple[Any, Any]:
    """Returns the training data of all contestants."""
    return flights.x[: settings.rows], flights.y[: settings.rows]


def request(settings: Settings) -> dict[str, Any]:
    """Returns the arguments of `fit`, the same for Keras and Shoal."""
    return {
        "batch_size": settings.batch_size,
        "epochs": settings.epochs,
        "steps_per_epoch": settings.steps_per_epoch,
        "verbose": 0,
    }


def accuracy(model: Any, flights: Flights) -> float:
    """Returns the share of test flights that a model predicts correctly."""
    found = model.evaluate(
        flights.x_test, flights.y_test, batch_size=1024, verbose=0, return_dict=True
    )
    return float(found["accuracy"])


@final
class Killer:
    """Kills one worker of a run with SIGKILL, once enough samples are committed.

    Args:
        run: Run whose events show its progress and the processes of its workers.
        goal: Committed samples to wait for; infinity never kills.
        elapsed: Clock that gives `killed_at`.
    """

    POLL_S = 0.02

    def __init__(
        self, run: StoredRun, goal: float, elapsed: Callable[[], float]
    ) -> None:
        self.killed_at: float | None = None
        self._run, self._goal, self._elapsed = run, goal, elapsed
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shoal-demo-killer")

    def __enter__(self) -> Killer:
        if self._goal < float("inf"):
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(self.POLL_S):
            if self._run.summary().samples_committed >= self._goal:
                self._kill()
                return

    def _kill(self) -> None:
        """Kills the worker of the highest rank with SIGKILL."""
        pids = {
            int(event["rank"]): int(event["pid"])
            for event in read_events(self._run.folder)
            if event["kind"] == "worker_started"
        }
        if pids:
            os.kill(pids[max(pids)], signal.SIGKILL)
            self.killed_at = self._elapsed()
