"""The user's model while workers train: its state, and when it is set.

This file decides the state of a model and its optimizer whenever a callback
reads them, and after `fit`: weights and statistics of the center, slots of
all optimizers and local state (integers, booleans, random state, changed frozen
weights) of the asked worker, step counts as in plain Keras, and the
learning rate that was set last. The asked worker is the lowest-ranked one that waits
for data, which need not be rank 0; under gradient exchange all workers' slots and
counters are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np

from shoal.backends.fixed import is_random_state, read_changes
from shoal.engine.transport.changes import unstamped
from shoal.models.inspection import learning_rate_of
from shoal.optimizers import (
    counted,
    has_own_step,
    leaves,
    optimizer_variables,
    optimizers_of,
    rate_variable,
    step_of,
)
from shoal.training.callback_state import FixedVariables, checks_of
from shoal.training.marks import differs, mark_of
from shoal.vectors import (
    Layout,
    Vector,
    exchanged_variables,
    local_variables,
    statistic_variables,
)


@final
class _Values(Sequence[Any]):
    """Values of variables, each read on access: some are large."""

    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables

    def __len__(self) -> int:
        return len(self._variables)

    def __getitem__(self, place: Any) -> Any:
        return np.asarray(self._variables[place].numpy())


@final
class UserModel:
    """Writes the state of a run into a Keras model.

    Args:
        model: A built, compiled model, whose optimizers are built.
        applied: Number of times a training step applies each optimizer; empty for the
            first one, once.
        is_alone: Whether one worker trains: its counts of steps are those of plain
            Keras, if the step is the user's.
    """

    def __init__(
        self, model: Any, applied: Sequence[int] = (), *, is_alone: bool = False
    ) -> None:
        self._model = model
        self._optimizers = optimizers_of(model)
        self._slots = optimizer_variables(model)
        self._counts = _counts(self._optimizers, applied or (1,))
        self._has_own_counts = is_alone and has_own_step(model)
        self._is_exact = False
        """Whether the counts of steps are a worker's own, which are right."""
        self._own_rate = rate_variable(self._optimizers[0])
        self._known_rates: dict[int, Any] = {}
        self._weights = exchanged_variables(model)
        self._statistics = statistic_variables(model)
        self._layout = Layout.of(self._weights)
        self._statistics_layout = Layout.of(self._statistics)
        self._local = local_variables(model)
        self._came: dict[int, Any] = {}
        """Initial values of the local variables that workers have changed."""
        self._checks: dict[int, int] = {}
        self._are_frozen = import_module("keras").config.backend() == "jax"
        """Whether a value of a variable never changes: another one is another array."""
        self._known: list[Any] = []

    def keep_came(self, place: int, value: Any) -> None:
        """Notes a callback's change of a local variable; workers have the old value."""
        if value is not None:
            self._came.setdefault(place, np.array(value))

    def adopt(self, vector: Vector, statistics: Vector) -> None:
        """Puts a center into the model."""
        self._layout.scatter(vector, self._weights)
        self._statistics_layout.scatter(statistics, self._statistics)

    @property
    def frozen(self) -> FixedVariables:
        """Returns the large local variables with the model's initial values."""
        return FixedVariables(_Values(self._local), self._checks)

    def moved(self) -> dict[int, Any]:
        """Returns copies of variables that training changes, by index among all.

        Those are all except unchanged ones: mostly frozen weights.
        """
        moving = {id(v) for v in (*self._weights, *self._statistics)}
        moving |= {id(self._local[place]) for place in self._came}
        # Copied: a backend may return memory that it changes later.
        return {
            place: np.array(variable.numpy())
            for place, variable in enumerate(self._model.variables)
            if id(variable) in moving
        }

    def put(self, values: Mapping[int, Any]) -> None:
        """Sets the result of `moved`; variables changed since stay."""
        variables = self._model.variables
        for place, value in values.items():
            variables[place].assign(value)

    def remember(
        self, vector: Vector | None = None, statistics: Vector | None = None
    ) -> None:
        """Adopts an epoch's center and remembers it as the workers' weights.

        Args:
            vector: Weights; None for those of the model, from which a run begins.
            statistics: Their statistics.
        """
        if vector is None or statistics is None:
            for count in self._counts:
                count.began = int(count.step.numpy())
            self._known_rates = {id(v): _number(v) for v in self._other_rates()}
            self._checks = checks_of(_Values(self._local))
        else:
            self.adopt(vector, statistics)
        # Narrow weights are rounded: the values read differ from those written.
        if self._are_frozen:
            self._known = [mark_of(v._value, is_whole=True) for v in self._weights]
        else:
            self._known = [self._layout.gather(self._weights)]

    def is_changed(self) -> bool:
        """Whether the weights were changed since `remember`."""
        if self._are_frozen:
            pairs = zip(self._weights, self._known, strict=False)
            return any(differs(v._value, mark) for v, mark in pairs)
        now = self._layout.gather(self._weights)
        return any(not np.array_equal(now, k, equal_nan=True) for k in self._known)

    def restore_state(self, blob: bytes) -> str | None:
        """Restores a worker's optimizers and local state, except rates set here.

        Args:
            blob: Result of `Backend.snapshot`; it names no variables, so that
                only lengths can be checked.

        Returns:
            The fault, if nothing was restored; None otherwise.
        """
        blob, _ = unstamped(blob)
        variables = self._slots
        values = [np.asarray(variable.numpy()) for variable in variables]
        size = sum(value.nbytes for value in values)
        is_good = len(blob) >= size
        if len(blob) > size:
            try:
                self._restore_local(memoryview(blob)[size:])
            except ValueError:
                is_good = False
        if not is_good:
            return f"a worker sent {len(blob):,} bytes of optimizer state, not {size:,}"
        at = 0
        # A callback may have set another one since the worker was told.
        kept = {id(self._own_rate)}
        known = self._known_rates
        kept |= {id(v) for v in self._other_rates() if _number(v) != known.get(id(v))}
        for variable, value in zip(variables, values, strict=True):
            array = np.frombuffer(blob, value.dtype, value.size, at)
            at += array.nbytes
            if id(variable) not in kept:
                variable.assign(array.reshape(value.shape))
        known.update((id(v), _number(v)) for v in self._other_rates() if id(v) in known)
        self._is_exact = self._has_own_counts
        return None

    def _restore_local(self, blob: memoryview) -> None:
        """Restores a worker's local variables and random counters."""
        found = read_changes(blob, _Values(self._local))
        for place in sorted({*found, *self._came}):
            variable = self._local[place]
            if place not in self._came:
                self._came[place] = np.array(variable.numpy())
            came, value = self._came[place], found.get(place)
            if value is None:
                value = came
            elif is_random_state(variable):
                value = came + value  # the driver's seed is that of rank 0
            variable.assign(np.array(value, came.dtype))

    def _other_rates(self) -> list[Any]:
        """Returns variables with learning rates, except the one sent to workers."""
        kind = import_module("keras").Variable
        rates = [
            getattr(leaf, "_learning_rate", None)
            for optimizer in self._optimizers
            for leaf in leaves(optimizer)
        ]
        return [r for r in rates if isinstance(r, kind) and r is not self._own_rate]

    @property
    def learning_rate(self) -> float | None:
        """Returns the optimizer's rate; None under a schedule, and to set nothing."""
        return learning_rate_of(self._model)

    @learning_rate.setter
    def learning_rate(self, value: float | None) -> None:
        if value is not None and self.learning_rate is not None:
            counted(self._optimizers[0]).learning_rate = value

    def count_steps(self, ticks: int) -> None:
        """Sets step counts to those of plain Keras after so many steps."""
        self._is_exact = False
        for count in self._counts:
            count.step.assign(count.began + ticks * count.times)

    def settle_steps(self, ticks: int) -> None:
        """Sets step counts likewise, if no worker has reported its own since."""
        if not self._is_exact:
            self.count_steps(ticks)

    def finalize(self, ticks: int) -> bool:
        """Does what Keras does at the end of training.

        Moving averages of the optimizer become the weights. Random state advances, so
        that another `fit` draws other numbers: like a worker's, or by one draw a step
        if no worker has reported it.

        Returns:
            Whether weights were replaced.
        """
        self.settle_steps(ticks)
        own = self._model.optimizer
        if own is not None:
            own.finalize_variable_values(self._model.trainable_weights)
        is_replaced = own is not None and any(
            getattr(o, "use_ema", False) for o in leaves(own)
        )
        if is_replaced:
            # Keras lets weights and averages share memory then, and its next fit on
            # JAX would donate the same buffer twice.
            for variable in self._model.trainable_weights:
                variable.assign(np.array(variable.numpy()))
        for place, variable in enumerate(self._local):
            if is_random_state(variable) and place not in self._came:
                state = np.array(variable.numpy())
                state[1] += state.dtype.type(ticks)
                variable.assign(state)
        return is_replaced


@dataclass(kw_only=True)
class _Count:
    """A step count of an optimizer.

    Args:
        step: Its variable.
        times: Number of times a training step applies it.
        began: Its value when the run began.
    """

    step: Any
    times: int
    began: int = 0


def _counts(optimizers: Sequence[Any], applied: Sequence[int]) -> list[_Count]:
    """Returns counts of all optimizers that a training step applies, also nested."""
    found: dict[int, _Count] = {}
    for optimizer, times in zip(optimizers, applied, strict=False):
        inner = [leaf._iterations for leaf in leaves(optimizer) if leaf.built]
        for step in (step_of(optimizer), *inner):
            found[id(step)] = _Count(step=step, times=times)
    return list(found.values())


def _number(variable: Any) -> float:
    return float(np.asarray(variable.numpy()))
