"""Finds by comparison what callbacks change in the model during training.

This file decides what counts as a change: a difference between before and
after the hooks of callbacks. Other changes of the model in this process
do not count, so a worker's state is never reset to older values of this process.
A change that cannot be sent to workers is reported once.

A large variable is not copied for comparison: `marks` says how its value is identified.
TensorFlow's variables are watched while callbacks run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np

from shoal.backends.fixed import is_random_state
from shoal.engine.transport.changes import (
    ATTRIBUTE,
    CLOSED_OVER,
    FIXED,
    OPTIMIZER,
    STATISTICS,
    Changes,
    Key,
)
from shoal.models.attributes import TRAINABLE, called, packed, plain_attributes
from shoal.models.closed_over import closed_over
from shoal.optimizers import (
    leaves,
    optimizer_variables,
    optimizers_of,
    rate_variable,
    step_of,
)
from shoal.training.marks import (
    SMALL_BYTES,
    Mark,
    differs,
    is_same,
    mark_of,
    marked_value,
)
from shoal.vectors import Layout, local_variables, recurrent_states, statistic_variables

WEIGHT = "weight"
WEIGHTS = (
    "a callback changed the model's weights while it trains; workers go on "
    "with their own, and the next center replaces the change"
)


@final
@dataclass(eq=False)
class Watched:
    """A variable that callbacks may change.

    Args:
        key: Its key for workers.
        variable: Keras variable.
        label: Its name for users.
    """

    key: Key
    variable: Any
    label: str

    @property
    def value(self) -> Any:
        """Returns its value as an array."""
        return np.array(import_module("keras").ops.convert_to_numpy(self.variable))


@final
class ModelChanges:
    """Finds the changes of callbacks in a model.

    Args:
        model: A built, compiled model, whose optimizer is built.
        warn: Called for changes that cannot be sent.
        keep_came: Called with the index and the old value of a changed local variable.

    Attributes:
        changes: The newest change of each variable, since the run began.
        has_set: Whether hooks have changed anything since this was set to False.
    """

    def __init__(
        self,
        model: Any,
        warn: Callable[[str], None],
        keep_came: Callable[[int, Any], None] = lambda *_: None,
    ) -> None:
        keras = import_module("keras")
        self._model, self._warn, self._keep_came = model, warn, keep_came
        self._backend = str(keras.config.backend())
        self._told = set[str]()
        self._before: dict[Watched, Mark] = {}
        self.changes = Changes()
        self.has_set = False
        self._watched = self._find()
        self._weights = [
            Watched(Key(WEIGHT, str(i)), v, str(v.path))
            for i, v in enumerate(model.trainable_variables)
        ]

    def _find(self) -> list[Watched]:
        """Returns all variables whose changes can be sent to workers."""
        model = self._model
        statistics = statistic_variables(model)
        offsets = Layout.of(statistics).offsets
        found = [
            Watched(Key(STATISTICS, str(at)), v, str(v.path))
            for at, v in zip(offsets, statistics, strict=True)
        ]
        found += [
            Watched(Key(FIXED, str(i)), v, str(v.path))
            for i, v in enumerate(local_variables(model))
        ]
        # These are sent in other ways.
        optimizers = optimizers_of(model)
        steps = {id(leaf._iterations) for o in optimizers for leaf in leaves(o)}
        own = {id(rate_variable(optimizers[0])), id(step_of(optimizers[0])), *steps}
        found += [
            Watched(Key(OPTIMIZER, str(i)), v, str(v.path))
            for i, v in enumerate(optimizer_variables(model))
            if id(v) not in own
        ]
        found += [
            Watched(Key(CLOSED_OVER, path), v, path)
            for path, v in closed_over(model).items()
        ]
        return found

    def begin(self) -> None:
        """Starts from the present model, which workers are given."""
        self._before = {}
        self._watched = self._find()  # the model's code may close over others now

    # ---------------------------------------------------------------- watching

    @contextmanager
    def watching(self, *, is_batch: bool = False) -> Generator[None]:
        """Context around hooks of callbacks.

        Args:
            is_batch: Whether they are batch hooks. Then plain attributes are not
                compared, and weights are: changes of weights between epochs are found
                elsewhere.
        """
        every = [*self._watched, *(self._weights if is_batch else ())]
        before = {} if is_batch else plain_attributes(self._model)
        with self._comparing(every):
            yield
        if not is_batch:
            self._compare(before)

    @contextmanager
    def watching_states(self) -> Generator[None]:
        """Context around a validation: finds the states that recurrent layers keep.

        Training continues from them if one worker trains, as in Keras.
        """
        states = {id(v) for v in recurrent_states(self._model)}
        with self._comparing([w for w in self._watched if id(w.variable) in states]):
            yield

    @contextmanager
    def _comparing(self, every: Sequence[Watched]) -> Generator[None]:
        """Notes which variables differ afterwards."""
        written = set[int]()
        marks = [self._mark(one) for one in every]
        with ExitStack() as stack:
            if self._backend == "tensorflow":
                large = [o for o, m in zip(every, marks, strict=True) if not m.is_told]
                stack.enter_context(_noting(large, written))
            yield
        for one, mark in zip(every, marks, strict=True):
            if self._is_other(one, mark, written):
                self._note(one, mark)

    def _note(self, one: Watched, mark: Mark) -> None:
        if one.key.kind == WEIGHT:
            self.tell(WEIGHTS)
        else:
            self.has_set = True
            self._before.setdefault(one, mark)
            if one.key.kind == FIXED:
                self._keep_came(one.key.number, marked_value(mark))

    def _mark(self, one: Watched) -> Mark:
        variable = one.variable
        value = getattr(variable, "_value", None)
        if self._backend == "jax":
            return mark_of(value)
        size = int(np.prod(tuple(variable.shape), dtype=np.int64))
        if self._backend == "torch":
            token = id(value), getattr(value, "_version", None)
            return Mark(token, one.value if 8 * size <= SMALL_BYTES else None)
        return Mark(None, one.value if 8 * size <= SMALL_BYTES else None)

    def _is_other(self, one: Watched, mark: Mark, written: set[int]) -> bool:
        """Whether a variable differs from its mark."""
        if self._backend == "jax":
            return differs(getattr(one.variable, "_value", None), mark)
        if mark.value is not None:
            return not is_same(one.value, mark.value)
        if self._backend == "torch":
            return self._mark(one).token != mark.token
        return id(one.variable) in written

    # --------------------------------------------------------------- collecting

    def collect(self) -> Changes:
        """Adds the changes of hooks since the last call; returns all changes.

        A change that was reverted in between is not a change.
        """
        before, self._before = self._before, {}
        values = {
            one.key: one.value
            for one, mark in before.items()
            if self._is_other(one, mark, {id(one.variable)}) and self._can_carry(one)
        }
        if values:
            self.changes.add(values)
        return self.changes

    def restore(self, changes: Changes, known: int) -> None:
        """Sets variables to the values that callbacks of an earlier process gave them.

        Args:
            changes: Changes of that process.
            known: Serial number of the newest change that the model already has.
        """
        self.changes.absorb(changes)
        later = changes.since(known)
        for one in self._watched:
            change = later.found.get(one.key)
            if change is not None and one.key.kind in (FIXED, CLOSED_OVER):
                if one.key.kind == FIXED:
                    self._keep_came(one.key.number, one.value)
                one.variable.assign(np.reshape(change.value, one.variable.shape))

    def write_later(self, serial: int) -> None:
        """Restores changes that came too late for the workers' last message.

        Args:
            serial: Serial number of the newest change that they knew.
        """
        later = self.collect().after(serial)
        for one in self._watched:
            if one.key in later.found:
                value = later.found[one.key].value
                one.variable.assign(np.reshape(value, one.variable.shape))

    def _can_carry(self, one: Watched) -> bool:
        if one.key.kind == FIXED and is_random_state(one.variable):
            self.tell(
                f"a callback changed {one.label!r}, random state of the model; workers "
                "go on with their own. Call keras.utils.set_random_seed before fit"
            )
            return False
        if one.key.kind == CLOSED_OVER and self._backend == "jax":
            name = one.label.rpartition("/")[2]
            self.tell(
                f"a callback changed the variable {name!r}, which code of the model "
                "closes over; JAX compiles its value into the step, in Keras as well, "
                "so that workers go on with the value of before. Let the model or a "
                "layer hold it: self.add_weight(shape=(), trainable=False)"
            )
            return False
        return True

    def _compare(self, before: dict[str, Any]) -> None:
        """Compares plain attributes, which compiled code does not read again."""
        now = plain_attributes(self._model)
        changed = {k: v for k, v in now.items() if k not in before or before[k] != v}
        if not changed:
            return
        frozen = [path for path in changed if path.endswith(f"/{TRAINABLE}")]
        if frozen:
            self.tell(
                f"a callback set {called(self._model, frozen[0])}; workers go on with "
                "what the model was compiled with. Call compile again, and fit for the "
                "epochs that are left"
            )
        carried = {k: v for k, v in changed.items() if k not in frozen}
        if carried and self._is_eager:
            found = {Key(ATTRIBUTE, k): packed(v) for k, v in carried.items()}
            self.changes.add(found)
        elif carried:
            names = ", ".join(called(self._model, path) for path in list(carried)[:3])
            self.tell(
                f"a callback set {names}; the step is compiled, and workers go on with "
                "the value of before (so does Keras, once its first step is compiled). "
                "Keep what changes in a variable: self.add_weight(shape=(), "
                "trainable=False) in a layer, and variable.assign(...) in the callback"
            )

    @property
    def _is_eager(self) -> bool:
        """Whether a step runs the model's Python code each time."""
        model = self._model
        if self._backend == "torch":
            return not model.jit_compile
        return self._backend == "tensorflow" and bool(model.run_eagerly)

    def tell(self, text: str) -> None:
        """Warns of something once."""
        if text not in self._told:
            self._told.add(text)
            self._warn(text)


@contextmanager
def _noting(large: Sequence[Watched], written: set[int]) -> Generator[None]:
    """Notes which of TensorFlow's variables are assigned to, by identity."""
    variables = [one.variable for one in large]

    def noted(variable: Any, assign: Callable[[Any], None]) -> Callable[[Any], None]:
        def note(value: Any) -> None:
            written.add(id(variable))
            assign(value)

        return note

    for variable in variables:
        object.__setattr__(
            variable, "_direct_assign", noted(variable, variable._direct_assign)
        )
    try:
        yield
    finally:
        for variable in variables:
            object.__delattr__(variable, "_direct_assign")
