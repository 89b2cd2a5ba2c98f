"""JAX: windows of steps as one compiled loop over flat vectors.

The weights live as one float32 vector; the program cuts it into variables, runs
Keras' own `train_step` in a loop, and joins the result again, so that Python
touches nothing per variable or per step. A model that overrides `train_step` is
therefore honoured without special care.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
import numpy.typing as npt
from jax import lax

from shoal.backends.base import Backend, Clock, ComputeSpec, Data
from shoal.errors import PlanError
from shoal.vectors import (
    Entry,
    Layout,
    Vector,
    exchanged_variables,
    statistic_variables,
)

Array: TypeAlias = Any
Arrays: TypeAlias = list[Array]


def _cut(vector: Array, layout: Layout) -> Arrays:
    """A flat vector as arrays of the layout's shapes and dtypes."""
    return [
        vector[start : start + e.size].reshape(e.shape).astype(e.dtype)
        for start, e in zip(layout.offsets, layout.entries, strict=True)
    ]


def _join(arrays: Sequence[Array]) -> Array:
    """The inverse of `_cut`."""
    if not arrays:
        return jnp.zeros((0,), jnp.float32)
    return jnp.concatenate([a.astype(jnp.float32).reshape(-1) for a in arrays])


def _like(values: Sequence[Array], before: Sequence[Array]) -> Arrays:
    """Keeps dtypes over a loop: custom steps may hand back wider ones."""
    return [
        jnp.asarray(v).astype(b.dtype) for v, b in zip(values, before, strict=True)
    ]


class RunClock(keras.optimizers.schedules.LearningRateSchedule):
    """Reads a schedule at the run clock instead of at the local step count.

    Args:
        schedule: The user's.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self.now: tuple[Array, Array, Array] | None = None

    def __call__(self, step: Array) -> Array:
        """The learning rate of a local step."""
        if self.now is None:
            return self.schedule(step)
        start, pace, began = self.now
        ticks = (jnp.asarray(step, "float32") - began) * pace
        return self.schedule(start + ticks)

    def get_config(self) -> dict[str, Any]:
        """As the schedule's."""
        return self.schedule.get_config()


