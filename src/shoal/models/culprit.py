"""Finds which attribute of an object cannot be pickled, so that an error can name it.

This file decides nothing about what may travel; it runs only after pickling failed,
tries the parts of the object one by one, and follows the first part that fails.
"""

from __future__ import annotations

import functools
import io
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

from shoal.models.pickling import TravelPickler, state_of

_MAX_DEPTH = 16


def describe_culprit(owner: Any, label: str) -> str:
    """Returns the path and type of the deepest part of `owner` that cannot travel.

    Args:
        owner: The object that failed to pickle.
        label: What to call it.

    Example:
        >>> import threading
        >>> describe_culprit({"guard": [threading.Lock()]}, "settings")
        "settings['guard'][0] is a _thread.lock"
    """
    path, current = label, owner
    seen = {id(owner)}
    for _ in range(_MAX_DEPTH):
        for step, child in _parts(current):
            if id(child) not in seen and _fails(child):
                seen.add(id(child))
                path, current = path + step, child
                break
        else:
            break
    return f"{path} is a {_type_name(current)}"


def _type_name(obj: Any) -> str:
    cls: type = type(obj)
    name = cls.__qualname__
    return name if cls.__module__ == "builtins" else f"{cls.__module__}.{name}"


def _fails(obj: Any) -> bool:
    """True when it cannot be pickled, Keras objects inside left out."""
    try:
        pickler = TravelPickler(io.BytesIO())
        pickler.dump(obj)
    except Exception:  # whatever the object's own code raises
        return True
    return False


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an object is made of, each with its step in the path."""
    if isinstance(obj, Mapping):
        mapping = cast("Mapping[Any, Any]", obj)
        yield from ((f"[{key!r}]", value) for key, value in mapping.items())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        items = cast("list[Any]", obj)
        yield from ((f"[{i}]", value) for i, value in enumerate(items))
    elif isinstance(obj, types.FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
        yield ".__func__", obj.__func__
    elif isinstance(obj, functools.partial):
        partial = cast("functools.partial[Any]", obj)
        yield ".func", partial.func
        yield ".args", partial.args
        yield ".keywords", partial.keywords
    elif isinstance(obj, type):
        yield from ((f".{name}", value) for name, value in vars(obj).items())
    elif hasattr(obj, "__dict__"):
        state = state_of(obj)
        # what the user set comes before what Keras keeps to itself
        for name in sorted(state, key=lambda name: name.startswith("_")):
            yield f".{name}", state[name]


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the closure, the defaults, and the globals a function's code names."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield f" -> captured variable '{name}'", cell.cell_contents
        except ValueError:  # a cell that is still empty
            continue
    for value in function.__defaults__ or ():
        yield " -> a default argument", value
    codes = [function.__code__]
    for code in codes:
        codes.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
        for name in code.co_names:
            if name in function.__globals__:
                yield f" -> global '{name}'", function.__globals__[name]
