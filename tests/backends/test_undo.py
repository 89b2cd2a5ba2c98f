"""A step of all_reduce that is computed anew: it draws and counts as it did before."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from shoal.backends.base import Backend, ComputeSpec
from shoal.engine.worker.factories import OpenBackend
from shoal.models.inspection import prepare
from shoal.models.travel import pack

ROWS = 6


class Turns(keras.layers.Layer):
    """Counts its calls."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(
            shape=(), dtype="int32", trainable=False, initializer="zeros"
        )

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return x * (1.0 + 0.1 * keras.ops.cast(self.calls, x.dtype))


def data() -> tuple[Any, Any]:
    x = np.random.default_rng(2).standard_normal((ROWS, 3)).astype("f4")
    return x, x[:, :1]


def opened() -> Backend:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((3,)), layers.Dense(5), layers.BatchNormalization(),
            layers.Dropout(0.5), Turns(), layers.Dense(1),
        ]
    )  # fmt: skip
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    prepare(model, data())
    spec = ComputeSpec(window=1, batch_size=ROWS, is_summed=True)
    opening = OpenBackend(name=keras.backend.backend(), model=pack(model))
    return opening(spec, data())


def step(backend: Backend, step_rows: int) -> Any:
    """The gradient of a step of so many rows, and all state but the weights."""
    gradient = np.empty(backend.layout.size, np.float32)
    mass = backend.gradient(data(), step_rows, gradient)
    return gradient / mass, backend.statistics().copy(), backend.snapshot()


def test_a_repeated_step_leaves_the_state_of_one_step() -> None:
    backend, calm = opened(), opened()
    before = backend.statistics().copy()
    for _ in range(2):
        step(backend, 2 * ROWS)
        backend.undo()
        backend.set_statistics(before)
        found, wanted = step(backend, ROWS), step(calm, ROWS)
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], wanted[1])
        assert found[2] == wanted[2]
        before = found[1]


def test_the_loss_is_scaled_to_the_step() -> None:
    once, twice = step(opened(), ROWS)[0], step(opened(), 2 * ROWS)[0]
    np.testing.assert_allclose(2 * once, twice, rtol=1e-5, atol=1e-6)
