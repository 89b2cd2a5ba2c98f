"""Finds what a `train_step` of the user's logs beyond the metrics of its model.

Metrics have states, which add up over workers. Any other log is a number of one
step. Keras shows that of the last step of an epoch; with several workers there is
no last one, so Shoal shows the mean over the epoch's samples. So it does with a loss
that a `train_step` computes and logs without telling the metric of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from shoal.interruption import interruptible, undisturbed
from shoal.models.losses import symbols


class StepLogs(NamedTuple):
    """Names of what a `train_step` logs, less those of metrics that it updates.

    Args:
        numbers: Single numbers.
        others: All else, such as arrays.
    """

    numbers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def read_step_logs(model: Any, sample: Any) -> StepLogs:
    """Tries one training step of a model that overrides it; the model stays as it was.

    On JAX the step is traced and computes nothing. Other backends keep the state of
    a model in its variables: there the step is taken, and undone.

    Args:
        model: Prepared.
        sample: A few rows, as `train_step` gets them.
    """
    keras = import_module("keras")
    if type(model).train_step is keras.Model.train_step:
        return StepLogs()
    look = _traced if keras.backend.backend() == "jax" else _taken
    try:
        with undisturbed():  # what is tried is undone, whatever comes
            logs, idle = look(model, sample)
        known = set(model.get_metrics_result()) - idle
    except Exception:  # a worker would raise it as well, and show where
        return StepLogs()
    names = sorted(name for name in logs if name not in known)
    numbers = tuple(name for name in names if _is_number(logs[name]))
    return StepLogs(numbers, tuple(name for name in names if name not in numbers))


def _traced(model: Any, sample: Any) -> tuple[dict[str, Any], set[str]]:
    """The logs of a step as symbols, and metrics that it does not update."""
    keras = import_module("keras")
    spec_of = import_module("keras.src.backend").compute_output_spec
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple(symbols([v.value for v in group]) for group in groups)
    idle: set[str] = set()

    def step(state: Any, rows: Any) -> Any:
        logs, after = model.train_step(state, rows)
        idle.update(_idle_metrics(model, state[3], after[3]))
        return {k: keras.tree.map_structure(keras.ops.convert_to_tensor, v)
                for k, v in logs.items()}  # fmt: skip

    return spec_of(step, state, symbols(sample)), idle


def _taken(model: Any, sample: Any) -> tuple[dict[str, Any], set[str]]:
    """The logs of a step that is taken and undone, and metrics it does not update."""
    keras = import_module("keras")
    model.reset_metrics()
    held = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    kept = [np.array(keras.ops.convert_to_numpy(v.value)) for v in held]

    def to_tensor(array: Any) -> Any:
        return None if array is None else keras.ops.convert_to_tensor(array)

    def states(metric: Any) -> list[Any]:
        found = (keras.ops.convert_to_numpy(v.value) for v in metric.variables)
        return [np.array(value) for value in found]

    try:
        before = {metric.name: states(metric) for metric in model.metrics}
        with interruptible():
            logs = model.train_step(keras.tree.map_structure(to_tensor, sample))
        idle = {
            m.name
            for m in model.metrics
            if m.variables and all(map(np.array_equal, states(m), before[m.name]))
        }
        return {name: np.asarray(_to_numpy(log)) for name, log in logs.items()}, idle
    finally:
        for variable, value in zip(held, kept, strict=True):
            variable.assign(value)


def _to_numpy(log: Any) -> Any:
    """A log as an array; nothing but its shape and kind is looked at."""
    keras = import_module("keras")
    return keras.ops.convert_to_numpy(log) if keras.ops.is_tensor(log) else log


def _idle_metrics(model: Any, before: Sequence[Any], after: Sequence[Any]) -> set[str]:
    """Names of metrics whose states a step hands back as it was given them."""
    pairs = iter(zip(before, after, strict=True))
    found: set[str] = set()
    for metric in model.metrics:
        states = [next(pairs) for _ in metric.variables]
        if states and all(old is new for old, new in states):
            found.add(metric.name)
    return found


def _is_number(log: Any) -> bool:
    return getattr(log, "shape", None) == () and "complex" not in str(log.dtype)
