"""A Keras model taken apart: the groups of its variables, for any backend.

This file decides how variables are grouped, at which moment a schedule is read, and
from which values the sums of metrics begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np
import numpy.typing as npt

from shoal.backends.base import Clock, ComputeSpec, RateScaling
from shoal.backends.fixed import is_random_state
from shoal.errors import PlanError
from shoal.optimizers import (
    has_own_step,
    leaves,
    optimizer_variables,
    optimizers_of,
    rate_variable,
    step_of,
)
from shoal.vectors import (
    Layout,
    VariableSlice,
    all_variables,
    exchanged_variables,
    local_variables,
    statistic_variables,
)


class RunClock(keras.optimizers.schedules.LearningRateSchedule):
    """Reads a schedule at the run clock instead of at the local step count.

    Args:
        schedule: The user's schedule, or the variable with the learning rate to scale.
        every: Steps of gradients for one step of the optimizer.
        scaling: Scaling of the learning rate; None leaves it as it is.
    """

    def __init__(
        self, schedule: Any, every: int = 1, scaling: RateScaling | None = None
    ) -> None:
        self.schedule, self._every, self._scaling = schedule, every, scaling
        self.now: tuple[Any, Any, Any] | None = None
        """Start and pace of the clock, and the local step at which it was read."""

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate of a local step."""
        if self.now is None:
            return self._rate(step)
        start, pace, began = self.now
        taken = keras.ops.cast(step, "float32") * self._every
        ticks = start + (taken - began) * pace
        factor = self._factor(ticks)
        if self._every > 1:
            ticks = keras.ops.floor(ticks / self._every)
        return self._rate(ticks) * factor

    def _rate(self, step: Any) -> Any:
        if isinstance(self.schedule, keras.Variable):
            return self.schedule.value
        return self.schedule(step)

    def _factor(self, ticks: Any) -> Any:
        scaling = self._scaling
        if scaling is None:
            return 1.0
        if not scaling.steps:
            return scaling.factor
        part = keras.ops.clip((ticks - scaling.began) / scaling.steps, 0.0, 1.0)
        return 1.0 + (scaling.factor - 1.0) * part

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the user's schedule."""
        return self.schedule.get_config()


@final
class Scheduled:
    """A schedule of one optimizer, with the position of its run clock.

    An optimizer that is applied twice in a training step has a clock that runs
    twice as fast.

    Args:
        clock: The clock that replaces the schedule.
        step: The optimizer's count of steps.
        times: Number of times a training step applies the optimizer.
    """

    def __init__(self, clock: RunClock, step: Any, times: int) -> None:
        self.clock, self.step, self._times = clock, step, times
        self.begin()

    def begin(self) -> None:
        """Reads the count of steps with which a run begins."""
        self._base = float(numpy_of(self.step))

    def start(self, ticks: float) -> float:
        """Returns this clock after `ticks` training steps."""
        return self._base + ticks * self._times


