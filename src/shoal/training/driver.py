"""The Keras part of a run: callbacks, validation, history, the center in the model.

Everything here happens in the user's process, with the user's model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, final

import numpy as np

from shoal.engine.controller.observer import Observer
from shoal.engine.server.checkpoint import ServerCheckpoint
from shoal.engine.server.records import EpochEnd, Record, Rescue
from shoal.engine.transport.changes import Changes, unstamped
from shoal.models.inspection import learning_rate_of, present_rate
from shoal.plan import Plan
from shoal.runs.base import Run
from shoal.training.best_model import BestModel
from shoal.training.callback_list import open_list
from shoal.training.callback_state import MOST_BYTES, CallbackStates, give_back
from shoal.training.changes import WEIGHTS, ModelChanges
from shoal.training.committed_samples import CommittedSamples
from shoal.training.copies import Copies
from shoal.training.divergence import RunWatch
from shoal.training.driver_options import DriverOptions
from shoal.training.epoch_metrics import EpochMetrics
from shoal.training.epoch_validation import EpochValidation, named
from shoal.training.evaluator import Score
from shoal.training.hooks import BatchHooks
from shoal.training.in_step import InStep
from shoal.training.moving_averages import MovingAverages
from shoal.training.progress import ProgressDisplay
from shoal.training.resume_state import Diary, ResumeState
from shoal.training.run_clock import RunClock
from shoal.training.user_model import UserModel
from shoal.vectors import Sums, Vector

FETCH_S = 0.1
"""Seconds between two fetches of the center for batch hooks that workers wait for."""


def can_wait(plan: Plan) -> bool:
    """Whether workers can wait for batch hooks after each step of the user's."""
    is_plain = plan.exchanges_gradients or "plain" in plan.strategy.promises
    return is_plain and plan.request.epoch_barrier


@dataclass
class _Epoch:
    """The present epoch."""

    number: int
    logs: dict[str, float] = field(default_factory=dict[str, float])
    newest: Record | None = None
    is_over: bool = False


