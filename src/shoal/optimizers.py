"""Optimizers of a Keras model: their order, and their variables.

A user's `train_step` may apply more optimizers than the one given to `compile`,
as those of a GAN do. This file decides which optimizers count as state of the
model, in which order, and where a wrapping optimizer keeps its count of
steps and its learning rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

DEEPEST = 4
"""Depth to which nested containers are searched."""

NORMALISING = (
    "Adadelta", "Adafactor", "Adam", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam",
    "RMSprop",
)  # fmt: skip
"""Keras' optimizers whose steps are about as long for small gradients as for large
ones, and do not shrink as those of Adagrad do. A subclass, such as AdamW, is one too.
"""

ADAPTIVE = ("Adagrad", "Adam", "Adamax", "Lamb", "Lion", "Nadam", "RMSprop")
"""Keras' optimizers that divide a gradient by its size, so that the length of a step
is their learning rate. A subclass, such as AdamW, is one too.
"""


def has_own_step(model: Any) -> bool:
    """Whether the model's `train_step` is the user's."""
    own = getattr(type(model), "train_step", None)
    return own is not import_module("keras").Model.train_step


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizers that may train a model, its own first.

    Other optimizers are attributes of the model or of its layers, or lie in lists and
    dicts that are. Keras' own `train_step` applies none of them, so they do not
    count then. An optimizer within another one counts as part of that one.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> [type(optimizer).__name__ for optimizer in optimizers_of(model)]
        ['SGD']
    """
    own = getattr(model, "optimizer", None)
    found = {} if own is None else {id(own): own}
    if has_own_step(model):
        for layer in model._flatten_layers():
            for name, value in vars(layer).items():
                # TensorFlow's records of tracked objects also contain replaced ones.
                if not name.startswith("_self_"):
                    found.update((id(o), o) for o in _search(value, DEEPEST))
    inner = {id(part) for o in found.values() for part in _parts(o)}
    return [o for key, o in found.items() if key not in inner]


def has_others(model: Any) -> bool:
    """Whether a model has optimizers besides its own."""
    own = getattr(model, "optimizer", None)
    return any(optimizer is not own for optimizer in optimizers_of(model))


def optimizer_variables(model: Any) -> list[Any]:
    """Returns the variables of a model's optimizers, each once; none without one.

    On JAX a `train_step` is given those of the model's own optimizer. Other optimizers'
    variables take part only as variables of the model.
    """
    own = getattr(model, "optimizer", None)
    first = [] if own is None else own_variables(own)
    others = [v for o in optimizers_of(model) if o is not own for v in variables_of(o)]
    if _is_jax():
        known = {id(v) for v in model.non_trainable_variables}
        others = [v for v in others if id(v) in known]
    return _each_once([*first, *others])


def own_variables(optimizer: Any) -> list[Any]:
    """Returns the variables of a model's own optimizer, as a backend carries them."""
    return list(optimizer.variables) if _is_jax() else variables_of(optimizer)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer, including those of wrapped ones."""
    inner = [v for part in _parts(optimizer) for v in part.variables]
    return _each_once([*optimizer.variables, *inner])


def leaves(optimizer: Any) -> list[Any]:
    """Returns the optimizers that update weights: the wrapped ones, or itself.

    Example:
        >>> import keras
        >>> scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        >>> [type(leaf).__name__ for leaf in leaves(scaled)]
        ['SGD']
    """
    parts = _parts(optimizer)
    return [p for p in parts if not _parts(p)] or [optimizer]


def normalising(model: Any) -> tuple[str, ...]:
    """Returns the class names of optimizers that normalise their steps, each once.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW())
        >>> model.compile(scaled, "mse")
        >>> normalising(model)
        ('AdamW',)
    """
    kinds = _kinds(NORMALISING)
    names = [type(o).__name__ for o in _updating(model) if isinstance(o, kinds)]
    return tuple(dict.fromkeys(names))


def is_adaptive(model: Any) -> bool:
    """Whether the learning rates of all optimizers are the lengths of their steps.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.AdamW(), "mse")
        >>> is_adaptive(model)
        True
    """
    kinds = _kinds(ADAPTIVE)
    updating = _updating(model)
    return bool(updating) and all(isinstance(o, kinds) for o in updating)


def _updating(model: Any) -> list[Any]:
    return [leaf for one in optimizers_of(model) for leaf in leaves(one)]


def _kinds(names: Sequence[str]) -> tuple[type, ...]:
    known = import_module("keras").optimizers
    # An older Keras lacks some of them.
    return tuple(getattr(known, name) for name in names if hasattr(known, name))


def counted(optimizer: Any) -> Any:
    """Returns the optimizer whose count of steps Keras shows, inside loss scaling."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def step_of(optimizer: Any) -> Any:
    """Returns the variable that counts steps, the basis of `iterations`."""
    return counted(optimizer)._iterations


def rate_variable(optimizer: Any) -> Any:
    """Returns the variable with the learning rate, None without a single one.

    A schedule and a function have none, and `MultiOptimizer` has several.
    """
    holder = counted(optimizer)
    keras = import_module("keras")
    rate = getattr(holder, "_learning_rate", None)
    is_shared = len(leaves(holder)) > 1
    return rate if isinstance(rate, keras.Variable) and not is_shared else None


def rate_of(optimizer: Any) -> float | None:
    """Returns the learning rate; None under a schedule, or with several.

    Example:
        >>> import keras
        >>> rate_of(keras.optimizers.SGD(0.5))
        0.5
    """
    keras, holder = import_module("keras"), counted(optimizer)
    rate = getattr(holder, "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return None
    try:
        return float(keras.ops.convert_to_numpy(holder.learning_rate))
    except AttributeError:  # a MultiOptimizer: each of its optimizers has one
        return None


def described(optimizer: Any) -> str:
    """Returns the name of an optimizer for messages."""
    return f"{type(optimizer).__name__} {optimizer.name!r}"


def _is_jax() -> bool:
    return import_module("keras").backend.backend() == "jax"


def _each_once(variables: Iterable[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


def _parts(optimizer: Any) -> list[Any]:
    """Returns the optimizers within an optimizer, at any depth, each once."""
    found: dict[int, Any] = {}
    for value in vars(optimizer).values():
        for part in _search(value, DEEPEST):
            if part is not optimizer:
                found.update((id(o), o) for o in (part, *_parts(part)))
    return list(found.values())


def _search(value: Any, depth: int) -> Iterator[Any]:
    """Yields optimizers among a value and its contents."""
    kind = import_module("keras").optimizers.Optimizer
    if isinstance(value, kind):
        yield value
    elif depth == 0 or isinstance(value, (str, bytes)):
        return
    elif isinstance(value, Mapping):
        for entry in cast("Mapping[Any, Any]", value).values():
            yield from _search(entry, depth - 1)
    elif isinstance(value, (Sequence, set, frozenset)):
        for entry in cast("Sequence[Any]", value):
            yield from _search(entry, depth - 1)
