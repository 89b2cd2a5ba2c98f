"""Variables of Keras that a model's code reads, and that the model does not hold.

A loss, a metric, a `train_step` or a layer's `call` may close over a variable, or name
one of its module. Such a variable travels with the code, as a copy: this file finds it
by the same path in the user's process and in a worker.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shoal.optimizers import optimizers_of, variables_of

DEPTH = 8
FOREIGN = ("keras", "tensorflow", "torch", "jax", "numpy", "shoal")
"""Libraries whose functions and classes never close over the user's objects."""


def closed_over(model: Any) -> dict[str, Any]:
    """Returns the variables that a model's code reads and it does not hold, by path.

    Args:
        model: A built and compiled model.

    Example:
        >>> import keras
        >>> rate = keras.Variable(0.5, trainable=False)
        >>> def loss(y, p):
        ...     return rate * keras.ops.mean((y - p) ** 2)
        >>> loss.__module__ = "__main__"  # as in a script, not in this package
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss)
        >>> list(closed_over(model)) == ["loss/loss/rate"]
        True
    """
    kind = import_module("keras").Variable
    held = {id(v) for v in [*model.variables, *model.metrics_variables]}
    held |= {id(v) for o in optimizers_of(model) for v in variables_of(o)}
    found: dict[str, Any] = {}
    seen = set[int]()
    queue = [(path, part, 0) for path, part in _roots(model)]
    for path, part, depth in queue:
        if isinstance(part, kind):
            if id(part) not in held:
                held.add(id(part))
                found[path] = part
        elif id(part) not in seen and depth < DEPTH:
            seen.add(id(part))
            steps = _parts(part)
            queue += [(f"{path}/{step}", child, depth + 1) for step, child in steps]
    return found


def write_closed_over(
    model: Any, values: Mapping[str, npt.NDArray[Any]]
) -> Sequence[str]:
    """Sets such variables to other values; returns the paths that do not exist."""
    variables = closed_over(model)
    for path, value in values.items():
        if path in variables:
            variables[path].assign(np.reshape(value, variables[path].shape))
    return [path for path in values if path not in variables]


def _roots(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields objects with the user's code: first the arguments of `compile`."""
    loss = getattr(model, "_compile_loss", None)
    yield "loss", getattr(loss, "_user_loss", None)
    yield "loss_weights", getattr(loss, "_user_loss_weights", None)
    metrics = getattr(model, "_compile_metrics", None)
    yield "metrics", getattr(metrics, "_user_metrics", None)
    yield "weighted_metrics", getattr(metrics, "_user_weighted_metrics", None)
    for number, layer in enumerate(model._flatten_layers()):
        path = "model" if layer is model else f"layer {number}"
        for base in type(layer).__mro__:
            if not _is_foreign(base):
                yield f"{path}/{base.__name__}", base
        for name, value in list(vars(layer).items()):
            if isinstance(value, (types.FunctionType, functools.partial)):
                yield f"{path}/{name}", value


def _parts(part: Any) -> Iterator[tuple[str, Any]]:
    """Yields objects that may hold a variable, with their step in the path."""
    if isinstance(part, Mapping):
        mapping = cast("Mapping[Any, Any]", part)
        yield from ((str(key), value) for key, value in mapping.items())
    elif isinstance(part, (list, tuple)):
        items = cast("Sequence[Any]", part)
        yield from ((str(i), value) for i, value in enumerate(items))
    elif isinstance(part, functools.partial):
        partial = cast("functools.partial[Any]", part)
        yield "function", partial.func
        yield "args", partial.args
        yield "keywords", partial.keywords
    elif isinstance(part, types.MethodType):
        yield part.__name__, part.__func__
        yield "self", part.__self__
    elif isinstance(part, types.FunctionType):
        yield from _parts_of_function(part)
    elif isinstance(part, (staticmethod, classmethod, property)):
        function: Any = getattr(part, "__func__", None) or getattr(part, "fget", None)
        yield "function", function
    elif isinstance(part, type):
        if not _is_foreign(part):
            yield from vars(part).items()
    elif hasattr(part, "__dict__") and not isinstance(part, types.ModuleType):
        yield from _parts_of_object(part)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the closure, the defaults, and the globals that its code names."""
    if _is_foreign(function):
        # But a library's wrapper may close over a function of the user's.
        for cell in function.__closure__ or ():
            yield "wrapped", _content(cell)
        return
    name = function.__name__
    for free, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=False
    ):
        yield f"{name}/{free}", _content(cell)
    for number, value in enumerate(function.__defaults__ or ()):
        yield f"{name}/default {number}", value
    yield from (function.__kwdefaults__ or {}).items()
    codes = [function.__code__]
    for code in codes:
        codes.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
        for word in code.co_names:
            if word in function.__globals__:
                yield f"{name}/{word}", function.__globals__[word]


def _parts_of_object(part: Any) -> Iterator[tuple[str, Any]]:
    """Yields attributes of a loss, a metric, or an object of the user's."""
    keras = import_module("keras")
    if isinstance(part, (keras.Layer, keras.optimizers.Optimizer)):
        return
    kind = type(part)
    if _is_foreign(kind) and not isinstance(part, (keras.Loss, keras.Metric)):
        return
    for base in kind.__mro__:
        if not _is_foreign(base) and base is not object:
            yield base.__name__, base
    for name, value in list(vars(part).items()):
        if not name.startswith("_tracker"):
            yield name, value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _is_foreign(part: Any) -> bool:
    module = getattr(part, "__module__", None) or ""
    package = module.partition(".")[0]
    return package in FOREIGN or package == "builtins"
