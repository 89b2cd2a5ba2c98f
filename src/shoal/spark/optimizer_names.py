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
    old = RATES.get(given.lower())
    found: Any = keras.optimizers.get(given)
    if learning_rate is None and old is not None:
        say(
            f"{given!r} has the learning rate of Keras 1, {old:g}; pass an optimizer "
            "for another one."
        )
    rate = old if learning_rate is None else learning_rate
    if rate is not None:
        found.learning_rate = rate
    return found
