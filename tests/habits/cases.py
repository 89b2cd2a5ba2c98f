"""Small models, data and callbacks with known behaviour."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

HOOKS = [
    name
    for name in dir(keras.callbacks.Callback)
    if name.startswith("on_") and "predict" not in name
]


def data(rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Rows of a problem that two classes nearly solve."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 8)).astype("float32")
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype("int32")
    return x, y


def make_model(optimizer: Any = None, *, dropout: float = 0.0) -> Any:
    """A small classifier, the same at every call."""
    keras.utils.set_random_seed(7)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu"),
            *([layers.Dropout(dropout)] if dropout else []),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


class Recorder(keras.callbacks.Callback):
    """Writes down every hook that is called, and cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int | None, tuple[str, ...]]] = []
        self.logs: list[dict[str, float]] = []
        for hook in HOOKS:
            if "batch" not in hook or "_test_" in hook or "_train_" in hook:
                setattr(self, hook, self._writer(hook))

    def _writer(self, hook: str) -> Any:
        def write(*arguments: Any, logs: dict[str, Any] | None = None) -> None:
            # Keras gives logs by name or by position, and the step by position.
            for argument in arguments:
                logs = argument if isinstance(argument, dict) else logs
            step = next((a for a in arguments if isinstance(a, int)), None)
            self.calls.append((hook, step, tuple(sorted(logs or {}))))
            self.logs.append(dict(logs or {}))

        return write

    def __reduce__(self) -> Any:
        raise TypeError("a callback stays where it is")


def weights_of(model: Any) -> list[np.ndarray]:
    return [np.array(w) for w in model.get_weights()]


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    """Compares weights or histories."""
    if isinstance(theirs, dict):
        assert sorted(ours) == sorted(theirs)
        for name, values in theirs.items():
            np.testing.assert_allclose(ours[name], values, rtol=tolerance, atol=1e-5)
        return
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)
