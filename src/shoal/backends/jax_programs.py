"""The programs of the JAX backend: pure functions of a state, traced by XLA.

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
from jax import lax

from shoal.backends.base import ComputeSpec, Data
from shoal.errors import PlanError
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
        vector: Weights, `(size,)` float32.
        statistics: `(count,)` float32.
        fixed: All other non-trainable variables, random state among them.
        slots: Variables of the optimizer.
        velocity: Of the look-ahead momentum, `(size,)`, or empty.
    """

    vector: Array
    statistics: Array
    fixed: Arrays
    slots: Arrays
    velocity: Array


class RunClock(keras.optimizers.schedules.LearningRateSchedule):
    """Reads a schedule at the run clock instead of at the local step count.

    Args:
        schedule: The user's.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self.now: tuple[Array, Array, Array] | None = None

    def __call__(self, step: Array) -> Array:
        """Returns the learning rate of a local step."""
        if self.now is None:
            return self.schedule(step)
        start, pace, began = self.now
        ticks = (jnp.asarray(step, "float32") - began) * pace
        return self.schedule(start + ticks)

    def get_config(self) -> dict[str, Any]:
        """Returns the schedule's."""
        return self.schedule.get_config()


@final
class Programs:
    """The compiled programs of one model.

    Args:
        model: Built and compiled; its optimizer is built.
        spec: How it is run.
    """

    def __init__(self, model: Any, spec: ComputeSpec) -> None:
        self._model, self._spec = model, spec
        self.trainable = exchanged_variables(model)
        self.beside = statistic_variables(model)
        self.layout = Layout.of(self.trainable)
        self.statistics_layout = Layout.of(self.beside)
        kept = {id(v) for v in self.beside}
        self._is_beside = [id(v) in kept for v in model.non_trainable_variables]
        self.fixed = [v for v in model.non_trainable_variables if id(v) not in kept]
        self.optimizer: Any = model.optimizer
        inner: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        self._step_at = place(self.optimizer.variables, inner.iterations)
        self.rate_at = place(self.optimizer.variables, inner._learning_rate)
        self._clock = _wrap_schedule(inner)
        self._zero = [np.asarray(v.value) for v in _reset_metrics(model)]
        self.metrics_size = sum(z.size for z in self._zero)
        # Vector and statistics may be memory the engine reads: never donated.
        self.window = jax.jit(self._window, donate_argnums=1)
        self.gradient = jax.jit(self._gradient, donate_argnums=1)
        self.apply_then_gradient = jax.jit(self._both, donate_argnums=1)
        self.apply = jax.jit(self._apply_alone, donate_argnums=1)

    # Programs take (kept, given, ...): what stays the caller's, what is donated.

    def _window(
        self, kept: State, given: State, data: Data, steps: Array, clock: Array
    ) -> tuple[State, Arrays]:
        """Takes `steps` steps; `data` has a leading axis of at least as many."""
        state = _merged(kept, given)
        mu = self._spec.local_momentum
        point = state.vector + mu * state.velocity if mu else state.vector
        start = cut(point, self.layout)
        speeds = cut(state.velocity, _wide(self.layout)) if mu else []

        def body(i: Array, carry: Any) -> Any:
            weights, others, slots, metrics, speeds = carry
            rows = jax.tree.map(
                lambda a: lax.dynamic_index_in_dim(a, i, 0, keepdims=False), data
            )
            before = (weights, others, slots, metrics)
            _, after = self._model.train_step(before, rows)
            after = [_like(a, b) for a, b in zip(after, before, strict=True)]
            if mu:
                # The variables hold x + mu v; see the EAMSGD docstring.
                moves = [a - b for a, b in zip(after[0], weights, strict=True)]
                speeds = [mu * v + m for v, m in zip(speeds, moves, strict=True)]
                after[0] = [
                    (a + mu * v).astype(a.dtype)
                    for a, v in zip(after[0], speeds, strict=True)
                ]
            return (*after, speeds)

        others = self._whole(state.statistics, state.fixed)
        carry = (start, others, state.slots, self._no_metrics(), speeds)
        with self._at(clock, state.slots):
            weights, others, slots, metrics, speeds = lax.fori_loop(
                0, steps, body, carry
            )
        statistics, fixed = self._split(others)
        velocity = join(speeds) if mu else state.velocity
        vector = self._master(point, start, weights)
        vector = vector - mu * velocity if mu else vector
        return State(vector, statistics, fixed, slots, velocity), self._grown(metrics)

    def _gradient(
        self, kept: State, given: State, data: Data, scale: Array
    ) -> tuple[State, tuple[Array, Array, Arrays]]:
        """The sum of gradients of one step, its mass, and the growth of metrics."""
        state = _merged(kept, given)
        metrics = self._no_metrics()
        weights = cut(state.vector, self.layout)
        others = self._whole(state.statistics, state.fixed)
        before = (weights, others, state.slots, metrics)
        with _caught(self.optimizer) as caught, self._scaled_loss(scale):
            _, after = self._model.train_step(before, data)
        if len(caught) != 1:
            raise PlanError(
                f"train_step of {self._model.name!r} applied gradients {len(caught)} "
                "times in one step. Gradient exchange expects exactly one "
                "optimizer.stateless_apply. Choose a strategy that exchanges weights, "
                "for example 'local_sgd'."
            )
        mass = self._mass(data)
        statistics, fixed = self._split(_like(after[1], others))
        grown = self._grown(_like(after[3], metrics))
        after_state = state._replace(statistics=statistics, fixed=fixed)
        return after_state, (join(caught[0]) * mass, mass, grown)

    def _mass(self, data: Data) -> Array:
        """What a gradient weighs in the mean of all workers."""
        if self._spec.mass == "weights" and isinstance(data, tuple) and len(data) > 2:
            return jnp.sum(jax.tree.leaves(data[2])[0]).astype(jnp.float32)
        rows = jax.tree.leaves(data)[0].shape[0]
        return jnp.asarray(float(rows), jnp.float32)

    def _apply(self, state: State, mean: Array, clock: Array) -> State:
        """One optimizer step with a gradient that came from all workers."""
        weights = cut(state.vector, self.layout)
        gradients = cut(mean, self.layout)
        with self._at(clock, state.slots):
            after, slots = self.optimizer.stateless_apply(
                state.slots, gradients, weights
            )
        vector = self._master(state.vector, weights, _like(after, weights))
        return state._replace(vector=vector, slots=list(slots))

    def _apply_alone(
        self, kept: State, given: State, mean: Array, clock: Array
    ) -> State:
        return self._apply(_merged(kept, given), mean, clock)

    def _both(
        self,
        kept: State,
        given: State,
        mean: Array,
        clock: Array,
        data: Data,
        scale: Array,
    ) -> tuple[State, tuple[Array, Array, Arrays]]:
        """The last step's update and the next one's gradient in one program."""
        state = self._apply(_merged(kept, given), mean, clock)
        return self._gradient(state, state, data, scale)

    # -------------------------------------------------------------- the parts

    def _no_metrics(self) -> Arrays:
        return [jnp.asarray(z) for z in self._zero]

    def _grown(self, metrics: Arrays) -> Arrays:
        return [m - z for m, z in zip(metrics, self._zero, strict=True)]

    def _whole(self, statistics: Array, fixed: Arrays) -> Arrays:
        """Non-trainable variables in the model's order."""
        ours = iter(cut(statistics, self.statistics_layout))
        rest = iter(fixed)
        return [next(ours) if beside else next(rest) for beside in self._is_beside]

    def _split(self, values: Sequence[Array]) -> tuple[Array, Arrays]:
        pairs = list(zip(values, self._is_beside, strict=True))
        return join([v for v, own in pairs if own]), [v for v, own in pairs if not own]

    def _master(self, vector: Array, before: Arrays, after: Arrays) -> Array:
        """The float32 vector after steps; narrow weights only add their change."""
        if all(e.dtype == "float32" for e in self.layout.entries):
            return join(after)
        return vector + join(after) - join(before)

    @contextmanager
    def _at(self, clock: Array, slots: Arrays) -> Generator[None]:
        """Gives the schedule the traced run clock while a program is traced."""
        if self._clock is not None:
            began = slots[self._step_at].astype("float32")
            self._clock.now = (clock[0], clock[1], began)
        try:
            yield
        finally:
            if self._clock is not None:
                self._clock.now = None

    @contextmanager
    def _scaled_loss(self, scale: Array) -> Generator[None]:
        """For losses that sum over the batch: the mean over ranks becomes a sum."""
        loss = self._model._compile_loss
        if not self._spec.is_summed or loss is None:
            yield
            return
        call = loss.call
        loss.call = lambda *a, **k: call(*a, **k) * scale
        try:
            yield
        finally:
            del loss.call


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


