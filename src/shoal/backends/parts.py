"""A Keras model taken apart: which of its variables are what, for any backend.

This file decides how variables are grouped, at which moment a schedule is read, and
what the sums of metrics begin from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.backends.base import ComputeSpec
from shoal.backends.fixed import is_random_state
from shoal.vectors import (
    Entry,
    Layout,
    exchanged_variables,
    local_variables,
    statistic_variables,
)


class RunClock(keras.optimizers.schedules.LearningRateSchedule):
    """Reads a schedule at the run clock instead of at the local step count.

    Args:
        schedule: The user's.
        every: Steps of gradients that the optimizer makes one step of.
    """

    def __init__(self, schedule: Any, every: int = 1) -> None:
        self.schedule, self._every = schedule, every
        self.now: tuple[Any, Any, Any] | None = None
        """Start and pace of the clock, and the local step it was read at."""

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate of a local step."""
        if self.now is None:
            return self.schedule(step)
        start, pace, began = self.now
        taken = keras.ops.cast(step, "float32") * self._every
        ticks = start + (taken - began) * pace
        if self._every > 1:
            ticks = keras.ops.floor(ticks / self._every)
        return self.schedule(ticks)

    def get_config(self) -> dict[str, Any]:
        """Returns the schedule's."""
        return self.schedule.get_config()


class ModelParts:
    """One model, taken apart.

    Args:
        model: Built and compiled; its optimizer is built.
        spec: How it is run.
    """

    def __init__(self, model: Any, spec: ComputeSpec) -> None:
        self.model, self.spec = model, spec
        self.trainable = exchanged_variables(model)
        self.beside = statistic_variables(model)
        self.layout = Layout.of(self.trainable)
        self.statistics_layout = Layout.of(self.beside)
        kept = {id(v) for v in self.beside}
        self.is_beside = [id(v) in kept for v in model.non_trainable_variables]
        self.fixed = local_variables(model)
        self.is_random = [is_random_state(v) for v in self.fixed]
        self.optimizer: Any = model.optimizer
        inner: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        self.step, self.rate = inner._iterations, inner._learning_rate
        self.clock = _wrap_schedule(inner)
        self.zero = [numpy_of(v) for v in _reset_metrics(model)]
        self.shown_size = len(spec.logs) + 1 if spec.logs else 0
        self.metrics_size = sum(z.size for z in self.zero) + self.shown_size
        self.is_narrow = any(e.dtype != "float32" for e in self.layout.entries)

    def assign(self, model: Sequence[Any], optimizer: Sequence[Any]) -> None:
        """Gives all variables other values.

        Args:
            model: Of the model, in its order.
            optimizer: Of its optimizer.
        """
        variables = [*self.model.variables, *self.optimizer.variables]
        for variable, value in zip(variables, [*model, *optimizer], strict=True):
            variable.assign(value)

    @property
    def loss_places(self) -> list[tuple[int, npt.NDArray[np.intp]]]:
        """Which metric states hold sums of the loss, and where in each.

        The logs that are shown count as one more, behind the states.
        """
        found: list[tuple[int, npt.NDArray[np.intp]]] = []
        start = 0
        for place, size in enumerate([*(z.size for z in self.zero), self.shown_size]):
            ours = [
                at - start for at in self.spec.loss_at if start <= at < start + size
            ]
            if ours:
                found.append((place, np.array(ours)))
            start += size
        return found


def numpy_of(variable: Any) -> npt.NDArray[Any]:
    """A copy of the value of a Keras variable, in its own dtype."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def place(variables: Sequence[Any], wanted: Any) -> int:
    """Index of a variable by identity, -1 when it is not among them."""
    places = [i for i, v in enumerate(variables) if v is wanted]
    return places[0] if places else -1


def wide(layout: Layout) -> Layout:
    """The same shapes in float32."""
    return Layout(
        tuple(
            Entry(path=e.path, shape=e.shape, dtype="float32") for e in layout.entries
        )
    )


def _wrap_schedule(inner: Any) -> RunClock | None:
    if not isinstance(
        inner._learning_rate, keras.optimizers.schedules.LearningRateSchedule
    ):
        return None
    every = inner.gradient_accumulation_steps or 1
    inner._learning_rate = RunClock(inner._learning_rate, every)
    return inner._learning_rate


def _reset_metrics(model: Any) -> list[Any]:
    for metric in model.metrics:
        metric.reset_state()
    return list(model.metrics_variables)