class ModelParts:
    """One model, taken apart.

    Args:
        model: A built and compiled model; its optimizers are built.
        spec: How it is computed.
    """

    def __init__(self, model: Any, spec: ComputeSpec) -> None:
        self.model, self.spec = model, spec
        self.trainable = exchanged_variables(model)
        self.beside = statistic_variables(model)
        self.layout = Layout.of(self.trainable)
        self.statistics_layout = Layout.of(self.beside)
        kept = {id(v) for v in self.beside}
        self.slots = optimizer_variables(model)
        self.is_beside = [id(v) in kept for v in model.non_trainable_variables]
        self.fixed = local_variables(model)
        self.is_random = [is_random_state(v) for v in self.fixed]
        self.optimizers = optimizers_of(model)
        applied = spec.applied or (1,)
        self.optimizer: Any = self.optimizers[applied.index(1) if 1 in applied else 0]
        """The optimizer that is given the mean, where gradients are exchanged."""
        self.updated = [(place, True) for place in range(len(self.trainable))]
        """Arguments of a step: indices of variables, and whether they have gradients.
        Keras leaves a variable without one unchanged: no weight decay, no momentum."""
        self.rate = rate_variable(self.optimizers[0])
        self.steps = [step_of(optimizer) for optimizer in self.optimizers]
        self.schedules = self._wrap_schedules(applied)
        self._began = float(numpy_of(self.steps[0]))
        self.zero = [numpy_of(v) for v in _reset_metrics(model)]
        self.shown_size = len(spec.logs) + 1 if spec.logs else 0
        self.metrics_size = sum(z.size for z in self.zero) + self.shown_size
        self.is_narrow = any(e.dtype != "float32" for e in self.layout.entries)

    def assign(self, model: Sequence[Any], optimizer: Sequence[Any]) -> None:
        """Sets all variables to other values.

        Args:
            model: Values of the model's variables, in its order.
            optimizer: Values of the optimizers' variables.
        """
        variables = [*all_variables(self.model), *self.slots]
        for variable, value in zip(variables, [*model, *optimizer], strict=True):
            variable.assign(value)
        self._began = float(numpy_of(self.steps[0]))
        for schedule in self.schedules:
            schedule.begin()

    def _wrap_schedules(self, applied: Sequence[int]) -> list[Scheduled]:
        """Lets schedules read the run clock.

        Where one worker runs the user's own steps, the optimizers' counts
        are those of plain Keras, however often a step applies each of them.
        """
        if self.spec.is_alone and has_own_step(self.model):
            return []
        known = {id(v) for v in self.slots}
        found: list[Scheduled] = []
        for optimizer, times in zip(self.optimizers, applied, strict=False):
            for leaf in leaves(optimizer) if times else []:
                if id(leaf._iterations) not in known:
                    continue
                if clock := _wrap_schedule(leaf, self.spec.scaling):
                    found.append(Scheduled(clock, leaf._iterations, times))
        return found

    def starts(self, clock: Clock) -> list[float]:
        """Returns the run clock for each schedule."""
        return [s.start(clock.start - self._began) for s in self.schedules]

    def take_note(
        self, optimizer: Any, variables: Sequence[Any], gradients: Sequence[Any]
    ) -> list[Any]:
        """Remembers the arguments that a training step gives its optimizer.

        Returns:
            Gradients in the order of the layout, None for a variable without one.
        """
        places = {id(v): place for place, v in enumerate(self.trainable)}
        pairs = zip(variables, gradients, strict=True)
        given = [(places[id(v)], g) for v, g in pairs if id(v) in places]
        self.optimizer = optimizer
        self.updated = [(place, g is not None) for place, g in given]
        found = dict(given)
        return [found.get(place) for place in range(len(self.trainable))]

    def chosen(self, gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the arguments of `apply` that a training step would give it.

        Args:
            gradients: One gradient a variable, in the order of the layout.
        """
        # `MultiOptimizer` needs all variables, those without a gradient as well.
        is_whole = len(leaves(self.optimizer)) > 1
        kept = [(p, has_one) for p, has_one in self.updated if has_one or is_whole]
        arrays = [gradients[place] if has_one else None for place, has_one in kept]
        return arrays, [self.trainable[place] for place, _ in kept]

    @property
    def loss_places(self) -> list[tuple[int, npt.NDArray[np.intp]]]:
        """Returns which metric states hold sums of the loss, and where in each.

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
    """Returns a copy of the value of a Keras variable, in its own dtype."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def wrong_count(model: Any, count: int, call: str) -> PlanError:
    """Returns the error that gradients of a step cannot be exchanged."""
    return PlanError(
        f"train_step of {model.name!r} applied gradients {count} times in one step. "
        f"Gradient exchange expects exactly one {call}. Choose a strategy that "
        "exchanges weights, for example 'local_sgd'."
    )


def place(variables: Sequence[Any], wanted: Any) -> int:
    """Returns the index of a variable by identity, -1 when it is not among them."""
    places = [i for i, v in enumerate(variables) if v is wanted]
    return places[0] if places else -1


def wide(layout: Layout) -> Layout:
    """The same shapes in float32."""
    return Layout(
        tuple(
            VariableSlice(path=e.path, shape=e.shape, dtype="float32")
            for e in layout.entries
        )
    )


def _wrap_schedule(inner: Any, scaling: RateScaling | None) -> RunClock | None:
    rate = getattr(inner, "_learning_rate", None)
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if not is_schedule and (scaling is None or not isinstance(rate, keras.Variable)):
        return None
    every = inner.gradient_accumulation_steps or 1
    clock = inner._learning_rate = RunClock(rate, every, scaling)
    return clock


def _reset_metrics(model: Any) -> list[Any]:
    for metric in model.metrics:
        metric.reset_state()
    return list(model.metrics_variables)
