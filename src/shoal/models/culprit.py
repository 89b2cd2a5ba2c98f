"""Finds which attribute of an object cannot be pickled, so that an error can name it.

It does not decide what may travel; it runs only after pickling failed,
tries the parts of the object one by one, and follows the first part that fails.
"""

from __future__ import annotations

import dis
import functools
import io
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

from shoal.models.pickling import TravelPickler, by_value, state_of

_MAX_DEPTH = 16
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


def describe_culprit(owner: Any, label: str) -> str:
    """Returns the path and type of the deepest part of `owner` that cannot be pickled.

    Args:
        owner: The object that failed to pickle.
        label: Its name in the message.

    Example:
        >>> import threading
        >>> describe_culprit({"guard": [threading.Lock()]}, "settings")
        "settings['guard'][0] is a _thread.lock"
    """
    with by_value():
        path, part = _find(owner, label, {id(owner)}, _MAX_DEPTH) or (label, owner)
    return f"{path} is a {_type_name(part)}"


def _find(owner: Any, path: str, seen: set[int], depth: int) -> tuple[str, Any] | None:
    """Returns path and object of the first part that fails by itself.

    Args:
        owner: Object that fails.
        path: Path by which it was reached.
        seen: Failing objects that were followed; a part that fails only because it
            leads back to one of them is not a culprit.
        depth: Remaining steps.
    """
    is_innocent = False
    for step, child in _parts(owner) if depth else ():
        if id(child) in seen:
            is_innocent = True
        elif _fails(child):
            is_innocent = True
            seen.add(id(child))
            found = _find(child, path + step, seen, depth - 1)
            if found is not None:
                return found
    return None if is_innocent else (path, owner)


def _type_name(obj: Any) -> str:
    cls: type = type(obj)
    name = cls.__qualname__
    return name if cls.__module__ == "builtins" else f"{cls.__module__}.{name}"


def _fails(obj: Any) -> bool:
    """Whether an object cannot be pickled, Keras objects inside left out."""
    try:
        pickler = TravelPickler(io.BytesIO())
        pickler.dump(obj)
    except Exception:  # the object's own code may raise anything
        return True
    return False


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of an object, each with its step in the path."""
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
        yield from _parts_of_class(obj)
    elif hasattr(obj, "__dict__"):
        state = state_of(obj)
        # The user's attributes come before the code of the class, and that before
        # Keras' private attributes, which contain the rest of the model again.
        for name in (n for n in state if not n.startswith("_")):
            yield f".{name}", state[name]
        yield f" (class {type(obj).__name__})", type(obj)
        for name in (n for n in state if n.startswith("_")):
            yield f".{name}", state[name]


def _parts_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    """Yields methods and values of a class whose code is sent, then its bases."""
    for name, value in vars(cls).items():
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        yield f".{name}", value
    yield from ((f" -> base {base.__name__}", base) for base in cls.__bases__)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the closure, the defaults, and the globals a function's code reads."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield (
                f" -> captured variable {_named(name, cell.cell_contents)}",
                (cell.cell_contents),
            )
        except ValueError:  # an empty cell
            continue
    for value in function.__defaults__ or ():
        yield " -> a default argument", value
    codes = [function.__code__]
    for code in codes:
        codes.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
        # `co_names` contains names of attributes as well: only these are globals.
        read = {i.argval for i in dis.get_instructions(code) if i.opname in _READS}
        for name in (n for n in code.co_names if n in read):
            if name in function.__globals__:
                value = function.__globals__[name]
                yield f" -> global {_named(name, value)}", value


def _named(name: str, value: Any) -> str:
    """Returns a variable's name; for an object of a user's class with its class."""
    is_plain = type(value).__module__ == "builtins" or not hasattr(value, "__dict__")
    is_code = isinstance(value, (type, types.FunctionType, types.ModuleType))
    return repr(name) if is_plain or is_code else f"'{name}' ({_type_name(value)})"
