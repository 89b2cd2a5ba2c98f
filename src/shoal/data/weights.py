"""Weights of samples: one for each, per output, or by class.

This file decides what `sample_weight` and `class_weight` mean, exactly as Keras'
own array adapter does.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

import numpy as np

from shoal.data import trees
from shoal.data.arrays import FIT, Array
from shoal.errors import ConfigError, DataError


def class_weights(y: Array, class_weight: Mapping[int, float], floatx: str) -> Array:
    """Turns weights of classes into weights of samples.

    Args:
        y: Integer labels, shape (n,) or (n, 1), or one-hot rows, shape (n, classes).
        class_weight: Class -> weight; classes not in it weigh 1.
        floatx: Dtype of the weights.

    Shapes: returns `(n,)`.

    Example:
        >>> class_weights(np.array([0, 1, 2]), {1: 5.0}, "float32")
        array([1., 5., 1.], dtype=float32)
        >>> class_weights(np.eye(2)[[1, 0]], {0: 2.0, 1: 3.0}, "float32")
        array([3., 2.], dtype=float32)
    """
    if y.ndim > 1:
        y = np.squeeze(y, -1) if y.shape[-1] == 1 else np.argmax(y, axis=-1)
    labels, places = np.unique(np.round(y).astype("int32"), return_inverse=True)
    table = np.array([class_weight.get(int(label), 1.0) for label in labels])
    return table.astype(floatx)[places.reshape(y.shape)]


def weights_per_output(
    y: trees.Tree, sample_weight: trees.Tree, where: str = FIT
) -> trees.Tree:
    """Returns `sample_weight` nested as `y`; one array serves all outputs.

    Raises:
        DataError: The nesting differs, or one array for several outputs has more
            than one number a sample.

    Example:
        >>> weights = np.ones(3)
        >>> shared = weights_per_output({"a": 0, "b": 1}, weights)
        >>> shared["a"] is weights and shared["b"] is weights
        True
    """
    if not trees.is_nested(y):
        return sample_weight
    if trees.is_nested(sample_weight):
        if not trees.have_same_structure(y, sample_weight):
            raise DataError(
                f"sample_weight is not nested as y is ({where}): "
                f"y has {_names(y, 'y')}, sample_weight has "
                f"{_names(sample_weight, 'sample_weight')}. "
                "Expected one array of weights for each output. "
                "Pass sample_weight in the same dict, list or tuple as y."
            )
        return sample_weight
    shape = np.shape(sample_weight)
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        raise DataError(
            f"sample_weight has shape {shape} for several outputs ({where}). "
            "Expected one number for each sample, shape (samples,). "
            "Pass one array for each output, nested as y, for other shapes."
        )
    return trees.map_leaves(lambda _: sample_weight, y)


def check_class_weight(
    class_weight: object, y: trees.Tree, *, has_sample_weight: bool
) -> None:
    """Refuses a `class_weight` that Keras would refuse.

    Raises:
        ConfigError: It does not map classes to weights, there are sample weights too,
            or no or several targets.
    """
    is_mapping = isinstance(class_weight, Mapping)
    items = cast("Mapping[Any, Any]", class_weight).items() if is_mapping else ()
    if not is_mapping or not all(isinstance(n, Real) for item in items for n in item):
        raise ConfigError(
            f"class_weight={class_weight!r} cannot be used. "
            "Expected a dict from the number of a class to its weight. "
            "Write it as {0: 1.0, 1: 3.0}."
        )
    if has_sample_weight:
        raise ConfigError(
            "class_weight and sample_weight are both given. Expected one of them. "
            "Multiply the weights of classes into sample_weight."
        )
    if y is None or trees.is_nested(y):
        targets = "no targets" if y is None else f"targets {_names(y, 'y')}"
        raise ConfigError(
            f"class_weight is given with {targets}. "
            "Expected one array of labels as y. "
            "Pass sample_weight, nested as y, instead."
        )


def _names(tree: trees.Tree, name: str) -> str:
    return ", ".join(found for found, _ in trees.named_leaves(tree, name)) or "nothing"
