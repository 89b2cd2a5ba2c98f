"""Initial values of new variables, made without a program of the backend.

On JAX each shape and value compiles a program of its own: a second for a small model
and its optimizer.
"""

from __future__ import annotations

import threading
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


class _Replacement(threading.local):
    """What initializes in this thread, None for Keras; see `_constants`."""

    constant: Constant | None = None


_MINE = _Replacement()
_LOCK = threading.Lock()
_BEFORE: list[tuple[Any, Any]] = []
"""The replaced method and its class, once for each context that is open."""


@contextmanager
def _constants(constant: Constant) -> Generator[None]:
    """Replaces initializers for which `constant` returns a value, in this thread.

    Contexts of several threads, as in a search, end in any order: the first one
    replaces the method of Keras, and the last one brings it back.
    """
    kinds = import_module("keras.src.backend").Variable.__mro__
    base = next((k for k in kinds if "_initialize_with_initializer" in vars(k)), None)
    if base is None:
        yield
        return
    with _LOCK:
        if not _BEFORE:
            original = vars(base)["_initialize_with_initializer"]
            base._initialize_with_initializer = _initialize(original)
            _BEFORE.append((base, original))
        else:
            _BEFORE.append(_BEFORE[0])
    before, _MINE.constant = _MINE.constant, constant
    try:
        yield
    finally:
        _MINE.constant = before
        with _LOCK:
            base, original = _BEFORE.pop()
            if not _BEFORE:
                base._initialize_with_initializer = original


def _initialize(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def initialize(self: Any, initializer: Any) -> None:
        constant = _MINE.constant
        value = None if constant is None else constant(initializer)
        if value is None:
            original(self, initializer)
        else:
            filled = np.full(self._shape, value, np.dtype(self._dtype))
            # With a dtype, JAX copies the array and compiles nothing.
            self._initialize(self._convert_to_tensor(filled, dtype=self._dtype))

    return initialize


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