def parted(state: State) -> tuple[State, State]:
    """A state as the two arguments of a program: what is kept, what is donated."""
    kept = state._replace(fixed=[], slots=[], velocity=None)
    return kept, state._replace(vector=None, statistics=None)


def _merged(kept: State, given: State) -> State:
    return given._replace(vector=kept.vector, statistics=kept.statistics)


def _like(values: Sequence[Array], before: Sequence[Array]) -> Arrays:
    """Keeps dtypes over a loop: custom steps may hand back wider ones."""
    return [jnp.asarray(v).astype(b.dtype) for v, b in zip(values, before, strict=True)]


def _wide(layout: Layout) -> Layout:
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
    inner._learning_rate = RunClock(inner._learning_rate)
    return inner._learning_rate


def _reset_metrics(model: Any) -> list[Any]:
    for metric in model.metrics:
        metric.reset_state()
    return list(model.metrics_variables)


@contextmanager
def _caught(optimizer: Any) -> Generator[list[Arrays]]:
    """Keeps the gradients that a train_step hands to its optimizer."""
    caught: list[Arrays] = []

    def keep(
        slots: Arrays, gradients: Arrays, weights: Arrays
    ) -> tuple[Arrays, Arrays]:
        caught.append(list(gradients))
        return weights, slots

    # Not by assignment: Keras tracks what is assigned to an optimizer.
    object.__setattr__(optimizer, "stateless_apply", keep)
    try:
        yield caught
    finally:
        object.__delattr__(optimizer, "stateless_apply")
