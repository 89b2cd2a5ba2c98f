"""Finds metrics whose states do not add up over workers, by trying them.

This file decides which metrics `plan` names as not mergeable. Keras' own add up:
each state variable is a sum over samples. A metric of the user's is given two
sets of rows, separately and one after the other; its states must add up, and the sums
must give the same result. A maximum, a last value or a moving average fails. States
that `reset_state` does not reset continue from epoch to epoch; the increments of two
sets of rows must add up, for any state at the beginning of an epoch.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np

from shoal.models.pickling import CannotPickle, dumps, loads


def unmergeable(
    model: Any, y_sample: Any, y_pred: Any = None, *, x: Any = None
) -> tuple[str, ...]:
    """Names the metrics of a model whose states cannot be summed over workers.

    The model's metrics are not changed: copies are tried. A metric with
    unknown arguments (updated inside a layer or `train_step`) is named too,
    unless it accepts targets and predictions, or plain values.

    Args:
        model: A compiled model.
        y_sample: A few rows of targets, at least 2, in the structure of `fit`.
        y_pred: The model's predictions for them; default None means made-up ones.
        x: Their inputs, for models whose outputs are known only by a call
            (not Functional, not Sequential).

    Returns:
        Names as in a history, in the model's order.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(loss="mse", metrics=["mae", keras.metrics.AUC()])
        >>> unmergeable(model, np.ones((4, 1)))
        ()
    """
    keras = import_module("keras")
    compiled = getattr(model, "_compile_metrics", None)
    given = []
    if compiled is not None:
        user = [compiled._user_metrics, compiled._user_weighted_metrics]
        given = [m for m in keras.tree.flatten(user) if _is_foreign(m)]
    others = [m for m in model.metrics if m is not compiled and _is_foreign(m)]
    if not given and not others:
        return ()
    if y_pred is None:
        y_pred = _made_up(model, len(keras.tree.flatten(y_sample)[0]))
    if y_pred is None and x is not None:
        y_pred = _predicted(model, x)
    if y_pred is None:
        return tuple(str(metric.name) for metric in [*given, *others])
    names: list[str] = []
    if given:
        names += _not_additive_of(compiled, given, y_sample, y_pred)
    for metric in others:
        pairs = _pairs(y_sample, y_pred)
        arguments = [*pairs, *((values,) for _, values in pairs)]
        if not any(is_additive(_copy(metric), *args) for args in arguments):
            names.append(str(metric.name))
    return tuple(dict.fromkeys(names))


def is_additive(metric: Any, *arguments: Any) -> bool:
    """Returns whether the states of two sets of rows add up to the state of both.

    Args:
        metric: The metric, which is changed.
        *arguments: Arrays for `update_state`, the same number of rows each.

    Example:
        >>> import keras
        >>> is_additive(keras.metrics.Mean(), np.array([1.0, 2.0, 4.0]))
        True
    """
    cut = max(1, len(arguments[0]) // 3)
    first = tuple(argument[:cut] for argument in arguments)
    second = tuple(argument[cut:] for argument in arguments)
    try:
        return _adds_up(metric, first, second)
    except Exception:  # the user's code on rows it may not expect
        return False


def kept_places(metric: Any) -> list[int]:
    """Returns indices of variables that `reset_state` leaves unchanged.

    Example:
        >>> import keras
        >>> kept_places(keras.metrics.Mean())
        []
    """
    keras = import_module("keras")
    with keras.StatelessScope() as scope:
        metric.reset_state()
    return [
        place
        for place, variable in enumerate(metric.variables)
        if scope.get_current_value(variable) is None
    ]


def _adds_up(metric: Any, first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Compares states and result of sums with those of consecutive updates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.update_state(*first)  # creates variables of unknown shape
        if not metric.variables:
            return False
        kept = kept_places(metric)
        now = _values(metric)
        # A maximum does not change with smaller rows, so an empty update is tried as
        # well.
        starts: list[dict[int, Any]] = [{place: now[place] for place in kept}]
        if kept:
            starts.append({place: np.zeros_like(now[place]) for place in kept})
        return all(_adds_up_from(metric, s, first, second) for s in starts)


def _adds_up_from(
    metric: Any, start: dict[int, Any], first: tuple[Any, ...], second: tuple[Any, ...]
) -> bool:
    """Compares likewise, with initial values in the kept states."""
    initial = _after(metric, start)
    parts = [
        state - value
        for state, value in zip(_after(metric, start, first), initial, strict=True)
    ]
    other = _after(metric, start, second)
    sums = [part + state for part, state in zip(parts, other, strict=True)]
    both = _after(metric, start, first, second)
    result = metric.result()
    metric.reset_state()
    for variable, value in zip(metric.variables, sums, strict=True):
        variable.assign(value.astype(str(variable.dtype)))
    return _close(sums, both) and _close(metric.result(), result)


def _is_foreign(metric: Any) -> bool:
    """Whether a metric object is of a class that is not Keras' own."""
    keras = import_module("keras")
    module = type(metric).__module__
    is_own = module == "keras" or module.startswith("keras.")
    return isinstance(metric, keras.Metric) and not is_own


