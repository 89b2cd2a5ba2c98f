"""Tries one training step of a model that overrides it; the model stays as it was.

This file decides what is known beforehand of such a step: what it logs, which
optimizers it applies and how often, what it changes beside them, and whether it takes
the gradient of a sum over the batch. But for the last, on JAX the step is traced and
computes nothing. Other backends keep the state of a model in its
variables: there the step is taken with all optimizers held back, and undone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.interruption import interruptible, undisturbed
from shoal.models.applications import Act, Application, watched
from shoal.models.losses import symbols
from shoal.models.randomness import random_state_kept
from shoal.models.step_logs import StepLogs, idle_metrics, step_logs
from shoal.optimizers import described, has_own_step, optimizers_of, variables_of
from shoal.vectors import all_variables

Array = npt.NDArray[Any]

Reduction: TypeAlias = Literal["sum", "mean", ""]
"""What a step takes the gradient of, over the batch; "" if that was not seen."""

CLOSE = 1e-3  # relative, of gradients in float32
MOST_COMPILED = 1_000_000  # weights of a model whose step is compiled to be tried


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one training step does.

    Args:
        logs: See `StepLogs`.
        applies: The optimizers it applies, in its order, one entry a call; None if the
            step is Keras' own, or failed.
        applied: Number of times it applies each of `optimizers_of`; empty if
            unknown.
        unseen: Optimizers in `applies` that the model does not hold.
        beside: Paths of variables that it changes itself, if they follow from
            weights that an optimizer has just updated, or are such weights.
        is_sum: Whether it takes the gradient of a sum over the batch, and of nothing
            else.
        is_unseen: Whether it could not be seen if its loss, which is not that of
            `compile`, is a sum or a mean.
    """

    logs: StepLogs = field(default_factory=StepLogs)
    applies: tuple[str, ...] | None = None
    applied: tuple[int, ...] = ()
    unseen: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    is_sum: bool = False
    is_unseen: bool = False


def try_step(model: Any, sample: Any, *, exchanges_gradients: bool = False) -> Trial:
    """Tries a step of a model whose `train_step` is the user's.

    Args:
        model: Prepared.
        sample: A few rows, as `train_step` gets them.
        exchanges_gradients: Look whether it sums over the batch, which takes two
            steps more; on JAX they are compiled.
    """
    if not has_own_step(model):
        return Trial()
    keras = import_module("keras")
    look = _traced if keras.backend.backend() == "jax" else _taken
    try:
        # What is tried is undone, whatever comes.
        with undisturbed(), _losses_of_compile(model) as losses:
            logs, idle, calls, beside = look(model, sample)
        known = set(model.get_metrics_result()) - idle
    except Exception:  # a worker would raise it as well, with its place
        return Trial()
    held = optimizers_of(model)
    times = Counter(id(call.optimizer) for call in calls)
    ours = {id(optimizer) for optimizer in held}
    unseen = [c.optimizer for c in calls if id(c.optimizer) not in ours]
    reduction = _reduction(model, sample) if exchanges_gradients else "mean"
    return Trial(
        logs=step_logs(logs, known),
        applies=tuple(described(call.optimizer) for call in calls),
        applied=tuple(times[id(optimizer)] for optimizer in held),
        unseen=tuple(dict.fromkeys(described(optimizer) for optimizer in unseen)),
        beside=tuple(beside),
        is_sum=reduction == "sum",
        is_unseen=not reduction and not losses,
    )


Found = tuple[dict[str, Any], set[str], list[Application], list[str]]


def _traced(model: Any, sample: Any) -> Found:
    """Finds the facts from a step whose values are symbols."""
    keras = import_module("keras")
    spec_of = import_module("keras.src.backend").compute_output_spec
    groups = _state(model)
    state = tuple(symbols([v.value for v in group]) for group in groups)
    idle: set[str] = set()
    beside: list[str] = []

    def step(state: Any, rows: Any) -> Any:
        logs, after = model.train_step(state, rows)
        idle.update(idle_metrics(model, state[3], after[3]))
        updated = {id(v) for call in calls for v in call.found or ()}
        known = updated | {id(v) for v in state[0]}
        pairs = zip(groups[0], after[0], strict=True)
        beside.extend(str(v.path) for v, value in pairs if id(value) not in known)
        return {k: keras.tree.map_structure(keras.ops.convert_to_tensor, v)
                for k, v in logs.items()}  # fmt: skip

    with watched() as calls:
        logs = spec_of(step, state, symbols(sample))
    return logs, idle, calls, beside


def _taken(model: Any, sample: Any) -> Found:
    """Finds the facts from real steps, undone; updates are withheld, or arbitrary.

    Variables that differ then follow from updated weights. Variables that differ in two
    equal steps are random, and are ignored.
    """
    known = {id(v) for v in model.metrics_variables}
    known |= {id(v) for o in optimizers_of(model) for v in variables_of(o)}
    own = [v for v in model.variables if id(v) not in known]
    left: dict[int, Array] = {}

    def disturb(_: Sequence[Any], variables: Sequence[Any]) -> None:
        for variable in variables:
            variable.assign(variable * 2.0 + 3.0)
            left[id(variable)] = _numpy_of(variable)

    def hold_back(*_: Any) -> None:
        return

    with random_state_kept(), _put_back(model) as put_back:
        before = [_numpy_of(v) for v in own]
        logs, idle, calls = _step(model, sample, hold_back)
        held = [_numpy_of(v) for v in own]
        put_back()
        with random_state_kept():
            _step(model, sample, hold_back)
        again = [_numpy_of(v) for v in own]
        put_back()
        with random_state_kept():
            _step(model, sample, disturb)
        free = [_numpy_of(v) for v in own]
    beside: list[str] = []
    for variable, *values in zip(own, before, held, again, free, strict=True):
        old, one, two, other = values
        if variable.trainable:
            is_beside = not _is_same(old, one)
            is_beside |= not _is_same(left.get(id(variable), one), other)
        else:
            is_beside = _is_same(one, two) and not _is_same(one, other)
        if is_beside:
            beside.append(str(variable.path))
    return logs, idle, calls, beside


