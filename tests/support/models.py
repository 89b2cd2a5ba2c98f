"""Models that several tests train."""

from __future__ import annotations

from typing import Any

import keras


def wide() -> Any:
    """A model of some hundred weights, so that three servers have a part each."""
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["AUC"])
    return net
