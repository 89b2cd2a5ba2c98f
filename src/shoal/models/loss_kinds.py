"""Finds how losses count samples, by trying them, for the mean over workers.

Keras reduces a loss that gives a number for each sample, as it is configured. A loss
that gives a number for the whole batch is a sum over it, a mean, or neither, such as a
Dice score. So are the losses that layers add. This file decides which, from a few rows,
split in more than one way: a sum is the sum over the parts, a mean their mean by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from shoal.models.losses import USUAL, is_plain, own_loss_of, symbols
from shoal.vectors import all_variables

Kind: TypeAlias = Literal["sum", "mean", "neither"]
Call: TypeAlias = Callable[[Any, Any, Any], Any]

CLOSE = 1e-4  # relative tolerance, in float32
SPREAD = 0.1  # predictions of each row are made smaller by this times its number


class LossKinds(NamedTuple):
    """The kinds of a model's losses.

    Args:
        reductions: Reductions of the losses of `compile`, each kind once.
        summed: Indices in `model.losses` of those that are sums over the batch.
        odd: Names of losses that are neither sums nor means.
        masks: Number of different masks of the losses, where no mask counts as one; 0
            if no output has a mask.
    """

    reductions: tuple[str, ...]
    summed: tuple[int, ...] = ()
    odd: tuple[str, ...] = ()
    masks: int = 0


class Seen(NamedTuple):
    """The arguments of one loss of `compile`.

    Args:
        name: Name of its output.
        loss: The loss.
        given: Targets, predictions and weights of its output.
        mask: Mask of the predictions, None for none.
        is_scalar: Whether it gives one number for the batch.
    """

    name: str
    loss: Any
    given: tuple[Any, Any, Any]
    mask: Any
    is_scalar: bool


def read_losses(model: Any, sample: Any) -> LossKinds:
    """Finds the kinds of a prepared model's losses; the model is not changed.

    Most models are only traced, and nothing is computed. Those with a loss of one
    number for the batch predict a few rows, a few times.

    Args:
        model: A prepared model.
        sample: At least two rows, as `train_step` gets them.
    """
    if is_plain(model):
        return LossKinds(_usual(model))
    keras = import_module("keras")
    backend = import_module("keras.src.backend")
    seen: list[Seen] = []
    added: list[int] = []

    def look(rows: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(rows)
        if backend.in_stateless_scope():  # Keras forgets losses of layers there
            backend.get_stateless_scope().collect_losses = True
        found = model(x, training=True)
        added.append(_added(model))
        if model._compile_loss is not None and y is not None:
            seen.extend(_seen(model._compile_loss, y, found, weights))
        return found

    try:
        backend.compute_output_spec(look, symbols(sample))
    except Exception:  # the user's code; a worker would report its error
        return LossKinds(_usual(model))
    kinds = ["mean" if s.is_scalar else "" for s in seen]
    extras: list[Kind] = []
    own = own_loss_of(model)
    if any(kinds) or any(added) or own == "compute_loss":
        try:
            kinds, extras = _tried(model, sample, kinds, added[0], own)
        except Exception:  # for example, it does not take other numbers of rows
            kinds = ["neither" if kind else "" for kind in kinds]
            extras = ["neither"] * added[0]
    pairs = zip(seen, kinds, strict=False)
    odd = [f"of {s.name}" for s, kind in pairs if kind == "neither"]
    if "neither" in extras:
        odd.append("that layers add")
    if len(kinds) > len(seen):
        odd.append("of compute_loss")
    return LossKinds(
        _reductions(model, seen, kinds),
        tuple(place for place, kind in enumerate(extras) if kind == "sum"),
        tuple(odd),
        _masks(seen),
    )


def kind_of(values: Sequence[tuple[float, Sequence[tuple[int, float]]]]) -> Kind:
    """Returns the kind of a loss that gave these values.

    Args:
        values: For the same rows: the loss of all, and rows and losses of the parts.

    Example:
        >>> parts = [(1, 1.0), (3, 5.0)]
        >>> [kind_of([(whole, parts)]) for whole in (6.0, 4.0, 5.0)]
        ['sum', 'mean', 'neither']
    """

    def is_all(made: Callable[[Sequence[tuple[int, float]]], float]) -> bool:
        return all(
            np.isclose(whole, made(parts), rtol=CLOSE, atol=1e-7)
            for whole, parts in values
        )

    def mean(parts: Sequence[tuple[int, float]]) -> float:
        rows = sum(count for count, _ in parts)
        return sum(count * value for count, value in parts) / rows

    # Zeros match both; weighing them as a mean changes nothing.
    if is_all(mean):
        return "mean"
    return "sum" if is_all(lambda parts: sum(v for _, v in parts)) else "neither"


def _usual(model: Any) -> tuple[str, ...]:
    """Returns the reductions that the losses declare."""
    compiled: Any = model._compile_loss
    losses = getattr(compiled, "_flat_losses", None) or []
    return _names(getattr(entry.loss, "reduction", USUAL) for entry in losses)


def _reductions(model: Any, seen: Sequence[Seen], kinds: Sequence[str]) -> Any:
    if not seen:
        return _usual(model)
    found = [
        {"": s.loss and getattr(s.loss, "reduction", USUAL), "sum": "sum"}.get(k, USUAL)
        for s, k in zip(seen, kinds, strict=False)
    ]
    return _names(found)


def _names(found: Any) -> tuple[str, ...]:
    known = {"mean": USUAL, "auto": USUAL}
    return tuple(sorted({known.get(r, r) or "none" for r in found}))


def _added(model: Any) -> int:
    """Returns how many losses layers have added; weight losses follow them."""
    return len(model.losses) - len(model._get_regularization_losses())


def _seen(compiled: Any, y: Any, found: Any, weights: Any) -> list[Seen]:
    """Returns the arguments of each loss of `compile`."""
    backend = import_module("keras.src.backend")
    seen: list[Seen] = []

    def looking(entry: Any) -> Call:
        def call(y_true: Any, y_pred: Any, weight: Any = None) -> Any:
            value = entry.loss(y_true, y_pred, weight)
            inner = getattr(entry.loss, "call", entry.loss)
            shape = getattr(inner(y_true, y_pred), "shape", None)
            mask = backend.get_keras_mask(y_pred)
            is_scalar = shape is not None and tuple(shape) == ()
            given = y_true, y_pred, weight
            seen.append(Seen(str(entry.name), entry.loss, given, mask, is_scalar))
            return value

        return call

    with calling(compiled, looking), import_module("keras").StatelessScope():
        compiled(y, found, weights)
    return seen


@contextmanager
def calling(compiled: Any, make: Callable[[Any], Call]) -> Generator[None]:
    """Context in which another function replaces each loss of `compile`.

    Args:
        compiled: `model._compile_loss`, built.
        make: Maps an entry to a function of targets, predictions and weights.
    """
    before = compiled._flat_losses
    if before is None:
        yield
        return
    compiled._flat_losses = [entry._replace(loss=make(entry)) for entry in before]
    try:
        yield
    finally:
        compiled._flat_losses = before


def _masks(seen: Sequence[Seen]) -> int:
    """Counts different masks; the mask of one layer's output is one object."""
    masks = {None if s.mask is None else id(s.mask) for s in seen}
    return 0 if masks <= {None} else len(masks)


