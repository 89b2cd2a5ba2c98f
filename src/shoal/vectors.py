"""Flat float vectors and the model weights they stand for.

This file decides which variables of a model are exchanged, in which order they
lie in the vector, and how both ends verify that they have the same layout.
It reads variables by their public Keras attributes only, and imports no Keras.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from shoal.errors import PlanError
from shoal.optimizers import optimizer_variables, optimizers_of, variables_of

Vector: TypeAlias = npt.NDArray[np.float32]
"""One contiguous 1-D float32 array."""
Sums: TypeAlias = npt.NDArray[np.float64]
"""Metric states summed over all samples of an epoch committed so far."""

FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class VariableSlice:
    """One variable in a vector: its shape and its dtype in the model."""

    path: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of floats."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Layout:
    """The order of variables in a flat float32 vector.

    Args:
        entries: One for each variable, in the model's order.
    """

    entries: tuple[VariableSlice, ...]

    @classmethod
    def of(cls, variables: Iterable[Any]) -> Layout:
        """Reads the layout of Keras variables.

        Raises:
            PlanError: A variable is not float32, bfloat16 or float16.
        """
        entries = tuple(
            VariableSlice(path=v.path, shape=tuple(v.shape), dtype=str(v.dtype))
            for v in variables
        )
        wrong = [f"{e.path}: {e.dtype}" for e in entries if e.dtype not in FLOATS]
        if wrong:
            raise PlanError(
                f"the model has weights that cannot be exchanged: {', '.join(wrong)}. "
                f"Expected dtypes are {', '.join(FLOATS)}. "
                "Build the model with keras.config.set_floatx('float32')."
            )
        return cls(entries)

    @cached_property
    def size(self) -> int:
        """Length of the vector."""
        return sum(e.size for e in self.entries)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Returns the start of each entry."""
        starts = np.cumsum([0, *(e.size for e in self.entries)])
        return tuple(int(s) for s in starts[:-1])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of shapes and dtypes in order; paths differ between processes."""
        table = [[list(e.shape), e.dtype] for e in self.entries]
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()

    def gather(self, variables: Sequence[Any], out: Vector | None = None) -> Vector:
        """Copies variables into a flat vector.

        Shapes: returns `(size,)`, float32; `out` is used when given.
        """
        if out is None:
            out = np.empty(self.size, np.float32)
        for start, entry, variable in zip(
            self.offsets, self.entries, variables, strict=True
        ):
            value = np.asarray(variable.numpy(), dtype=np.float32)
            out[start : start + entry.size] = value.reshape(-1)
        return out

    def scatter(self, vector: Vector, variables: Sequence[Any]) -> None:
        """Assigns the slices of a flat vector to variables."""
        for start, entry, variable in zip(
            self.offsets, self.entries, variables, strict=True
        ):
            variable.assign(vector[start : start + entry.size].reshape(entry.shape))


def exchanged_variables(model: Any) -> list[Any]:
    """Returns the trainable variables of a model, in its own order."""
    return list(model.trainable_variables)


def statistic_variables(model: Any) -> list[Any]:
    """Returns float variables of trainable layers that are not trained.

    Batch-norm moments are the usual case. Frozen layers, random state, integer
    state, metrics and variables of optimizers are left out: they stay local or travel
    once, in the model.
    """
    others = {id(v) for v in model.metrics_variables}
    others |= {id(v) for o in optimizers_of(model) for v in variables_of(o)}
    owned = {
        id(v)
        for layer in model._flatten_layers()
        if layer.trainable
        for v in layer._non_trainable_variables
        if str(v.dtype) in FLOATS
    }
    return [
        v
        for v in model.non_trainable_variables
        if id(v) in owned and id(v) not in others
    ]


def local_variables(model: Any) -> list[Any]:
    """Returns variables that are neither trained nor averaged, in the model's order.

    Frozen weights, integers, booleans, random state: each worker has its own, and they
    travel only if they differ from the model's initial values. The same holds for
    states of stateful layers.
    """
    kept = {id(v) for v in (*statistic_variables(model), *optimizer_variables(model))}
    others = [v for v in model.non_trainable_variables if id(v) not in kept]
    return others + recurrent_states(model)


def recurrent_states(model: Any) -> list[Any]:
    """Returns the states that stateful recurrent layers keep between batches.

    Keras does not count these among the variables of a model. On JAX there are none
    to handle: training leaves them unchanged, in Keras as well.
    """
    if hasattr(model, "jax_state_sync"):
        return []
    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False):
            found |= {id(v): v for v in _flat(getattr(layer, "states", None))}
    for variable in model.variables:
        found.pop(id(variable), None)
    return list(found.values())


def all_variables(model: Any) -> list[Any]:
    """Returns the variables of a model, and the states of its recurrent layers."""
    return [*model.variables, *recurrent_states(model)]


def _flat(states: Any) -> Iterator[Any]:
    """The variables of nested lists."""
    if isinstance(states, list | tuple):
        for state in cast("Sequence[Any]", states):
            yield from _flat(state)
    elif states is not None:
        yield states
