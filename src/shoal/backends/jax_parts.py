"""A Keras model taken apart for XLA: what its programs are given, and give back.

Weights come as one float32 vector; a program cuts it into variables, runs Keras'
own `train_step`, and joins the result again, so that Python touches nothing per
variable or per step. A model that overrides `train_step` is honoured without
special care.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from shoal.backends.base import ComputeSpec, Data
from shoal.vectors import (
    Entry,
    Layout,
    exchanged_variables,
    statistic_variables,
)

Array: TypeAlias = Any
Arrays: TypeAlias = list[Array]


class State(NamedTuple):
    """What a worker carries from call to call.

    Args:
        weights: One float32 vector, `(size,)`; or, while gradients are exchanged,
            its parts in the shapes of the variables, which XLA updates in place.
        statistics: `(count,)` float32.
        fixed: All other non-trainable variables, random state among them.
        slots: Variables of the optimizer.
        velocity: Of the look-ahead momentum, `(size,)`, or empty.
    """

    weights: Array | Arrays
    statistics: Array
    fixed: Arrays
    slots: Arrays
    velocity: Array

    @property
    def is_flat(self) -> bool:
        """Whether the weights are one vector."""
        return not isinstance(self.weights, list)

    def parted(self) -> tuple[State, State]:
        """The two arguments of a program: what stays the caller's, what is donated.

        Flat weights and statistics may be memory that the engine reads.
        """
        kept = self._replace(fixed=[], slots=[], velocity=None)
        given = self._replace(statistics=None)
        if self.is_flat:
            return kept, given._replace(weights=None)
        return kept._replace(weights=None), given

    def merged(self, given: State) -> State:
        """The inverse of `parted`, on what was kept."""
        weights = given.weights if self.weights is None else self.weights
        return given._replace(weights=weights, statistics=self.statistics)


class RunClock(keras.optimizers.schedules.LearningRateSchedule):
    """Reads a schedule at the run clock instead of at the local step count.

    Args:
        schedule: The user's.
        every: Steps of gradients that the optimizer makes one step of.
    """

    def __init__(self, schedule: Any, every: int = 1) -> None:
        self.schedule, self._every = schedule, every
        self.now: tuple[Array, Array, Array] | None = None

    def __call__(self, step: Array) -> Array:
        """Returns the learning rate of a local step."""
        if self.now is None:
            return self.schedule(step)
        start, pace, began = self.now
        taken = jnp.asarray(step, "float32") * self._every
        ticks = start + (taken - began) * pace
        if self._every > 1:
            ticks = jnp.floor(ticks / self._every)
        return self.schedule(ticks)

    def get_config(self) -> dict[str, Any]:
        """Returns the schedule's."""
        return self.schedule.get_config()


@final
class Parts:
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
        self._is_beside = [id(v) in kept for v in model.non_trainable_variables]
        self.fixed = [v for v in model.non_trainable_variables if id(v) not in kept]
        self.optimizer: Any = model.optimizer
        inner: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        self._step_at = place(self.optimizer.variables, inner._iterations)
        self.rate_at = place(self.optimizer.variables, inner._learning_rate)
        self._clock = _wrap_schedule(inner)
        self._zero = [np.asarray(v.value) for v in _reset_metrics(model)]
        self._shown_size = len(spec.logs) + 1 if spec.logs else 0
        self.metrics_size = sum(z.size for z in self._zero) + self._shown_size
        self.is_narrow = any(e.dtype != "float32" for e in self.layout.entries)

    def no_metrics(self) -> Arrays:
        """Metric states as they are after a reset."""
        return [jnp.asarray(z) for z in self._zero]

    def nothing_shown(self) -> Array:
        """The sums of logs before the first step."""
        return jnp.zeros((self._shown_size,), jnp.float32)

    def shown(self, logs: Any, data: Data) -> Array:
        """The logs of one step that are no metrics, times its rows, and the rows."""
        if not self.spec.logs:
            return self.nothing_shown()
        rows = float(jax.tree.leaves(data)[0].shape[0])
        values = [logs.get(name, jnp.nan) for name in self.spec.logs]
        return rows * jnp.stack([jnp.asarray(v, jnp.float32) for v in (*values, 1.0)])

    def grown(self, metrics: Arrays, shown: Array) -> Array:
        """What metric states have gained since a reset, and logs, as one vector."""
        gained = [m - z for m, z in zip(metrics, self._zero, strict=True)]
        return join([*gained, shown])

    def is_loss_finite(self, metrics: Arrays, shown: Array) -> Array:
        """Whether the sums of the loss are finite; true where nobody asks for them."""
        found, start = jnp.bool_(True), 0
        for sums in (*metrics, shown):
            ends = start + sums.size
            ours = [at - start for at in self.spec.loss_at if start <= at < ends]
            if ours:
                found &= jnp.isfinite(sums.reshape(-1)[np.array(ours)]).all()
            start = ends
        return found

    def whole(self, statistics: Array, fixed: Arrays) -> Arrays:
        """Non-trainable variables in the model's order."""
        ours = iter(cut(statistics, self.statistics_layout))
        rest = iter(fixed)
        return [next(ours) if beside else next(rest) for beside in self._is_beside]

    def split(self, values: Sequence[Array]) -> tuple[Array, Arrays]:
        """The inverse of `whole`."""
        pairs = list(zip(values, self._is_beside, strict=True))
        return join([v for v, own in pairs if own]), [v for v, own in pairs if not own]

    @contextmanager
    def at(self, clock: Array, slots: Arrays) -> Generator[None]:
        """Gives the schedule the traced run clock while a program is traced."""
        if self._clock is not None:
            began = slots[self._step_at].astype("float32")
            self._clock.now = (clock[0], clock[1], began)
        try:
            yield
        finally:
            if self._clock is not None:
                self._clock.now = None


def cut(vector: Array, layout: Layout) -> Arrays:
    """A flat vector as arrays of the layout's shapes and dtypes."""
    return [
        vector[start : start + e.size].reshape(e.shape).astype(e.dtype)
        for start, e in zip(layout.offsets, layout.entries, strict=True)
    ]


def join(arrays: Sequence[Array]) -> Array:
    """The inverse of `cut`."""
    if not arrays:
        return jnp.zeros((0,), jnp.float32)
    return jnp.concatenate([a.astype(jnp.float32).reshape(-1) for a in arrays])


def place(variables: Sequence[Any], wanted: Any) -> int:
    """Index of a variable by identity, -1 when it is not among them."""
    places = [i for i, v in enumerate(variables) if v is wanted]
    return places[0] if places else -1


def like(values: Sequence[Array], before: Sequence[Array]) -> Arrays:
    """Keeps dtypes over a loop: custom steps may hand back wider ones."""
    return [jnp.asarray(v).astype(b.dtype) for v, b in zip(values, before, strict=True)]


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