@contextmanager
def _losses_of_compile(model: Any) -> Generator[list[bool]]:
    """Notes each call of `compute_loss`, whose reduction is known."""
    found: list[bool] = []
    own, kept = model.compute_loss, model.__dict__.get("compute_loss")

    def compute_loss(*given: Any, **named: Any) -> Any:
        found.append(True)
        return own(*given, **named)

    # Not by `setattr`, which a model looks at.
    model.__dict__["compute_loss"] = compute_loss
    try:
        yield found
    finally:
        del model.__dict__["compute_loss"]
        if kept is not None:
            model.__dict__["compute_loss"] = kept


def _reduction(model: Any, sample: Any) -> Reduction:
    """Finds what a step takes the gradient of; the model is not changed."""
    with undisturbed(), _put_back(model):
        return _reduction_of(model, sample)


def _reduction_of(model: Any, sample: Any) -> Reduction:
    """Looks whether gradients double when each row comes twice.

    Gradients of a mean stay the same. If random numbers are drawn for rows, or other
    losses are added, neither holds.
    """
    keras = import_module("keras")
    is_jax = keras.backend.backend() == "jax"
    if is_jax and model.count_params() > MOST_COMPILED:
        return ""
    gradients = _compiled_gradients if is_jax else _taken_gradients

    def twice(array: Any) -> Any:
        return None if array is None else np.concatenate([array, array])

    try:
        with random_state_kept():
            once = gradients(model, sample)
        with random_state_kept():
            doubled = gradients(model, keras.tree.map_structure(twice, sample))
        pairs = list(zip(once, doubled, strict=True))
    except Exception:  # for example, it takes no other number of rows
        return ""
    size = max((float(np.abs(one).max()) for one in once if one.size), default=0.0)
    if not 0.0 < size < np.inf:
        return ""

    def are(times: float) -> bool:
        at_most = CLOSE * size
        return all(
            np.allclose(two, times * one, rtol=CLOSE, atol=at_most)
            for one, two in pairs
        )

    return "sum" if are(2) else "mean" if are(1) else ""


def _taken_gradients(model: Any, rows: Any) -> list[Array]:
    """Returns the gradients of a step without its updates; the model is changed."""
    found: list[Array] = []

    def keep(gradients: Sequence[Any], _: Sequence[Any]) -> None:
        found.extend(np.array(_to_numpy(g)) for g in gradients if g is not None)

    _step(model, rows, keep)
    return found


def _compiled_gradients(model: Any, rows: Any) -> list[Array]:
    """Does the same for a step on JAX, which changes nothing."""

    def step(state: Any, rows: Any) -> list[Any]:
        with watched() as calls:
            model.train_step(state, rows)
        return [g for call in calls for g in call.gradients if g is not None]

    state = tuple([v.value for v in group] for group in _state(model))
    compiled = import_module("jax").jit(step)
    return [np.asarray(g) for g in compiled(state, rows)]


def _state(model: Any) -> tuple[Sequence[Any], ...]:
    """Returns the variables as `train_step` gets them on JAX."""
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )


def _step(
    model: Any, sample: Any, act: Act
) -> tuple[dict[str, Any], set[str], list[Application]]:
    """Takes a step; returns its logs, metrics it does not update, and calls."""
    keras = import_module("keras")
    model.reset_metrics()

    def to_tensor(array: Any) -> Any:
        return None if array is None else keras.ops.convert_to_tensor(array)

    def states(metric: Any) -> list[Array]:
        return [_numpy_of(v) for v in metric.variables]

    before = {metric.name: states(metric) for metric in model.metrics}
    with watched(act) as calls, interruptible():
        logs = model.train_step(keras.tree.map_structure(to_tensor, sample))
    idle = {
        m.name
        for m in model.metrics
        if m.variables and all(map(np.array_equal, states(m), before[m.name]))
    }
    return {n: np.asarray(_to_numpy(log)) for n, log in logs.items()}, idle, calls


@contextmanager
def _put_back(model: Any) -> Generator[Callable[[], None]]:
    """Yields a function that restores the model's state; calls it at the end."""
    optimizers = [v for o in optimizers_of(model) for v in variables_of(o)]
    held = [*all_variables(model), *optimizers, *model.metrics_variables]
    kept = [_numpy_of(v) for v in held]
    counts = [
        (vars(layer), name, value)
        for layer in model._flatten_layers()
        for name, value in vars(layer).items()
        if type(value) in (int, float) and not name.startswith("_")
    ]

    def put_back() -> None:
        for variable, value in zip(held, kept, strict=True):
            variable.assign(value)
        for attributes, name, value in counts:
            attributes[name] = value
        if hasattr(model, "zero_grad"):  # torch keeps gradients
            model.zero_grad()

    try:
        yield put_back
    finally:
        put_back()


def _numpy_of(variable: Any) -> Array:
    return np.array(import_module("keras").ops.convert_to_numpy(variable.value))


def _to_numpy(log: Any) -> Any:
    """Returns a log as an array, of which only shape and kind are used."""
    keras = import_module("keras")
    return keras.ops.convert_to_numpy(log) if keras.ops.is_tensor(log) else log


def _is_same(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
