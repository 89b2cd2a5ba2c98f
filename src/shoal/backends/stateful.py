"""Backends whose models hold their state in variables, as TensorFlow's and torch's do.

This file decides what the variables hold and when. A window of steps is given flat
vectors and returns flat vectors: between windows only optimizer and random state
in the variables matter. While gradients are exchanged the weights stay in
the variables, from one `load` to the next.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from shoal.backends.base import Backend, Clock, ComputeSpec, Data
from shoal.backends.fixed import Fixed, is_same
from shoal.backends.parts import ModelParts, numpy_of, wrong_count
from shoal.vectors import Vector

Values = list[npt.NDArray[Any]]


class Taken(NamedTuple):
    """Result of a window of steps.

    Args:
        weights: Final values of the variables, `(size,)`.
        statistics: Final statistics, `(count,)`.
        velocity: Velocity of the look-ahead momentum, `(size,)` or empty.
        grown: Growth of metrics and logs.
        fine: Number of steps before the first loss that was not finite.
    """

    weights: Vector
    statistics: Vector
    velocity: Vector
    grown: npt.NDArray[Any]
    fine: int


class Gradients(NamedTuple):
    """Result of a step without its update.

    Args:
        arrays: One gradient a variable, averaged over the batch.
        statistics: Statistics after the step, `(count,)`.
        grown: Growth of metrics and logs.
        mass: Divisor of its loss, if masks leave entries out; else 0.
    """

    arrays: Sequence[npt.NDArray[Any]]
    statistics: Vector
    grown: npt.NDArray[Any]
    mass: float = 0.0


class _State(NamedTuple):
    """The complete state of one worker, in arrays of its own."""

    vector: Vector
    statistics: Vector
    velocity: Vector
    fixed: Values
    slots: Values
    sums: npt.NDArray[np.float64]


class StatefulBackend(Backend):
    """See `Backend`. Subclass it with the three programs of a backend."""

    def __init__(self, model: Any, spec: ComputeSpec) -> None:
        self._spec, self.model = spec, model
        self._parts = parts = ModelParts(model, spec)
        self.layout, self.statistics_layout = parts.layout, parts.statistics_layout
        self.metrics_size = parts.metrics_size
        self._sums = np.zeros(self.metrics_size)
        self._warm = set[str]()
        self._undone: dict[int, Any] = {}  # local state before the last gradient
        self._last: Data | None = None  # rows of a step, for `skip`
        self._begin(spec.rank_seed)

    def _begin(self, rank_seed: int) -> None:
        """Reads the values of the model's variables."""
        parts = self._parts
        self._rank_seed = rank_seed
        self._fixed = Fixed(_values(parts.fixed), parts.is_random, rank_seed)
        self._put(self._fixed.seeded(rank_seed))
        momentum = self.layout.size if self._spec.local_momentum else 0
        self._velocity = np.zeros(momentum, np.float32)
        self._statistics = parts.statistics_layout.gather(parts.beside)
        self._vector: Vector = parts.layout.gather(parts.trainable)
        self._is_unfolded = False
        """Whether the variables hold the weights, and `_vector` is out of date."""

    def renew(
        self, model: Sequence[Any], optimizer: Sequence[Any], rank_seed: int
    ) -> None:
        """Starts over with other values."""
        self._parts.assign(model, optimizer)
        self._sums[:] = 0.0
        self._begin(rank_seed)

    # ------------------------------------------------- programs of a backend

    @abstractmethod
    def _window(
        self,
        point: Vector,
        statistics: Vector,
        velocity: Vector,
        data: Data,
        steps: int,
    ) -> Taken:
        """Takes `steps` steps from a point; metrics start from zero.

        With momentum the variables hold x + mu v, which is also `point`; after each
        step v := mu v + (the change of the variables), and they move by mu v more.

        Args:
            point: Values for the variables.
            statistics: Values for the statistics.
            velocity: The velocity v, or empty.
            data: The argument of `run`: rows of `steps` steps, in order.
            steps: Number of steps.
        """

    @abstractmethod
    def _gradients(self, statistics: Vector, data: Data, scale: float) -> Gradients:
        """Takes one step with the weights in the variables, without its update.

        Args:
            statistics: Statistics before the step.
            data: Rows of the step.
            scale: Factor of the loss, if it sums over the batch.
        """

    @abstractmethod
    def _update(self, gradient: Vector) -> None:
        """Applies a gradient to the variables with the optimizer."""

    # --------------------------------------------------------------- weights

    def load(self, vector: Vector, statistics: Vector) -> None:
        """Sets weights and statistics."""
        self._vector, self._is_unfolded = vector, False
        self._statistics = statistics.copy()

    def read(self) -> tuple[Vector, Vector]:
        """Returns weights and statistics."""
        self._fold()
        return self._vector, self._statistics

    def statistics(self) -> Vector:
        """Returns the statistics alone."""
        return self._statistics

    def set_statistics(self, statistics: Vector) -> None:
        """Sets the statistics alone."""
        if statistics.size:
            self._statistics = statistics.copy()

    def run(self, data: Data, steps: int, clock: Clock) -> int | None:
        """Takes `steps` optimizer steps."""
        parts, mu = self._parts, self._spec.local_momentum
        self._fold()
        self._read_clock(clock)
        point = _plus(self._vector, self._velocity, mu)
        taken = self._window(point, self._statistics, self._velocity, data, steps)
        vector = taken.weights
        if parts.is_narrow:  # the master takes only the change of the steps
            vector = point + vector - _rounded(point, parts)
        self._velocity = taken.velocity
        self._vector = _plus(vector, self._velocity, -mu)
        self._statistics = taken.statistics
        self._sums += taken.grown
        return taken.fine if taken.fine < steps else None

    # ------------------------------------------------------------- gradients

    def gradient(self, data: Data, step_rows: int, out: Vector) -> float:
        """Writes the sum of gradients of one step; returns its mass."""
        self._unfold()
        is_measured, fixed = self._fixed.is_measured, self._parts.fixed
        if self._spec.is_scaled:
            self._undone = self._fixed.before_step(_views(fixed))
        before = [] if is_measured else self._fixed.settled(_views(fixed))
        rows = _rows(data)
        found = self._gradients(self._statistics, data, step_rows / rows)
        if not is_measured:
            self._fixed.measure(before, _views(fixed))
        self._last = data
        self._statistics = found.statistics
        self._sums += found.grown
        is_masked = self._spec.has_masks
        mass = np.float32(found.mass if is_masked else self._mass(data, rows))
        with np.errstate(over="ignore", invalid="ignore"):
            for start, array in zip(self.layout.offsets, found.arrays, strict=True):
                part = out[start : start + array.size]
                np.multiply(array.reshape(-1), mass, out=part)
        return float(mass)

    def _mass(self, data: Data, rows: int) -> float:
        """Returns the weight of a gradient in the mean of all workers."""
        is_weighted = self._spec.mass == "weights"
        if is_weighted and isinstance(data, tuple) and len(data) > 2:
            return float(np.sum(leaves(data[2])[0], dtype=np.float32))
        return float(rows)

    def undo(self) -> None:
        """Restores local state to that before the last gradient."""
        for place, value in self._undone.items():
            self._parts.fixed[place].assign(value)

    def skip(self) -> None:
        """Advances local state as if this worker had taken the step."""
        if self._last is None or not self._fixed.has_to_step:
            self._put(self._fixed.skip(_views(self._parts.fixed)))
            return
        statistics, sums = self._statistics, self._sums.copy()
        out = np.empty(self.layout.size, np.float32)
        self.gradient(self._last, _rows(self._last), out)
        self._statistics, self._sums = statistics, sums

    def apply(self, mean: Vector, clock: Clock) -> None:
        """Takes the optimizer step."""
        parts = self._parts
        self._unfold()
        self._read_clock(clock)
        if not parts.is_narrow:
            self._update(mean)
            return
        before = self.layout.gather(parts.trainable)
        self._update(mean)
        moved = self.layout.gather(parts.trainable) - before
        # The master of narrow variables takes only the change of the step.
        self._vector = np.add(self._vector, moved, dtype=np.float32)
        self.layout.scatter(self._vector, parts.trainable)

    def _unfold(self) -> None:
        """Moves the weights into the variables until `_fold`."""
        if not self._is_unfolded:
            self.layout.scatter(self._vector, self._parts.trainable)
            self._is_unfolded = True

    def _fold(self) -> None:
        """Moves the weights out of the variables; narrow ones have a master."""
        if self._is_unfolded and not self._parts.is_narrow:
            self._vector = self.layout.gather(self._parts.trainable)
        self._is_unfolded = False

    # ---------------------------------------------------- clock and metrics

    def _read_clock(self, clock: Clock) -> None:
        """Makes schedules read the run clock from here."""
        schedules = self._parts.schedules
        pairs = zip(schedules, self._parts.starts(clock), strict=True)
        for number, (schedule, start) in enumerate(pairs):
            began = float(numpy_of(schedule.step))
            self._set_clock(number, (start, clock.pace, began))

    def _set_clock(self, number: int, now: tuple[float, float, float]) -> None:
        """Stores a clock where programs read it; see `RunClock.now`."""
        self._parts.schedules[number].clock.now = now

    def set_learning_rate(self, value: float) -> None:
        """Sets the optimizer's learning rate; no-op under a schedule."""
        if self._parts.rate is not None:
            self._parts.rate.assign(value)

    def take_metrics(self, out: npt.NDArray[np.float64], *, add: bool) -> None:
        """Writes or adds the sums of metric state since the last call."""
        out[:] = out + self._sums if add else self._sums
        self._sums[:] = 0.0

    # ----------------------------------------------------------------- state

    def snapshot(self) -> bytes:
        """Returns the optimizers' variables as raw bytes, in their order, and more.

        The driver's model has the same optimizers, and reads no further.
        """
        slots = b"".join(v.tobytes() for v in _values(self._parts.slots))
        return slots + self._fixed.pack(_views(self._parts.fixed))

    def restore(self, blob: bytes) -> None:
        """Sets the optimizers' variables from a snapshot."""
        at = 0
        for variable in self._parts.slots:
            value = numpy_of(variable)
            # A copy: bytes are read-only, and torch warns of that.
            array = np.frombuffer(blob, value.dtype, value.size, at).copy()
            variable.assign(array.reshape(value.shape))
            at += array.nbytes
        if len(blob) > at:
            self._put(self._fixed.unpack(memoryview(blob)[at:]))

    def change(
        self,
        fixed: Mapping[int, npt.NDArray[Any]],
        optimizer: Mapping[int, npt.NDArray[Any]],
    ) -> None:
        """Gives variables other values."""
        parts = self._parts
        for variables, changed in (
            (parts.fixed, fixed),
            (parts.slots, optimizer),
        ):
            for place, value in changed.items():
                variables[place].assign(value.reshape(variables[place].shape))

    def keep(self) -> tuple[Any, ...]:
        """Copies all state."""
        vector = self._vector
        if self._is_unfolded and not self._parts.is_narrow:
            vector = self.layout.gather(self._parts.trainable)
        return self._state(vector)

    def revert(self, kept: tuple[Any, ...]) -> None:
        """Restores a kept state; sums of metrics start again."""
        self._install(_State(*kept))
        self._sums = np.zeros_like(self._sums)

    def fork(self, rank: int) -> tuple[Any, ...]:
        """Returns the state with which worker `rank` would begin."""
        state = self._state(self._vector)
        return state._replace(
            velocity=np.zeros_like(self._velocity),
            fixed=self._fixed.seeded(rank),
            sums=np.zeros_like(self._sums),
        )

    def fork_local(self, rank: int) -> Any:
        """Returns the local state with which worker `rank` would begin."""
        return self._fixed.seeded(rank)

    def local(self) -> Any:
        """Returns the current local state."""
        return self._fixed.settled(_views(self._parts.fixed))

    def set_local(self, state: Any) -> None:
        """Continues from another local state."""
        self._put(state)

    def swap(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Continues as the worker with `state`."""
        self._fold()
        before = self._state(self._vector)
        self._install(_State(*state))
        return before

    def _state(self, vector: Vector) -> _State:
        parts = self._parts
        return _State(
            vector=vector,
            statistics=self._statistics.copy(),
            velocity=self._velocity.copy(),
            fixed=self._fixed.settled(_views(parts.fixed)),
            slots=_values(parts.slots),
            sums=self._sums.copy(),
        )

    def _install(self, state: _State) -> None:
        parts = self._parts
        self._vector, self._is_unfolded = state.vector, False
        self._statistics = state.statistics.copy()
        self._velocity = state.velocity.copy()
        self._sums = state.sums.copy()
        self._put(state.fixed)
        _assign(parts.slots, state.slots)

    def _put(self, values: Values) -> None:
        """Sets the fixed variables; a frozen one has its own value most often."""
        fixed = self._parts.fixed
        for variable, now, value in zip(fixed, _views(fixed), values, strict=True):
            if not is_same(now, value):
                variable.assign(value)

    def warm_up(self, data: Data, *, is_gradient: bool) -> None:
        """Compiles the programs of the run by taking a step, which is then undone."""
        made = str((is_gradient, [np.shape(leaf) for leaf in leaves(data)]))
        if made in self._warm:
            return
        kept = self.keep()
        if is_gradient:
            out = np.empty(self.layout.size, np.float32)
            self.gradient(data, _rows(data), out)
            self.apply(np.zeros_like(out), Clock())
        else:
            self.run(data, max(1, _rows(data) // self._spec.batch_size), Clock())
        self.revert(kept)
        self._warm.add(made)

    @staticmethod
    def forget() -> None:
        """Frees the state that Keras keeps of models."""
        keras.backend.clear_session()
        gc.collect()


@contextmanager
def caught_gradients(parts: ModelParts) -> Generator[list[list[Any]]]:
    """Captures the gradients that a `train_step` passes to an optimizer.

    Yields:
        A list with one entry a call: gradients in the order of the layout, None
            for a variable without one.

    Raises:
        PlanError: The number of calls was not one.
    """
    caught: list[list[Any]] = []

    def keeping(optimizer: Any) -> Any:
        def keep(grads: Any, trainable_variables: Any = None) -> None:
            given = trainable_variables
            variables = optimizer._trainable_variables if given is None else given
            caught.append(parts.take_note(optimizer, list(variables), list(grads)))

        return keep

    for optimizer in parts.optimizers:
        # Not by assignment: Keras tracks what is assigned to an optimizer.
        object.__setattr__(optimizer, "apply", keeping(optimizer))
    try:
        yield caught
    finally:
        for optimizer in parts.optimizers:
            object.__delattr__(optimizer, "apply")
    if not parts.trainable and not caught:  # all frozen: Keras takes no step
        caught.append([])
    if len(caught) != 1:
        raise wrong_count(parts.model, len(caught), "optimizer.apply")


def leaves(data: Data) -> list[Any]:
    """Returns the arrays of a batch."""
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def _rows(data: Data) -> int:
    return len(leaves(data)[0])


def _values(variables: Sequence[Any]) -> Values:
    return [numpy_of(variable) for variable in variables]


def _views(variables: Sequence[Any]) -> Values:
    """Returns values to read; their memory may be that of the variables."""
    return [np.asarray(keras.ops.convert_to_numpy(v.value)) for v in variables]


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _plus(vector: Vector, velocity: Vector, mu: float) -> Vector:
    """Returns x + mu v; with mu = 0 the vector itself, and there is no velocity."""
    return np.add(vector, mu * velocity, dtype=np.float32) if mu else vector


def _rounded(point: Vector, parts: ModelParts) -> Vector:
    """Returns a vector with the precision of narrow variables."""
    out = np.empty_like(point)
    for start, entry in zip(parts.layout.offsets, parts.layout.entries, strict=True):
        part = slice(start, start + entry.size)
        narrow = keras.ops.cast(keras.ops.convert_to_tensor(point[part]), entry.dtype)
        out[part] = keras.ops.convert_to_numpy(keras.ops.cast(narrow, "float32"))
    return out
