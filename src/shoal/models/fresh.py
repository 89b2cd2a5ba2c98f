"""Initial values of new variables, made without a program of the backend.

On JAX each shape and value compiles a program of its own: a second for a small model
and its optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

Constant = Callable[[Any], float | None]


@contextmanager
def all_zero() -> Generator[None]:
    """Initializes variables with zero, because their values follow.

    It is for models of Keras' own classes only, which read no initial weight.
    """
    with _constants(_zero_for_keras):
        yield


@contextmanager
def plain_constants() -> Generator[None]:
    """Initializes variables with their constants, as those of optimizers are."""
    with _constants(_constant_of):
        yield


@contextmanager
def _constants(constant: Constant) -> Generator[None]:
    """Replaces initializers for which `constant` returns a value."""
    kinds = import_module("keras.src.backend").Variable.__mro__
    base = next((k for k in kinds if "_initialize_with_initializer" in vars(k)), None)
    if base is None:
        yield
        return
    original = vars(base)["_initialize_with_initializer"]

    def initialize(self: Any, initializer: Any) -> None:
        value = constant(initializer)
        if value is None:
            original(self, initializer)
        else:
            filled = np.full(self._shape, value, np.dtype(self._dtype))
            # With a dtype, JAX copies the array and compiles nothing.
            self._initialize(self._convert_to_tensor(filled, dtype=self._dtype))

    base._initialize_with_initializer = initialize
    try:
        yield
    finally:
        base._initialize_with_initializer = original


def _zero_for_keras(initializer: Any) -> float | None:
    is_keras = type(initializer).__module__.partition(".")[0] == "keras"
    return 0.0 if is_keras else None


def _constant_of(initializer: Any) -> float | None:
    kinds = import_module("keras").initializers
    kind = type(initializer)
    if kind is kinds.Zeros:
        return 0.0
    if kind is kinds.Ones:
        return 1.0
    value = initializer.value if kind is kinds.Constant else None
    return value if isinstance(value, (int, float)) else None
