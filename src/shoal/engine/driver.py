"""The Keras side of a run: callbacks, validation, history, the center in the model.

Everything here happens in the user's process, with the user's model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from shoal.engine.inspection import inner_optimizer, learning_rate_of
from shoal.engine.metrics import MetricStates
from shoal.engine.observer import EpochEnd, Observer, Record, Sums
from shoal.engine.progress import Progress
from shoal.plan import Plan
from shoal.runs.base import Run
from shoal.runs.history import is_higher_better
from shoal.vectors import Layout, Vector, exchanged_variables, statistic_variables

BATCH_HOOKS = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Arguments of Keras' `fit` that concern the user's process.

    Args:
        callbacks: As given.
        validate: Evaluates the model, None without validation data.
        validation_freq: Epochs between validations, or a list of epochs.
        monitor: Metric by which the best model is kept, None for the loss.
        verbose: 0, 1 or 2.
    """

    callbacks: Any = None
    validate: Callable[..., dict[str, float]] | None = None
    validation_freq: int | Sequence[int] = 1
    monitor: str | None = None
    verbose: int = 0


@dataclass
class _Epoch:
    """Counters of the epoch that is under way."""

    number: int = 0
    samples: int = 0
    exchanges: int = 0
    logs: dict[str, float] = field(default_factory=dict[str, float])


class Driver(Observer):
    """Follows a run with Keras' own callbacks and history.

    Args:
        model: The user's; holds the center whenever a callback looks.
        plan: Of the run.
        run: Where it is recorded.
        habits: Of `fit`.
    """

    def __init__(self, model: Any, plan: Plan, run: Run, habits: Habits) -> None:
        self._model, self._plan, self._run, self._habits = model, plan, run, habits
        keras = import_module("keras")
        self._keras = keras
        self._weights = exchanged_variables(model)
        self._statistics = statistic_variables(model)
        self._layout = Layout.of(self._weights)
        self._statistics_layout = Layout.of(self._statistics)
        self._states = MetricStates.of(model)
        self._progress = Progress(plan, habits.verbose)
        self._epoch = _Epoch()
        self._best: float | None = None
        self.fetch_center: Callable[[], tuple[Vector, Vector] | None] = lambda: None
        self.committed = 0
        self._began_at = int(np.asarray(inner_optimizer(model).iterations))
        steps = plan.order().rows_of(plan.initial_epoch) / plan.gang_batch_size
        self.callbacks: Any = keras.callbacks.CallbackList(
            habits.callbacks,
            add_history=True,
            model=model,
            verbose=habits.verbose,
            epochs=plan.epochs,
            steps=int(np.ceil(steps)),
        )
        self._has_batch_hooks = any(
            not getattr(getattr(callback, hook), "_is_default", False)
            for callback in self.callbacks.callbacks
            for hook in BATCH_HOOKS
        )

    # --------------------------------------------------------- start and end

    def begin(self) -> None:
        """Before anything trains."""
        self._model.stop_training = False
        self.callbacks.on_train_begin()

    def end(self, optimizer_state: bytes | None) -> Any:
        """After everything has trained; returns the history.

        The optimizer holds the state of the lowest-ranked worker, its step count
        where plain Keras' would stand.
        """
        optimizer = self._model.optimizer
        if optimizer_state is not None:
            self._restore(optimizer, optimizer_state)
        inner = inner_optimizer(self._model)
        ticks = self.committed / self._plan.batch_size
        inner.iterations.assign(self._began_at + int(np.ceil(ticks - 1e-9)))
        optimizer.finalize_variable_values(self._model.trainable_weights)
        self.callbacks.on_train_end(logs=self._epoch.logs)
        self._progress.close()
        return self._model.history

    def _restore(self, optimizer: Any, blob: bytes) -> None:
        at = 0
        kept = inner_optimizer(self._model)._learning_rate
        for variable in optimizer.variables:
            value = np.asarray(variable.numpy())
            array = np.frombuffer(blob, value.dtype, value.size, at)
            at += array.nbytes
            if variable is not kept:  # a callback may have changed it since
                variable.assign(array.reshape(value.shape))

    def adopt(self, vector: Vector, statistics: Vector) -> None:
        """Puts a center into the user's model."""
        self._layout.scatter(vector, self._weights)
        self._statistics_layout.scatter(statistics, self._statistics)

    # ------------------------------------------------------------- observing

    def on_event(self, kind: str, **fields: Any) -> None:
        self._run.event(kind, **fields)
        self._progress.event(kind, fields)

    def on_epoch_begin(self, epoch: int) -> None:
        self._epoch = _Epoch(number=epoch)
        self._run.event("epoch_started", epoch=epoch)
        self._progress.epoch_begin(epoch)
        self.callbacks.on_epoch_begin(epoch)

    def on_records(self, records: list[Record], sums: dict[int, Sums]) -> None:
        self._run.exchanges([r._asdict() for r in records])
        for record in records:
            self.committed += record.samples
            if record.epoch == self._epoch.number:
                self._epoch.samples += record.samples
        newest = next((r.sums for r in reversed(records) if r.sums), None)
        state = sums.get(self._epoch.number) if newest is None else np.asarray(newest)
        if state is not None:
            self._epoch.logs = self._states.results(self._model, state)
        if self._has_batch_hooks:
            self._call_batch_hooks(records)
        self._progress.update(records, self._epoch.samples, self._epoch.logs)

    def _call_batch_hooks(self, records: list[Record]) -> None:
        """Once an exchange, as Keras does under steps_per_execution."""
        center = self.fetch_center()
        if center is not None:
            self.adopt(*center)
        for record in records:
            if record.sums is not None:
                state = np.asarray(record.sums)
                self._epoch.logs = self._states.results(self._model, state)
            self.callbacks.on_train_batch_begin(self._epoch.exchanges)
            self.callbacks.on_train_batch_end(self._epoch.exchanges, self._epoch.logs)
            self._epoch.exchanges += 1

    def on_epoch(self, end: EpochEnd) -> None:
        self.adopt(end.vector, end.statistics)
        logs = self._states.results(self._model, end.metrics)
        if self._habits.validate is not None and self._validates(end.epoch):
            found = self._habits.validate(callbacks=self.callbacks)
            logs.update({f"val_{name}": value for name, value in found.items()})
        self._epoch.logs = logs
        self.callbacks.on_epoch_end(end.epoch, logs)
        numbers = {k: float(v) for k, v in logs.items() if np.ndim(v) == 0}
        self._run.event("epoch_ended", epoch=end.epoch, metrics=numbers, samples=end.rows)
        self._keep_best(numbers)
        self._progress.epoch_end(end.epoch, numbers)

    def _validates(self, epoch: int) -> bool:
        freq = self._habits.validation_freq
        if isinstance(freq, int):
            return (epoch + 1) % freq == 0
        return epoch + 1 in freq

    def _keep_best(self, logs: dict[str, float]) -> None:
        monitor = self._habits.monitor
        if monitor is None:
            monitor = "val_loss" if "val_loss" in logs else "loss"
        if monitor not in logs:
            return
        sign = 1.0 if is_higher_better(monitor) else -1.0
        score = sign * logs[monitor]
        if self._best is None or score > self._best:
            self._best = score
            self._run.save_model(self._model, "best")

    @property
    def wants_stop(self) -> bool:
        return bool(self._model.stop_training)

    @property
    def learning_rate(self) -> float | None:
        return learning_rate_of(self._model)
