"""The state of a model besides its config: values, flags and paths of variables.

This file decides which state a model needs to be the same after it was made again:
a config does not keep values, flags that were set by hand, or random state,
and Keras gives variables other paths when it makes them from a config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.errors import PlanError
from shoal.optimizers import optimizer_variables
from shoal.vectors import Layout, VariableSlice, all_variables

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, kw_only=True)
class ModelState:
    """All variables of a model (weights, statistics, random state) in its order.

    Args:
        values: One array a variable.
        paths: Path of each variable, by which users identify it.
        flags: `trainable` of each variable.
        layer_flags: `trainable` of each layer.
    """

    values: list[Array]
    paths: list[str]
    flags: list[bool]
    layer_flags: list[bool]

    @classmethod
    def of(cls, model: Any) -> ModelState:
        """Reads a built model."""
        variables = all_variables(model)
        return cls(
            values=arrays_of(variables),
            paths=[str(v.path) for v in variables],
            flags=[bool(v.trainable) for v in variables],
            layer_flags=[bool(layer._trainable) for layer in model._flatten_layers()],
        )

    def restore(self, model: Any) -> None:
        """Restores the state in a model of the same structure.

        Raises:
            PlanError: The model has other layers or variables.
        """
        old = [(tuple(value.shape), str(value.dtype)) for value in self.values]
        new = [(tuple(v.shape), str(v.dtype)) for v in all_variables(model)]
        layers = list(model._flatten_layers())
        if old != new or len(layers) != len(self.layer_flags):
            raise other_layout(model, len(old))
        for layer, flag in zip(layers, self.layer_flags, strict=True):
            if layer._trainable != flag:
                layer._trainable = flag
        states = zip(self.values, self.paths, self.flags, strict=True)
        for variable, state in zip(all_variables(model), states, strict=True):
            value, variable._path, flag = state
            variable.assign(value)
            if variable.trainable != flag:
                variable.trainable = flag


def arrays_of(variables: Sequence[Any]) -> list[Array]:
    """Returns the values of Keras variables, in their own dtypes."""
    return [np.asarray(variable.numpy()) for variable in variables]


def layout_digest(model: Any, *, has_optimizers: bool = True) -> str:
    """Returns digests of exchanged variables, all variables, and optimizers'.

    Args:
        model: A built model.
        has_optimizers: False for a model whose optimizers do not count.
    """

    def digest(variables: Sequence[Any]) -> str:
        entries = (
            VariableSlice(path=v.path, shape=tuple(v.shape), dtype=str(v.dtype))
            for v in variables
        )
        return Layout(tuple(entries)).digest

    last = optimizer_variables(model) if has_optimizers else []
    parts = (model.trainable_variables, model.variables, last)
    return " ".join(digest(part) for part in parts)


def other_layout(model: Any, expected: int) -> PlanError:
    """Returns the error that a model was made again with other variables."""
    return PlanError(
        f"model '{model.name}' was made again with other variables: "
        f"{len(model.variables)}, for {expected} that were sent. "
        "Expected the same shapes, dtypes and trainable flags in the same order. "
        "Let get_config() or the callable make the same model each time."
    )
