"""The contestants of the demo and their data; `compare` times and evaluates them.

This file decides that all of them train the same samples in the same number of
steps of the same size, that their curves are losses on the same test rows, and that
plain Keras has the better of its own settings.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, final

from shoal.api import fit
from shoal.demo.flights import Flights
from shoal.models.no_tensorflow import no_tensorflow
from shoal.plan import environment
from shoal.runs.events import read_events
from shoal.runs.store import StoredRun, create
from shoal.strategies import get
from shoal.training.comparing import Task, Workers, train_baseline, train_one
from shoal.training.comparison import SAME_LOSS, ComparisonEntry, seconds_to
from shoal.training.fit_call import STRATEGY as DEFAULT

# Divides the steps of an epoch: Keras runs whole executions, even past the end.
LONG_EXECUTION = 32
SEED = 2013
WATCHED_ROWS = 4_096
"""Test rows on which the loss is computed after each epoch."""


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
        entry: Measurements, as `shoal.compare` takes them.
        committed: Committed samples.
        expected: Expected number of committed samples.
        run: Path or URL of the run folder, "" for none.
        killed_at: Seconds since the call of fit when a worker was killed.
        replaced_s: Seconds until it was replaced; None when the run was over first.
    """

    who: str
    entry: ComparisonEntry
    committed: int
    expected: int
    run: str = ""
    killed_at: float | None = None
    replaced_s: float | None = None

    @property
    def accuracy(self) -> float:
        """Accuracy on test rows."""
        return self.entry.metrics["accuracy"]

    @property
    def speed(self) -> float:
        """Samples per second after the first epoch, so without start-up."""
        return self.entry.samples_per_s

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Seconds since the call of fit, and loss on test rows, of each epoch."""
        points = self.entry.points
        return [(point.seconds, point.metrics["val_loss"]) for point in points]

    def seconds_to_loss_of(self, other: Result) -> float | None:
        """Seconds since the call of fit to the loss that the other ends with."""
        return seconds_to(self.curve, SAME_LOSS * other.curve[-1][1])


def train_plainly(
    flights: Flights, settings: Settings, steps_per_execution: int
) -> Result:
    """Trains with `keras.Model.fit` in this process, on all cores."""
    task = _task(flights, settings, steps_per_execution=steps_per_execution)
    return Result(
        who="keras.Model.fit",
        entry=train_baseline(task, SEED),
        committed=settings.samples,
        expected=settings.samples,
    )


def train_with_shoal(
    flights: Flights,
    settings: Settings,
    *,
    strategy: str,
    workers: Workers,
    is_killed: bool = False,
    root: str | None = None,
) -> Result:
    """Trains with `shoal.fit`; kills one of its workers during the run if asked to.

    With `DEFAULT` as strategy and workers="auto" it is the call without options.
    """
    name = f"demo-{strategy}{'-killed' if is_killed else ''}"
    run = create(root or environment().runs, name)
    goal = settings.kill_at * settings.samples if is_killed else float("inf")
    killer = Killer(run, goal)

    def train(*data: Any, **arguments: Any) -> Any:
        with killer:
            return fit(*data, **arguments)

    task = _task(flights, settings, run=run)
    entry = train_one(task, train, get(strategy), workers, SEED)
    summary = run.summary()
    replaced = [e for e in read_events(run.folder) if e["kind"] == "worker_replaced"]
    return Result(
        who=f"shoal {_call(strategy, workers)}"
        f"{', one worker killed' if is_killed else ''}",
        entry=entry,
        committed=summary.samples_committed,
        expected=summary.samples_expected,
        run=run.url,
        killed_at=killer.killed_at,
        replaced_s=float(replaced[0]["seconds"]) if replaced else None,
    )


def _call(strategy: str, workers: Workers) -> str:
    is_default = strategy == DEFAULT and workers == "auto"
    return "without options" if is_default else strategy


def _task(
    flights: Flights,
    settings: Settings,
    *,
    steps_per_execution: int = 1,
    run: StoredRun | bool = False,
) -> Task:
    """The task of every contestant, evaluated on test rows."""
    x, y = rows(flights, settings)
    return Task(
        make_model=lambda: make_model(flights, settings, steps_per_execution),
        x=x,
        y=y,
        validation_data=(flights.x_test, flights.y_test),
        curve_data=watched(flights),
        run=run,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        steps_per_epoch=settings.steps_per_epoch,
    )


def make_model(
    flights: Flights, settings: Settings, steps_per_execution: int = 1
) -> Any:
    """Returns the demo's model, with the same weights each time."""
    keras = import_module("keras")
    with no_tensorflow():
        keras.utils.set_random_seed(SEED)
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


def rows(flights: Flights, settings: Settings) -> tuple[Any, Any]:
    """Returns the training data of all contestants."""
    return flights.x[: settings.rows], flights.y[: settings.rows]


def watched(flights: Flights) -> tuple[Any, Any]:
    """Returns the test rows of the curves."""
    return flights.x_test[:WATCHED_ROWS], flights.y_test[:WATCHED_ROWS]


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
    """

    POLL_S = 0.02

    def __init__(self, run: StoredRun, goal: float) -> None:
        self.killed_at: float | None = None
        """Seconds since the beginning of this context."""
        self._run, self._goal, self._began = run, goal, 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shoal-demo-killer")

    def __enter__(self) -> Killer:
        self._began = time.perf_counter()
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
            self.killed_at = time.perf_counter() - self._began