@final
class Driver(Observer):
    """Follows a run with Keras' own callbacks and history.

    Args:
        model: The user's model; has the center whenever a callback reads it.
        plan: Plan of the run.
        run: Record of the run.
        options: Options of `fit`.
    """

    def __init__(
        self, model: Any, plan: Plan, run: Run, options: DriverOptions
    ) -> None:
        self._model, self._run, self._options = model, run, options
        facts = plan.model
        # Without a barrier, a worker's own state is of later steps.
        self._is_alone = plan.most_workers == 1 and plan.request.epoch_barrier
        self._user = UserModel(model, facts.applied, is_alone=self._is_alone)
        self._metrics = EpochMetrics(model, facts)
        self.follow(plan)
        self._copies = Copies()
        self._later: list[Record] = []
        self.averages: MovingAverages | None = None
        self._best = BestModel(model, self._user, run)
        self._watch = ModelChanges(model, self._warn, self._user.keep_came)
        self._newest: Callable[[], tuple[Vector, Vector] | None] = lambda: None
        self.validation = EpochValidation(
            options,
            self._user,
            self._watch.watching_states if self._is_alone else nullcontext,
            self._take_score,
        )
        self._clock = RunClock()
        self.first_step: float | None = None
        """Monotonic seconds when the first step had been taken."""
        rows = self._order.rows_of(plan.request.initial_epoch)
        self.callbacks: Any = open_list(
            options.callbacks,
            add_history=True,
            model=model,
            verbose=options.verbose,
            epochs=plan.request.epochs,
            steps=self._order.steps_within(plan.request.initial_epoch, rows),
        )
        every = int(getattr(model, "steps_per_execution", 1) or 1)
        self._hooks = BatchHooks(self.callbacks, plan.batch_size, every)
        self._in_step = InStep(
            self._hooks,
            self._watch,
            can_wait=can_wait(plan),
            is_free=plan.request.cluster == "inline",
            name=plan.strategy.name,
            rate=lambda: self.learning_rate,
            warn=self._watch.tell,
        )
        self._fetched = -math.inf
        # Twice: the best weights of `EarlyStopping` are as large as the model.
        most_bytes = max(MOST_BYTES, 2 * plan.message_bytes)
        self._callback_states = CallbackStates(self._warn, most_bytes)

    def follow(self, plan: Plan) -> None:
        """Sets the plan of the run, or another one before its first epoch."""
        self._plan, self._order = plan, plan.order()
        self._committed = CommittedSamples(self._order, plan.models)
        self._progress = ProgressDisplay(plan, self._options.verbose)
        self._epoch = _Epoch(number=plan.request.initial_epoch)
        self._divergence = RunWatch(plan)

    # --------------------------------------------------------- start and end

    def begin(self) -> None:
        """Begins, before workers are sent anything: a callback may load weights now."""
        self._model.stop_training = False
        if self._options.resume_state is not None:
            self._go_on(self._options.resume_state)
            return
        self.callbacks.on_train_begin()
        self._user.remember()
        self._watch.begin()

    def _go_on(self, resume_state: ResumeState) -> None:
        """Restores the state of an earlier process of this run.

        Values that callbacks set when training begins are changes to it.
        """
        diary, arrays = resume_state.diary, resume_state.server.arrays
        self._user.remember()
        self._restore(resume_state)
        known = self.changes.serial
        with self._watch.watching():
            self.callbacks.on_train_begin()
        if self._model._initial_epoch:  # a backup, which is older than the checkpoint
            self._restore(resume_state)
        else:
            self._watch.collect()
            self._user.remember(arrays["vector"], arrays["statistics"])
            self._watch.write_later(known)
        self._best.value = diary.best
        self._epoch = _Epoch(number=diary.epoch)
        self._metrics.forget((diary.epoch, diary.epoch + 1))
        give_back(self.callbacks.callbacks, diary.callbacks, self._user.frozen)
        self._metrics.restore(diary.kept)
        history = self._history
        history.history = {name: list(v) for name, v in diary.history.items()}
        history.epoch = list(diary.epochs)
        self._model.history = history
        self._model.stop_training = diary.is_stopped
        self._tell_unscored(diary.unscored)

    def _restore(self, resume_state: ResumeState) -> None:
        """Restores weights, state of workers and changes of callbacks in the model."""
        diary, arrays = resume_state.diary, resume_state.server.arrays
        self._watch.begin()
        self._user.remember(arrays["vector"], arrays["statistics"])
        self._user.learning_rate = diary.learning_rate
        state = resume_state.server.newest_state
        self._restore_state(state)
        _, known = unstamped(state or b"")
        self._watch.restore(Changes.read(diary.changes), known)

    def _tell_unscored(self, epochs: Sequence[int]) -> None:
        """Reports epochs whose validation is lost; the history has NaN there."""
        if not epochs:
            return
        for name in self._metrics.names():
            values = self._history.history.setdefault(f"val_{name}", [])
            values += [math.nan] * len(epochs)
        named = ", ".join(str(epoch + 1) for epoch in epochs)
        self._warn(
            f"epochs {named} were not validated when the run was broken off, and their "
            "weights are gone; the history has NaN there"
        )

    @property
    def _history(self) -> Any:
        """Returns Keras' own history callback."""
        kind = import_module("keras").callbacks.History
        return next(c for c in self.callbacks.callbacks if isinstance(c, kind))

    def end(self, optimizer_state: bytes | None = None) -> Any:
        """Ends training; returns the history.

        Args:
            optimizer_state: State of the asked worker, None to keep that of the last
                epoch.
        """
        self.validation.wait(self._progress.awaiting)
        self._restore_state(optimizer_state)
        self._count_overrun()
        if self._user.finalize(self._ticks()):
            self._estimate_averages()
        self.callbacks.on_train_end(logs=self._logs())
        self._progress.close()
        advice = self._progress.advice()
        if advice is not None:
            self._run.event("note", text=advice)
            self._progress.say(advice)
        return self._model.history

    def interrupt(self, rescue: Rescue | None) -> str:
        """Handles Ctrl-C: the model takes the center; returns a line for the user."""
        ended = self._epoch.number + self._epoch.is_over
        samples = self._committed.before(ended)
        ticks = self._committed.steps_before(ended)
        if rescue is not None:
            self.adopt(rescue.vector, rescue.statistics)
            ticks, samples = rescue.clock, rescue.samples
            self._restore_state(rescue.optimizer_state)
        self._user.finalize(ticks)
        self._run.event("interrupted", samples=samples)
        expected = self._plan.samples_expected
        look = f" See `shoal runs show {self._run.id}`." if self._run.url else ""
        can_resume = self._options.keep is not None
        resume = f", or `shoal runs resume {self._run.id}`" if can_resume else ""
        if not samples:
            return (
                f"Interrupted: none of {expected:,} samples was counted, and the model "
                f"is as it was; call fit again{resume}.{look}"
            )
        return (
            f"Interrupted: the model holds {samples:,} of {expected:,} samples; call "
            f"fit again to go on from there{resume}.{look}"
        )

    def salvage(self, rescue: Rescue | None) -> None:
        """Handles NaN or infinity: the model takes the last good center."""
        if rescue is None or not np.isfinite(rescue.vector).all():
            return
        self.adopt(rescue.vector, rescue.statistics)
        # Under gradient exchange from before the step; elsewhere it may be the worker's
        # own.
        if self._plan.exchanges_gradients:
            self._restore_state(rescue.optimizer_state)
        self._user.finalize(rescue.clock)

    def abandon(self) -> None:
        """Cleans up after an error: leaves terminal and threads as before."""
        self._progress.close()
        executor = getattr(self.callbacks, "_executor", None)
        if executor is not None:  # Keras would leave it until the program ends
            executor.shutdown(wait=False, cancel_futures=True)

    def _count_overrun(self) -> None:
        """Reports samples of epochs that a stopped run does not count any more."""
        after = self._epoch.number
        samples = self._committed.after(after)
        if self._epoch.is_over and samples:
            self._run.event("overrun", samples=samples, epoch=after)
            self._progress.say(
                f"epoch_barrier=False: workers had trained on {samples:,} samples of "
                f"epoch {after + 2} when epoch {after + 1} stopped the run; "
                "the model does not hold them"
            )

    def adopt(self, vector: Vector, statistics: Vector) -> None:
        """Puts a center into the user's model."""
        self._user.adopt(vector, statistics)

    def _restore_state(self, blob: bytes | None) -> None:
        """Restores a worker's optimizer and local state in the user's model, if any."""
        wrong = None if blob is None else self._user.restore_state(blob)
        if wrong is not None:
            self._warn(f"{wrong}; the model keeps an older one")

    def _ticks(self) -> int:
        """Returns the steps plain Keras would have counted by this epoch's end."""
        return self._committed.steps_before(self._epoch.number + 1)

    def fetch_by(self, newest: Callable[[], tuple[Vector, Vector] | None]) -> None:
        """Takes the center for hooks from what follows the run, which needs this.

        Args:
            newest: Returns its weights and statistics, None where it cannot.
        """
        self._newest = newest

    def echo(self, name: str, line: str) -> None:
        """Prints a process's output."""
        self._progress.echo(name, line)

    def rehearse(self) -> None:
        """Compiles the computation of metrics while the process is idle."""
        self._metrics.names()

    # ------------------------------------------------------------- observing

    def on_turn(self) -> None:
        """Lets the user's process handle signals and the like."""
        self._options.on_turn()
        self.validation.poll()

    def on_event(self, kind: str, **fields: Any) -> None:
        """Records an event and shows important ones at once."""
        if kind == "data_state":
            self._copies.take(**fields)
            return
        if kind == "rollback":
            self._metrics.forget(self._committed.roll_back(fields["committed"]))
        self._run.event(kind, **fields)
        self._progress.event(kind, fields)

    def on_checkpoint(self, found: ServerCheckpoint) -> None:
        """Stores the server's state together with the state of this process."""
        if self._options.keep is None:
            return
        history = self._history
        diary = Diary(
            epoch=self._epoch.number + self._epoch.is_over,
            history=history.history,
            epochs=list(history.epoch),
            best=self._best.value,
            learning_rate=self.learning_rate,
            is_stopped=self.wants_stop,
            callbacks=self._callback_states.take(
                self.callbacks.callbacks, self._user.frozen
            ),
            changes=self.changes.pack(),
            unscored=self.validation.waiting,
            kept=self._metrics.kept(is_over=self._epoch.is_over),
            samples=self._committed.total,
        )
        self._options.keep(ResumeState(server=found, diary=diary))

    def on_epoch_begin(self, epoch: int) -> None:
        """Begins an epoch for callbacks, before workers do."""
        self._epoch = _Epoch(number=epoch)
        self._run.event("epoch_started", epoch=epoch)
        self._progress.epoch_begin(epoch)
        order = self._order
        self._hooks.begin_epoch(
            order.rows_of(epoch), lambda rows: order.steps_within(epoch, rows)
        )
        with self._watch.watching():
            self.callbacks.on_epoch_begin(epoch)
        self._metrics.begin_epoch()
        self._warn_of_changes()
        self._in_step.begin()
        self._watch.collect()
        # Without a barrier exchanges of this epoch may have come before it was begun.
        waiting = [r for r in self._later if r.epoch == epoch]
        self._later = [r for r in self._later if r.epoch > epoch]
        if waiting:
            self._follow(waiting)

    def on_records(self, records: list[Record], sums: dict[int, Sums]) -> None:
        """Records exchanges and passes them to callbacks and progress."""
        times = self._clock.times([r.t for r in records], self._run.seconds)
        means = [self._metrics.means_of(record) for record in records]
        self._run.exchanges(
            [
                {**mean, **r._asdict(), "t": t}
                for mean, r, t in zip(means, records, times, strict=True)
            ]
        )
        self._metrics.add(sums)
        if self.first_step is None and records:
            first = records[0]
            later_s = first.compute_s * (first.steps - 1) / max(1, first.steps)
            self.first_step = time.monotonic() - later_s
            self.validation.start()
        for record in records:
            self._committed.add(record.epoch, record.samples)
        diverged = self._divergence.look(records, means, self.learning_rate)
        if diverged:
            self.on_event("warning", **diverged)
        current = self._epoch.number
        self._later += [r for r in records if r.epoch > current]
        now = [r for r in records if r.epoch == current]
        if now and not self._epoch.is_over:
            self._follow(now)

    def _follow(self, records: list[Record]) -> None:
        """Passes exchanges of the current epoch to callbacks and progress."""
        if self._hooks.are_wanted:
            self._fetch()
            before = self._committed.steps_before(self._epoch.number)
            with self._in_step.hearing():
                self._hooks.call(
                    records, self._logs_of, lambda s: self._reach(before + s)
                )
            if not self.wants_stop:
                self._in_step.begin()
            self._watch.collect()
        self._epoch.newest = records[-1]
        self._progress.update(records, self._logs)

    def _fetch(self) -> None:
        """Puts the newest center into the model, if a batch hook may read it."""
        # If workers wait for hooks they would be asked for it after each step.
        is_far = self.is_in_step and self._plan.request.cluster != "inline"
        is_new = not is_far or time.monotonic() - self._fetched > FETCH_S
        if not self._hooks.read_weights or not is_new:
            return
        center = self._newest()
        if center is not None:
            self.adopt(*center)
        self._fetched = time.monotonic()

    def _reach(self, ticks: int) -> bool:
        """Sets the step count for a hook; returns False once training should stop."""
        self._user.count_steps(ticks)
        return not self.wants_stop

    def _logs(self) -> dict[str, float]:
        """Returns the metrics of the present or just ended epoch."""
        epoch = self._epoch
        if epoch.is_over or epoch.newest is None:
            return epoch.logs
        return self._logs_of(epoch.newest)

    def _logs_of(self, record: Record) -> dict[str, float]:
        """Returns the epoch's metrics after an exchange, or the newest known ones."""
        logs = self._metrics.logs_of(record)
        if logs is not None:
            self._epoch.logs = logs
        return self._epoch.logs

    def on_epoch(self, end: EpochEnd) -> None:
        """Validates, ends the epoch for callbacks, and keeps the best model."""
        self._user.remember(end.vector, end.statistics)
        self._restore_state(end.optimizer_state)
        self._watch.write_later(end.changes)
        self._user.settle_steps(self._ticks())
        self._estimate_averages()
        logs = self._metrics.end_epoch(end.metrics)
        logs.update(self.validation.logs(end.epoch, self.callbacks))
        self._epoch.logs, self._epoch.is_over = logs, True
        numbers = {k: float(v) for k, v in logs.items() if np.ndim(v) == 0}
        self._progress.epoch_end(end.rows, numbers)
        with self._watch.watching():
            self.callbacks.on_epoch_end(end.epoch, logs)
        self._run.event(
            "epoch_ended",
            epoch=end.epoch,
            metrics=numbers,
            samples=end.rows,
            learning_rate=present_rate(self._model),
        )
        self._best.offer(self._plan.monitor, numbers)

    def _estimate_averages(self) -> None:
        """Sets the model's moving averages to those of its weights, if planned.

        Workers keep theirs. A model that cannot compute here is trained all the same.
        """
        if self.averages is None:
            return
        try:
            self.averages.estimate()
        except Exception as error:  # code of the model, memory, a file
            self.averages = None
            self._warn(
                "the moving averages of BatchNormalization cannot be estimated in this "
                f"process ({type(error).__name__}: {error}). The model keeps the means "
                'of the workers\', which fit other weights: see "Choose a strategy".'
            )

    def _take_score(self, score: Score) -> None:
        """Adds a late score to the results of its epoch."""
        found = named(score.metrics)
        for name, value in found.items():
            self._history.history.setdefault(name, []).append(value)
        numbers = {k: float(v) for k, v in found.items() if np.ndim(v) == 0}
        self._run.event("epoch_scored", epoch=score.epoch, metrics=numbers)
        self._progress.epoch_scored(score.epoch, numbers)
        self._best.offer_earlier(self._plan.monitor, numbers, score)

    def _warn_of_changes(self) -> None:
        """Warns that workers ignore weights set by a callback."""
        if self._user.is_changed():
            self._watch.tell(WEIGHTS)

    def _warn(self, text: str) -> None:
        self.on_event("warning", text=text)

    @property
    def wants_stop(self) -> bool:
        """Whether a callback has set `model.stop_training`."""
        return bool(self._model.stop_training)

    @property
    def changes(self) -> Changes:
        """Returns callbacks' changes of the model besides its trainable weights."""
        return self._watch.collect()

    @property
    def is_in_step(self) -> bool:
        """Whether workers wait for batch hooks after each step."""
        return self._in_step.is_on

    @property
    def hears_steps(self) -> bool:
        """Whether batch hooks are called as soon as a step is taken."""
        return self._hooks.are_wanted and can_wait(self._plan)

    @property
    def counts_steps(self) -> bool:
        """Whether batch hooks are called once for each step."""
        return self._hooks.count_steps

    @property
    def learning_rate(self) -> float | None:
        """Returns the optimizer's rate, as callbacks set it; None under a schedule."""
        return learning_rate_of(self._model)