@final
class JaxBackend(Backend):
    """See `Backend`. One device; threads are set by the process's environment."""

    def __init__(self, model: keras.Model, spec: ComputeSpec) -> None:
        self._model, self._spec = model, spec
        self._trainable = exchanged_variables(model)
        self.layout = Layout.of(self._trainable)
        statistics = statistic_variables(model)
        self.statistics_layout = Layout.of(statistics)
        kept = {id(v) for v in statistics}
        fixed = list(model.non_trainable_variables)
        self._is_statistic = [id(v) in kept for v in fixed]
        self._fixed = [v.value for v in fixed if id(v) not in kept]
        self._reseed(fixed, kept)
        optimizer: Any = model.optimizer
        self._optimizer = optimizer
        self._slots = [v.value for v in optimizer.variables]
        inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
        self._rate_at = _place(optimizer.variables, inner._learning_rate)
        self._step_at = _place(optimizer.variables, inner.iterations)
        self._clock = self._wrap_schedule(inner)
        self._zero = [np.asarray(v.value) for v in _initial(model)]
        self.metrics_size = sum(z.size for z in self._zero)
        self._sums = np.zeros(self.metrics_size)
        self._vector: Array = self.layout.gather(self._trainable)
        self._statistics: Array = self.statistics_layout.gather(statistics)
        self._velocity: Array = jnp.zeros(
            self.layout.size if spec.local_momentum else 0, jnp.float32
        )
        self._mean: tuple[Vector, Clock] | None = None
        self._run = jax.jit(self._window, donate_argnums=(2, 3, 4))
        self._first = jax.jit(self._gradient, donate_argnums=(2,))
        self._next = jax.jit(self._apply_then_gradient, donate_argnums=(2, 3))
        self._last = jax.jit(self._apply, donate_argnums=(1,))

    # ---------------------------------------------------------------- set-up

    def _reseed(self, fixed: Sequence[Any], kept: set[int]) -> None:
        """Mixes the rank into random state; rank 0 keeps Keras' own."""
        at = 0
        for v in fixed:
            if id(v) in kept:
                continue
            is_seed = "uint32" in str(v.dtype) and tuple(v.shape) == (2,)
            if is_seed and self._spec.rank_seed:
                seed = np.asarray(v.value).copy()
                words = np.random.SeedSequence([int(seed[0]), self._spec.rank_seed])
                seed[0] = words.generate_state(1)[0]
                self._fixed[at] = jnp.asarray(seed)
            at += 1

    def _wrap_schedule(self, inner: Any) -> RunClock | None:
        schedules = keras.optimizers.schedules.LearningRateSchedule
        if not isinstance(inner._learning_rate, schedules):
            return None
        inner._learning_rate = RunClock(inner._learning_rate)
        return inner._learning_rate

    # --------------------------------------------------------------- programs

    def _whole(self, statistics: Array, fixed: Arrays) -> Arrays:
        """Non-trainable variables in the model's order."""
        ours = iter(_cut(statistics, self.statistics_layout))
        rest = iter(fixed)
        return [next(ours) if own else next(rest) for own in self._is_statistic]

    def _split(self, values: Sequence[Array]) -> tuple[Array, Arrays]:
        ours = [v for v, own in zip(values, self._is_statistic, strict=True) if own]
        rest = [v for v, own in zip(values, self._is_statistic, strict=True) if not own]
        return _join(ours), rest

    @contextmanager
    def _at(self, clock: Array, slots: Arrays) -> Iterator[None]:
        """Gives the schedule the traced run clock while a program is traced."""
        if self._clock is not None:
            began = slots[self._step_at].astype("float32")
            self._clock.now = (clock[0], clock[1], began)
        try:
            yield
        finally:
            if self._clock is not None:
                self._clock.now = None

    def _window(
        self,
        vector: Array,
        statistics: Array,
        fixed: Arrays,
        slots: Arrays,
        velocity: Array,
        data: Data,
        steps: Array,
        clock: Array,
    ) -> tuple[Array, Array, Arrays, Arrays, Array, Arrays]:
        """Up to `window` steps; `data` has a leading axis of steps."""
        mu = self._spec.local_momentum
        start = _cut(vector + mu * velocity if mu else vector, self.layout)
        speeds = _cut(velocity, self._speed_layout()) if mu else []
        metrics = [jnp.asarray(z) for z in self._zero]

        def body(i: Array, carry: Any) -> Any:
            weights, others, slots, metrics, speeds = carry
            rows = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, 0, False), data)
            state = (weights, others, slots, metrics)
            _, after = cast("Any", self._model).train_step(state, rows)
            after = [_like(a, b) for a, b in zip(after, state, strict=True)]
            if mu:
                # The variables hold x + mu v; see the EAMSGD docstring.
                moves = [a - b for a, b in zip(after[0], weights, strict=True)]
                speeds = [mu * v + m for v, m in zip(speeds, moves, strict=True)]
                after[0] = [
                    (a + mu * v).astype(a.dtype)
                    for a, v in zip(after[0], speeds, strict=True)
                ]
            return (*after, speeds)

        with self._at(clock, slots):
            carry = (start, self._whole(statistics, fixed), slots, metrics, speeds)
            weights, others, slots, metrics, speeds = lax.fori_loop(
                0, steps, body, carry
            )
        velocity = _join(speeds) if mu else velocity
        vector = self._master(vector, start, weights, velocity)
        statistics, fixed = self._split(others)
        return vector, statistics, fixed, slots, velocity, self._grown(metrics)

    def _speed_layout(self) -> Layout:
        entries = self.layout.entries
        return Layout(
            tuple(Entry(path=e.path, shape=e.shape, dtype="float32") for e in entries)
        )

    def _master(
        self, vector: Array, start: Arrays, weights: Arrays, velocity: Array
    ) -> Array:
        """The float32 vector after a window; narrow weights only add their change."""
        if any(e.dtype != "float32" for e in self.layout.entries):
            moved = _join(weights) - _join(start)
            base = vector + self._spec.local_momentum * velocity
            return base + moved if self._spec.local_momentum else vector + moved
        joined = _join(weights)
        if self._spec.local_momentum:
            return joined - self._spec.local_momentum * velocity
        return joined

    def _grown(self, metrics: Arrays) -> Arrays:
        return [m - z for m, z in zip(metrics, self._zero, strict=True)]

    def _gradient(
        self,
        vector: Array,
        statistics: Array,
        fixed: Arrays,
        slots: Arrays,
        data: Data,
        scale: Array,
    ) -> tuple[Array, Array, Array, Arrays, Arrays]:
        """The sum of gradients of one step, its mass, and what else it changed."""
        metrics = [jnp.asarray(z) for z in self._zero]
        state = (
            _cut(vector, self.layout),
            self._whole(statistics, fixed),
            slots,
            metrics,
        )
        with _caught(self._optimizer) as caught, self._scaled_loss(scale):
            _, after = cast("Any", self._model).train_step(state, data)
        if len(caught) != 1:
            raise PlanError(
                f"train_step of {self._model.name!r} applied gradients {len(caught)} "
                "times in one step. Gradient exchange expects exactly one "
                "optimizer.stateless_apply. Choose a strategy that exchanges weights, "
                "for example 'local_sgd'."
            )
        rows = jax.tree.leaves(data)[0].shape[0]
        mass = jnp.asarray(float(rows), jnp.float32)
        if self._spec.mass == "weights" and len(data) > 2:
            mass = jnp.sum(jax.tree.leaves(data[2])[0]).astype(jnp.float32)
        gradient = _join(caught[0]) * mass
        statistics, fixed = self._split(_like(after[1], state[1]))
        grown = self._grown(_like(after[3], metrics))
        return gradient, mass, statistics, fixed, grown

    @contextmanager
    def _scaled_loss(self, scale: Array) -> Iterator[None]:
        """For losses that sum over the batch: the mean over ranks becomes a sum."""
        loss = cast("Any", self._model)._compile_loss
        if not self._spec.is_summed or loss is None:
            yield
            return
        call = loss.call
        loss.call = lambda *a, **k: call(*a, **k) * scale
        try:
            yield
        finally:
            loss.call = call

    def _apply(
        self, vector: Array, slots: Arrays, mean: Array, clock: Array
    ) -> tuple[Array, Arrays]:
        """One optimizer step with a gradient that came from all workers."""
        weights = _cut(vector, self.layout)
        gradients = _cut(mean, self.layout)
        with self._at(clock, slots):
            after, slots = self._optimizer.stateless_apply(slots, gradients, weights)
        after = _like(after, weights)
        return self._master(vector, weights, after, jnp.zeros(0)), list(slots)

    def _apply_then_gradient(
        self,
        vector: Array,
        statistics: Array,
        fixed: Arrays,
        slots: Arrays,
        mean: Array,
        clock: Array,
        data: Data,
        scale: Array,
    ) -> tuple[Any, ...]:
        """The last step's update and the next one's gradient in one program."""
        vector, slots = self._apply(vector, slots, mean, clock)
        out = self._gradient(vector, statistics, fixed, slots, data, scale)
        return vector, slots, *out

    # ------------------------------------------------------------ the interface

    def load(self, vector: Vector, statistics: Vector) -> None:
        self._mean = None
        self._vector, self._statistics = vector, statistics.copy()

    def read(self) -> tuple[Vector, Vector]:
        self._settle()
        return np.asarray(self._vector), np.asarray(self._statistics)

    def run(self, data: Data, steps: int, clock: Clock) -> None:
        rows = jax.tree.leaves(data)[0].shape[0]
        size = rows // steps
        limit = self._spec.window if size == self._spec.batch_size else steps
        staged = jax.tree.map(lambda a: _stage(a, steps, size, limit), data)
        (self._vector, self._statistics, self._fixed, self._slots, self._velocity,
         grown) = self._run(
            self._vector, self._statistics, self._fixed, self._slots,
            self._velocity, staged, np.int32(steps), _clock(clock),
        )  # fmt: skip
        self._count(grown)

    def gradient(self, data: Data, gang_rows: int) -> tuple[Vector, float]:
        rows = jax.tree.leaves(data)[0].shape[0]
        scale = np.float32(gang_rows / rows)
        if self._mean is None:
            out = self._first(
                self._vector, self._statistics, self._fixed, self._slots, data, scale
            )
        else:
            mean, clock = self._mean
            self._mean = None
            self._vector, self._slots, *out = self._next(
                self._vector, self._statistics, self._fixed, self._slots,
                mean, _clock(clock), data, scale,
            )  # fmt: skip
        gradient, mass, self._statistics, self._fixed, grown = out
        self._count(grown)
        return np.asarray(gradient), float(mass)

    def apply(self, mean: Vector, clock: Clock) -> None:
        self._settle()
        self._mean = mean, clock

    def _settle(self) -> None:
        if self._mean is not None:
            mean, clock = self._mean
            self._mean = None
            self._vector, self._slots = self._last(
                self._vector, self._slots, mean, _clock(clock)
            )
            jax.block_until_ready(self._vector)

    def _count(self, grown: Arrays) -> None:
        at = 0
        for g in grown:
            flat = np.asarray(g, np.float64).reshape(-1)
            self._sums[at : at + flat.size] += flat
            at += flat.size

    def statistics(self) -> Vector:
        return np.asarray(self._statistics)

    def set_statistics(self, statistics: Vector) -> None:
        self._statistics = statistics.copy()

    def take_metrics(self, out: npt.NDArray[np.float64], *, add: bool) -> None:
        out[:] = out + self._sums if add else self._sums
        self._sums[:] = 0.0

    def set_learning_rate(self, value: float) -> None:
        if self._rate_at >= 0:
            old = self._slots[self._rate_at]
            self._slots[self._rate_at] = jnp.asarray(value, old.dtype)

    def snapshot(self) -> bytes:
        self._settle()
        return b"".join(np.asarray(v).tobytes() for v in self._slots)

    def restore(self, blob: bytes) -> None:
        at = 0
        for place, value in enumerate(self._slots):
            count = int(np.prod(value.shape, dtype=np.int64))
            array = np.frombuffer(blob, value.dtype, count, at).reshape(value.shape)
            self._slots[place] = jnp.array(array)
            at += array.nbytes

    def warm_up(self, data: Data, *, is_gradient: bool) -> None:
        clock, count = _clock(Clock()), np.int32(1)
        if is_gradient:
            rest = self._vector, self._statistics, self._fixed, self._slots
            self._next.lower(*rest, self._vector, clock, data, np.float32(1)).compile()
            self._first.lower(*rest, data, np.float32(1)).compile()
            return
        rows = jax.tree.leaves(data)[0].shape[0]
        steps = max(1, rows // self._spec.batch_size)
        limit = self._spec.window if rows >= self._spec.batch_size else 1
        staged = jax.tree.map(lambda a: _stage(a, steps, rows // steps, limit), data)
        self._run.lower(
            self._vector, self._statistics, self._fixed, self._slots,
            self._velocity, staged, count, clock,
        ).compile()  # fmt: skip


def _place(variables: Sequence[Any], wanted: Any) -> int:
    """Index of a variable by identity, -1 when it is not among them."""
    places = [i for i, v in enumerate(variables) if v is wanted]
    return places[0] if places else -1


def _initial(model: Any) -> list[Any]:
    """Metric variables at their initial values."""
    for metric in model.metrics:
        metric.reset_state()
    return list(model.metrics_variables)


def _stage(array: Any, steps: int, size: int, limit: int) -> Any:
    """Rows as (limit, size, ...); what is beyond `steps` is never read."""
    shaped = array[: steps * size].reshape(steps, size, *array.shape[1:])
    if steps == limit:
        return shaped
    padded = np.zeros((limit, *shaped.shape[1:]), shaped.dtype)
    padded[:steps] = shaped
    return padded


def _clock(clock: Clock) -> npt.NDArray[np.float32]:
    return np.array([clock.start, clock.pace], np.float32)


@contextmanager
def _caught(optimizer: Any) -> Iterator[list[Arrays]]:
    """Keeps the gradients that a train_step hands to its optimizer."""
    caught: list[Arrays] = []

    def keep(slots: Arrays, gradients: Arrays, weights: Arrays) -> tuple[Arrays, Arrays]:
        caught.append(list(gradients))
        return weights, slots

    original: Callable[..., Any] = optimizer.stateless_apply
    object.__setattr__(optimizer, "stateless_apply", keep)
    try:
        yield caught
    finally:
        object.__delattr__(optimizer, "stateless_apply")
        if optimizer.stateless_apply != original:
            object.__setattr__(optimizer, "stateless_apply", original)
