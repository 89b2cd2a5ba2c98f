"""Small models and data of the tests of the public verbs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def line(rows: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (rows, 2) and targets (rows, 1) of a linear map."""
    x = np.random.default_rng(0).standard_normal((rows, 2)).astype("float32")
    return x, x @ np.array([[2.0], [-1.0]], "float32") + 0.5


def linear(loss: Any = "mse", optimizer: Any = None, **compiled: Any) -> Any:
    """One dense layer, compiled; starts at zero."""
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")]
    )
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss, **compiled)
    return model


def two_headed(**losses: Any) -> Any:
    """One input, a dict of two outputs, metrics that are no means."""
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    outputs = {
        "sign": keras.layers.Dense(1, activation="sigmoid", name="sign")(hidden),
        "kind": keras.layers.Dense(3, activation="softmax", name="kind")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.1),
        losses
        or {"sign": "binary_crossentropy", "kind": "sparse_categorical_crossentropy"},
        metrics={"sign": [keras.metrics.AUC(), "accuracy"], "kind": ["accuracy"]},
    )
    return model


def two_targets(rows: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Data of `two_headed`."""
    x, _ = line(rows)
    kinds = np.random.default_rng(1).integers(0, 3, rows)
    return x, {"sign": (x[:, :1] > 0).astype("int32"), "kind": kinds}
