"""Decides when workers wait for batch hooks after each step.

A callback may set the learning rate, or a variable, before every batch. Under a
strategy that takes the steps of plain Keras the workers then take one step at a time,
and ask the run's process between two of them. That costs a round trip a step, so it
is done only while hooks change something: from the first step on, until a few hooks
have changed nothing; and again after a hook that does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import final

from shoal.training.changes import ModelChanges
from shoal.training.hooks import BatchHooks

PATIENCE = 3
"""Steps without changes by hooks after which workers no longer wait."""

LATE_RATE = (
    "a callback sets the learning rate in a batch hook; strategy {name!r} does not "
    "wait for callbacks, so that workers use it some steps later. Compile with a "
    "keras.optimizers.schedules.LearningRateSchedule, which is read at each step, or "
    "use strategy='all_reduce'"
)
LATE = (
    "a callback changes the model in a batch hook; workers do not wait for callbacks "
    "here, so that the change acts some steps later. Change it in on_epoch_begin"
)


@final
class InStep:
    """Decides whether workers wait.

    Args:
        hooks: Batch hooks.
        watch: Finds changes by hooks.
        can_wait: Whether workers can wait.
        is_free: Whether waiting needs no message: workers are in this thread.
        name: Name of the strategy.
        rate: Returns the present learning rate; None under a schedule.
        warn: Called once for changes that come late.
    """

    def __init__(
        self,
        hooks: BatchHooks,
        watch: ModelChanges,
        *,
        can_wait: bool,
        is_free: bool,
        name: str,
        rate: Callable[[], float | None],
        warn: Callable[[str], None],
    ) -> None:
        self._hooks, self._watch, self._can_wait = hooks, watch, can_wait
        self._patience = math.inf if is_free else PATIENCE
        self._name, self._rate, self._warn = name, rate, warn
        self._idle = 0
        self.is_on = can_wait and hooks.may_set

    def begin(self) -> None:
        """Calls the hook before the next step, if the workers wait for it."""
        if self.is_on:
            with self.hearing(is_step=False):
                self._hooks.begin_step()

    @contextmanager
    def hearing(self, *, is_step: bool = True) -> Generator[None]:
        """Context around batch hooks.

        Args:
            is_step: Whether a step has been taken before.
        """
        if not self._hooks.may_set:
            yield
            return
        rate, self._watch.has_set = self._rate(), False
        with self._watch.watching(is_batch=True):
            yield
        has_set_rate = self._rate() != rate
        if has_set_rate or self._watch.has_set:
            self._idle = 0
            self._tell(has_set_rate=has_set_rate)
            self.is_on = self._can_wait
        elif is_step:
            self._idle += 1
            self.is_on = self.is_on and self._idle < self._patience

    def _tell(self, *, has_set_rate: bool) -> None:
        if not self._can_wait and has_set_rate:
            self._warn(LATE_RATE.format(name=self._name))
        elif not self._can_wait:
            self._warn(LATE)
