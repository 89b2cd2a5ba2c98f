"""A small classifier that every test here trains."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

ROWS, BATCH_SIZE = 250, 16


def data() -> tuple[Any, Any]:
    """Two classes, not separable by a line; the last batch is short."""
    random = np.random.default_rng(7)
    x = random.standard_normal((ROWS, 6)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int32)
    return x, y


def make_model(*, optimizer: Any = None, dropout: float = 0.0) -> Any:
    """A perceptron with batch norm, so that there are statistics to carry."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(12, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(dropout),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.5),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
