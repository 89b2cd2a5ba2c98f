"""Objects of a model that cannot be pickled, shared within one process.

Under `cluster="inline"` workers are in the user's process. A lock, a mock or a test
case that the code of a model refers to is then the same object for all of them, as it
is in plain Keras. This file decides what may be shared: no part of Keras, no code, no
collection, and no object that leads to variables, of which each worker needs its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, cast

__all__ = ["is_lending", "lend", "lending", "lent", "may_be_lent"]

_LENT: ContextVar[list[Any] | None] = ContextVar("shoal_lent", default=None)
_DEPTH = 4
# Checks types, not objects: a mock claims to be of any class.
_TAKEN_APART = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType,
    types.MethodType, types.CodeType, types.CellType, str, bytes, int, float,
    list, tuple, dict, set, frozenset,
)  # fmt: skip


@contextmanager
def lending() -> Generator[list[Any]]:
    """Context in which packed models share the objects that cannot be copied.

    Yields:
        The shared objects, a list that grows. A model that shares none may also be
        opened outside of this context.

    Example:
        >>> import threading
        >>> from shoal.models.pickling import dumps, loads
        >>> lock = threading.Lock()
        >>> with lending():
        ...     loads(dumps([lock]))[0] is lock
        True
    """
    held: list[Any] = []
    token = _LENT.set(held)
    try:
        yield held
    finally:
        _LENT.reset(token)


def lent(number: int) -> Any:
    """Returns a shared object; only within the same `lending`."""
    return _held_now()[number]


def lend(obj: Any) -> tuple[Callable[[int], Any], tuple[int]]:
    """Shares an object; returns the value of its `__reduce__`."""
    held = _held_now()
    numbers = [number for number, other in enumerate(held) if other is obj]
    if not numbers:
        numbers = [len(held)]
        held.append(obj)
    return lent, (numbers[0],)


def _held_now() -> list[Any]:
    held = _LENT.get()
    if held is None:
        raise RuntimeError("shared objects are found within `lending` only")
    return held


def is_lending() -> bool:
    """Whether objects may be shared now."""
    return _LENT.get() is not None


def may_be_lent(obj: Any) -> bool:
    """Whether an object that cannot be copied may be shared.

    Example:
        >>> import threading, keras
        >>> may_be_lent(threading.Lock()), may_be_lent([]), may_be_lent(keras.Model())
        (True, False, False)
    """
    if issubclass(type(obj), _TAKEN_APART):
        return False
    seen = set[int]()
    queue = [(obj, 0)]
    for part, depth in queue:
        if _has_variables(part):
            return False
        if id(part) not in seen and depth < _DEPTH:
            seen.add(id(part))
            queue += [(child, depth + 1) for child in _held(part)]
    return True


def _has_variables(part: Any) -> bool:
    """Whether an object is a part of a model."""
    keras = import_module("keras")
    kinds = (
        keras.Variable, keras.Layer, keras.Metric, keras.Loss,
        keras.optimizers.Optimizer,
    )  # fmt: skip
    return issubclass(type(part), kinds)


def _held(part: Any) -> Iterator[Any]:
    """Yields the objects that a user's object, or a collection, holds."""
    kind = type(part)
    if issubclass(kind, Mapping):
        yield from cast("Mapping[Any, Any]", part).values()
    elif issubclass(kind, (list, tuple, set, frozenset)):
        yield from cast("list[Any]", part)
    elif not issubclass(kind, _TAKEN_APART):
        yield from getattr(part, "__dict__", {}).values()