# ------------------------------------------------------------------- trying


def _tried(
    model: Any, sample: Any, kinds: Sequence[str], added: int, own: str
) -> tuple[list[str], list[Kind]]:
    """Returns the kinds of scalar losses, and of the losses that layers add."""
    keras = import_module("keras")
    count = len(keras.tree.flatten(sample)[0])
    half = max(1, count // 2)
    ways = [(slice(0, 1), slice(1, count)), (slice(0, half), slice(half, count))]
    with _kept(model):
        extras = _tried_extras(model, sample, ways, added) if added else []
        if not any(kinds) and own != "compute_loss":
            return list(kinds), extras
        x, y, weights = keras.utils.unpack_x_y_sample_weight(sample)
        found = model(_tensors(x), training=False)
        if own == "compute_loss":
            given = x, y, found, weights
            kind = _kind(lambda rows: _own_loss(model, given, rows), ways)
            return [*kinds, *(["neither"] if kind != "mean" else [])], extras
        seen = _seen(model._compile_loss, _tensors(y), found, _tensors(weights))
        return [
            _kind_of_loss(s, ways) if kind else ""
            for s, kind in zip(seen, kinds, strict=True)
        ], extras


Rows: TypeAlias = slice
Ways: TypeAlias = list[tuple[slice, slice]]


def _kind(value: Callable[[Rows], float], ways: Ways) -> Kind:
    whole = value(slice(None))
    return kind_of(
        [(whole, [(p.stop - p.start, value(p)) for p in parts]) for parts in ways]
    )


def _kind_of_loss(seen: Seen, ways: Ways) -> str:
    """Tries a loss on the model's predictions, and on slightly changed ones."""
    y_true, y_pred, weight = map(_arrays, seen.given)
    factors = 1 - SPREAD * np.arange(len(y_pred)).reshape(-1, *[1] * (y_pred.ndim - 1))
    found: set[str] = set()
    for predicted in (y_pred, (y_pred * factors).astype(y_pred.dtype)):

        def value(rows: Rows, predicted: Any = predicted) -> float:
            given = _tensors(
                [None if a is None else a[rows] for a in (y_true, predicted, weight)]
            )
            return float(_arrays(seen.loss(*given)))

        found.add(_kind(value, ways))
    return found.pop() if len(found) == 1 else "neither"


def _own_loss(model: Any, given: Any, rows: Rows) -> float:
    """Returns the loss of a user's `compute_loss`, without losses of layers."""
    keras = import_module("keras")

    def cut(array: Any) -> Any:
        return None if array is None else keras.ops.convert_to_tensor(
            _arrays(array)[rows]
        )  # fmt: skip

    parts = keras.tree.map_structure(cut, given)
    total = keras.ops.sum(model._compute_loss(*parts, training=False))
    return float(_arrays(total))


def _tried_extras(model: Any, sample: Any, ways: Ways, added: int) -> list[Kind]:
    """Returns the kinds of layers' losses, from calls of the model on the parts."""
    keras = import_module("keras")
    x = keras.utils.unpack_x_y_sample_weight(sample)[0]
    known: dict[tuple[Any, Any], list[float]] = {}

    def values(rows: Rows) -> list[float]:
        key = rows.start, rows.stop
        if key not in known:
            part = keras.tree.map_structure(lambda a: None if a is None else a[rows], x)
            model(_tensors(part), training=False)
            if _added(model) != added:
                raise ValueError("losses that are added in training alone")
            known[key] = [float(_arrays(keras.ops.sum(v))) for v in model.losses]
        return known[key]

    return [
        _kind(lambda rows, place=place: values(rows)[place], ways)
        for place in range(added)
    ]


@contextmanager
def _kept(model: Any) -> Generator[None]:
    """Context in which calls leave no trace in the model's variables."""
    held = [*all_variables(model), *model.metrics_variables]
    before = [_arrays(v.value).copy() for v in held]
    try:
        yield
    finally:
        model._clear_losses()
        for variable, value in zip(held, before, strict=True):
            variable.assign(value)


def _tensors(tree: Any) -> Any:
    keras = import_module("keras")
    return keras.tree.map_structure(
        lambda a: None if a is None else keras.ops.convert_to_tensor(a), tree
    )


def _arrays(value: Any) -> Any:
    if value is None:
        return None
    return np.asarray(import_module("keras").ops.convert_to_numpy(value))
