"""Helpers of dist-keras for models and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError


def serialize_keras_model(model: Any) -> dict[str, Any]:
    """Returns a model as its JSON and its weights.

    Args:
        model: A built model.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> sorted(serialize_keras_model(model))
        ['model', 'weights']
    """
    return {"model": model.to_json(), "weights": model.get_weights()}


def deserialize_keras_model(dictionary: Mapping[str, Any]) -> Any:
    """Returns the model of `serialize_keras_model`, not compiled.

    Args:
        dictionary: With "model" and "weights".
    """
    model: Any = import_module("keras").models.model_from_json(dictionary["model"])
    model.set_weights(dictionary["weights"])
    return model


def uniform_weights(model: Any, constraints: Sequence[float] = (-0.5, 0.5)) -> Any:
    """Draws all weights of a model anew, with equal chances; returns the model.

    Args:
        model: A built model.
        constraints: Least and largest weight.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        >>> drawn = uniform_weights(model, constraints=(0.5, 1.0))
        >>> bool(drawn.get_weights()[0].min() >= 0.5)
        True
    """
    low, high = constraints
    random = np.random.default_rng()
    model.set_weights(
        [random.uniform(low, high, weight.shape) for weight in model.get_weights()]
    )
    return model


def to_one_hot_encoded_dense(value: float, n_dim: int = 2) -> npt.NDArray[np.float64]:
    """Returns a vector of zeros with a one.

    Args:
        value: Index of the one.
        n_dim: Size of the vector.

    Raises:
        ConfigError: The index is outside of it.

    Example:
        >>> to_one_hot_encoded_dense(1.0, 3)
        array([0., 1., 0.])
    """
    if not 0 <= value < n_dim or value != int(value):
        raise ConfigError(
            f"value={value!r} is no index of a vector of n_dim={n_dim}. Expected a "
            f"whole number from 0 to {n_dim - 1}. Correct it, or raise n_dim."
        )
    vector = np.zeros(n_dim)
    vector[int(value)] = 1.0
    return vector
