"""A Keras model taken apart for XLA: the arguments and results of its programs.

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
import numpy as np
import numpy.typing as npt

from shoal.backends.base import Clock, ComputeSpec, Data
from shoal.backends.fixed import size_bytes
from shoal.backends.parts import ModelParts, place
from shoal.vectors import Layout

Array: TypeAlias = Any
Arrays: TypeAlias = list[Array]
LITTLE = 1 << 20  # bytes: below this size programs carry the values


class State(NamedTuple):
    """The state that a worker carries from call to call.

    Args:
        weights: One float32 vector, `(size,)`; or, while gradients are exchanged,
            its parts in the shapes of the variables, which XLA updates in place.
        statistics: `(count,)` float32.
        fixed: All other non-trainable variables, random state among them. The result of
            a program lacks those that a step leaves unchanged.
        slots: Variables of optimizers; see `optimizer_variables`.
        velocity: Velocity of the look-ahead momentum, `(size,)`, or empty.
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

    def parted(self, is_still: Sequence[bool]) -> tuple[State, State]:
        """Returns the two arguments of a program: the kept and the donated parts.

        Flat weights and statistics are kept, because the engine may read their memory.

        Args:
            is_still: For each fixed variable, whether a step leaves it unchanged.
        """
        pairs = list(zip(self.fixed, is_still, strict=True))
        still = [value if own else None for value, own in pairs]
        kept = self._replace(fixed=still, slots=[], velocity=None)
        given = self.moving(is_still)._replace(statistics=None)
        if self.is_flat:
            return kept, given._replace(weights=None)
        return kept._replace(weights=None), given

    def moving(self, is_still: Sequence[bool]) -> State:
        """Returns this without the fixed variables that a step leaves unchanged."""
        pairs = zip(self.fixed, is_still, strict=True)
        return self._replace(fixed=[None if own else value for value, own in pairs])

    def merged(self, given: State) -> State:
        """The inverse of `parted`, called on the kept part."""
        weights = given.weights if self.weights is None else self.weights
        state = given._replace(weights=weights, statistics=self.statistics)
        return self.filling(state)

    def filling(self, after: State) -> State:
        """Returns a program's result, completed by the fixed variables kept here."""
        pairs = zip(self.fixed, after.fixed, strict=True)
        return after._replace(fixed=[k if v is None else v for k, v in pairs])