def _not_additive_of(
    compiled: Any, given: list[Any], y_sample: Any, y_pred: Any
) -> list[str]:
    """Tries the metrics of `compile`, each with its output."""
    try:
        copy = _copy(compiled)
        if not copy.built:
            copy.build(y_sample, y_pred)
        outputs = list(
            zip(copy._flatten_y(y_sample), copy._flatten_y(y_pred), strict=False)
        )
        names = list(copy.result())
    except Exception:  # rows that do not fit; training would report it
        return [str(metric.name) for metric in given]
    # Keras names and numbers them in this order; see CompileMetrics.result.
    found = [
        (metric, pair)
        for groups in (copy._flat_metrics, copy._flat_weighted_metrics)
        for group, pair in zip(groups, outputs, strict=False)
        for metric in (group.metrics if group else ())
    ]
    if len(names) != len(found):
        names = [str(metric.name) for metric, _ in found]
    return [
        name
        for name, (metric, (y, p)) in zip(names, found, strict=True)
        if _is_foreign(metric) and not is_additive(metric, _rows(y), _rows(p))
    ]


def _copy(metric: Any) -> Any:
    """Copies a metric with its state; one that cannot be copied is used itself."""
    try:
        return loads(dumps(metric))
    except CannotPickle:
        return metric


def _after(metric: Any, start: dict[int, Any], *lots: tuple[Any, ...]) -> list[Any]:
    """Returns the state after a reset and some updates.

    Args:
        metric: The metric, which is changed.
        start: Index of a variable -> its value after the reset.
        *lots: Arguments of the updates.
    """
    metric.reset_state()
    for place, value in start.items():
        variable = metric.variables[place]
        variable.assign(value.astype(str(variable.dtype)))
    for lot in lots:
        metric.update_state(*lot)
    return _values(metric)


def _values(metric: Any) -> list[Any]:
    return [np.asarray(variable.numpy(), np.float64) for variable in metric.variables]


def _close(one: Any, other: Any) -> bool:
    """Compares nested numbers; equal if both are NaN."""
    flatten = import_module("keras").tree.flatten
    return all(
        np.allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(flatten(one), flatten(other), strict=True)
    )


def _pairs(y_sample: Any, y_pred: Any) -> list[tuple[Any, Any]]:
    """Returns (targets, predictions) of each output."""
    flatten = import_module("keras").tree.flatten
    pairs = zip(flatten(y_sample), flatten(y_pred), strict=False)
    return [(_rows(y), _rows(p)) for y, p in pairs]


def _rows(values: Any) -> Any:
    return np.asarray(values)


def _predicted(model: Any, x: Any) -> Any:
    """Returns a model's predictions for a few rows, None if it does not take them."""
    keras = import_module("keras")
    try:
        predicted = model(x, training=False)
        return keras.tree.map_structure(keras.ops.convert_to_numpy, predicted)
    except Exception:  # the model's own code; training would report it
        return None


def _made_up(model: Any, rows: int) -> Any:
    """Returns probabilities in the shape of the model's outputs, None if unknown."""
    functional = getattr(model, "_functional", None) or model
    outputs = getattr(functional, "_outputs_struct", None)
    rng = np.random.default_rng(0)

    def fill(tensor: Any) -> Any:
        shape = (rows, *(size or 1 for size in tensor.shape[1:]))
        scores = rng.uniform(0.05, 1.0, size=shape)
        total = scores.sum(-1, keepdims=True) if shape[-1] > 1 else 1.0
        return (scores / total).astype(np.float32)

    if outputs is None:
        return None
    return import_module("keras").tree.map_structure(fill, outputs)
