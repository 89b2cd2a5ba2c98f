"""Names of optimizers as scripts of 2016 mean them: with the rates of Keras 1."""

from __future__ import annotations

from typing import Any

import keras

from shoal.terminal import say

RATES = {"adadelta": 1.0, "adagrad": 0.01, "adamax": 0.002, "nadam": 0.002}
"""Default rates that were others in Keras 1."""


def optimizer_of(given: Any, learning_rate: float | None = None) -> Any:
    """Returns a new optimizer; an optimizer object is copied and keeps its rate.

    Args:
        given: Name of an optimizer, or an optimizer.
        learning_rate: Rate for a name; default None: that of Keras 1.

    Example:
        >>> float(optimizer_of("adagrad", 0.5).learning_rate)
        0.5
    """
    if not isinstance(given, str):
        return keras.optimizers.deserialize(keras.optimizers.serialize(given))
    if learning_rate is None and given.lower() in RATES:
        say(
            f"{given!r} has the learning rate of Keras 1, {RATES[given.lower()]:g}; "
            "pass an optimizer for another one."
        )
    found: Any = keras.optimizers.get(given)
    found.learning_rate = rate_of(given, learning_rate)
    return found


def rate_of(given: Any, learning_rate: float | None = None) -> float:
    """Returns the rate that `optimizer_of` gives an optimizer.

    Args:
        given: Name of an optimizer, or an optimizer.
        learning_rate: Rate for a name; default None: that of Keras 1.

    Example:
        >>> rate_of("adagrad"), rate_of("sgd", 0.5)
        (0.01, 0.5)
    """
    if not isinstance(given, str):
        return float(given.learning_rate)
    if learning_rate is not None:
        return learning_rate
    old = RATES.get(given.lower())
    return float(keras.optimizers.get(given).learning_rate) if old is None else old