@final
class Parts(ModelParts):
    """One model, taken apart.

    Args:
        model: A built and compiled model; its optimizer is built.
        spec: How it is computed.
    """

    def __init__(self, model: Any, spec: ComputeSpec) -> None:
        super().__init__(model, spec)
        own = model.optimizer.variables
        self._own = len(own)
        """Which slots Keras passes to `train_step` as the optimizer's variables."""
        others = model.non_trainable_variables
        # Another optimizer's slots are passed as variables of the model.
        self._slots_at = [place(self.slots[self._own :], v) for v in others]
        self._steps_at = [place(self.slots, s.step) for s in self.schedules]
        self.rate_at = place(self.slots, self.rate)
        self.is_still = [False] * len(self.fixed)
        """Which fixed variables a step leaves unchanged; set by `look`."""
        self._has_looked = False

    def look(self, state: State, rows: Data) -> None:
        """Finds which fixed variables a step leaves unchanged, such as frozen weights.

        They are neither donated to programs nor returned by them, so that they are in
        memory once. A step is traced to find them, unless they are too small to matter.

        Args:
            state: State before the step.
            rows: Rows of one step.
        """
        if self._has_looked:
            return
        self._has_looked = True
        if sum(size_bytes(v) for v in self.fixed) < LITTLE:
            return

        def step(fixed: Arrays, others: State, rows: Data, clock: Array) -> Arrays:
            beside = self.whole(others.statistics, fixed, others.slots)
            own = self.own(others.slots)
            before = (others.weights, beside, own, self.no_metrics())
            with self.at(clock, others.slots):
                _, after = self.model.train_step(before, rows)
            return self.split(after[1], ())[1]

        weights = cut(state.weights, self.layout) if state.is_flat else state.weights
        entries = zip(weights, self.layout.entries, strict=True)
        narrow = [w.astype(e.dtype) for w, e in entries]
        others = state._replace(weights=narrow, fixed=[])
        clock = jnp.asarray(self.clock_vector(Clock()))
        traced = jax.make_jaxpr(step)(state.fixed, others, rows, clock).jaxpr
        given = traced.invars[: len(self.fixed)]
        pairs = zip(given, traced.outvars, strict=True)
        self.is_still = [before is after for before, after in pairs]

    def no_metrics(self) -> Arrays:
        """Returns metric states as they are after a reset."""
        return [jnp.asarray(z) for z in self.zero]

    def nothing_shown(self) -> Array:
        """Returns the sums of logs before the first step."""
        return jnp.zeros((self.shown_size,), jnp.float32)

    def shown(self, logs: Any, data: Data) -> Array:
        """Returns a step's logs that are not metrics, times its rows; and the rows."""
        if not self.spec.logs:
            return self.nothing_shown()
        rows = float(jax.tree.leaves(data)[0].shape[0])
        values = [logs.get(name, jnp.nan) for name in self.spec.logs]
        return rows * jnp.stack([jnp.asarray(v, jnp.float32) for v in (*values, 1.0)])

    def grown(self, metrics: Arrays, shown: Array) -> Array:
        """Returns the growth of metric states and logs as one vector."""
        gained = [m - z for m, z in zip(metrics, self.zero, strict=True)]
        return join([*gained, shown])

    def is_loss_finite(self, metrics: Arrays, shown: Array) -> Array:
        """Whether the sums of the loss are finite; true if they are not watched."""
        found, sums = jnp.bool_(True), (*metrics, shown)
        for state, places in self.loss_places:
            found &= jnp.isfinite(sums[state].reshape(-1)[places]).all()
        return found

    def own(self, slots: Arrays) -> Arrays:
        """Returns the slots that `train_step` is given as the optimizer's."""
        return slots[: self._own]

    def whole(self, statistics: Array, fixed: Arrays, slots: Arrays) -> Arrays:
        """Returns non-trainable variables in the model's order."""
        ours = iter(cut(statistics, self.statistics_layout))
        rest, others = iter(fixed), slots[self._own :]
        return [
            others[at] if at >= 0 else next(ours) if beside else next(rest)
            for at, beside in zip(self._slots_at, self.is_beside, strict=True)
        ]

    def split(
        self, values: Sequence[Array], own: Sequence[Array]
    ) -> tuple[Array, Arrays, Arrays]:
        """The inverse of `whole`, with the slots of the model's own optimizer."""
        entries = list(zip(values, self._slots_at, self.is_beside, strict=True))
        others = {at: value for value, at, _ in entries if at >= 0}
        return (
            join([v for v, at, beside in entries if at < 0 and beside]),
            [v for v, at, beside in entries if at < 0 and not beside],
            [*own, *(others[at] for at in range(len(others)))],
        )

    def clock_vector(self, clock: Clock) -> npt.NDArray[np.float32]:
        """Returns the run clock for programs: pace, then each schedule's."""
        return np.array([clock.pace, *self.starts(clock)], np.float32)

    def moving(self, values: Sequence[Array]) -> Arrays:
        """Returns the values of `whole` without those that a step leaves unchanged."""
        is_still = iter(self.is_still)
        entries = zip(values, self._slots_at, self.is_beside, strict=True)
        return [
            v if at >= 0 or beside or not next(is_still) else None
            for v, at, beside in entries
        ]

    @staticmethod
    def filled(moving: Sequence[Array], values: Sequence[Array]) -> Arrays:
        """The inverse of `moving`."""
        pairs = zip(moving, values, strict=True)
        return [value if now is None else now for now, value in pairs]

    @contextmanager
    def at(self, clock: Array, slots: Arrays) -> Generator[None]:
        """Gives schedules the traced run clock while a program is traced."""
        for number, schedule in enumerate(self.schedules):
            began = slots[self._steps_at[number]].astype("float32")
            schedule.clock.now = (clock[1 + number], clock[0], began)
        try:
            yield
        finally:
            for schedule in self.schedules:
                schedule.clock.now = None


def cut(vector: Array, layout: Layout) -> Arrays:
    """Splits a flat vector into arrays of the layout's shapes and dtypes."""
    return [
        vector[start : start + e.size].reshape(e.shape).astype(e.dtype)
        for start, e in zip(layout.offsets, layout.entries, strict=True)
    ]


def join(arrays: Sequence[Array]) -> Array:
    """The inverse of `cut`."""
    if not arrays:
        return jnp.zeros((0,), jnp.float32)
    return jnp.concatenate([a.astype(jnp.float32).reshape(-1) for a in arrays])


def like(values: Sequence[Array], before: Sequence[Array]) -> Arrays:
    """Restores dtypes over a loop: custom steps may return wider ones."""
    return [jnp.asarray(v).astype(b.dtype) for v, b in zip(values, before, strict=True)]
