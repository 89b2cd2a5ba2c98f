"""A window of any backend tells in which of its steps the loss turned."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from shoal.backends.base import Backend, Clock, ComputeSpec
from shoal.engine.opening import backend_class
from shoal.models.metrics import MetricStates

BATCH, WINDOW = 4, 6


def opened(**given: Any) -> Backend:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.SGD(**given), "mse", metrics=["mae"])
    net.train_on_batch(np.zeros((1, 3)), np.zeros((1, 1)))
    spec = ComputeSpec(
        window=WINDOW, batch_size=BATCH, loss_at=MetricStates.of(net).loss_at
    )
    return backend_class(keras.backend.backend())(net, spec)


def rows(steps: int) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    x = random.standard_normal((steps * BATCH, 3)).astype("f4")
    return x, np.ones((steps * BATCH, 1), np.float32)


@pytest.mark.parametrize("steps", [1, 4, WINDOW])
def test_a_loss_that_stays_finite(steps: int) -> None:
    assert opened().run(rows(steps), steps, Clock()) is None


@pytest.mark.parametrize("steps", [4, WINDOW])
@pytest.mark.parametrize("bad", [0, 2, 3])
def test_the_first_step_of_many(steps: int, bad: int) -> None:
    x, y = rows(steps)
    y[bad * BATCH + 1] = np.inf
    backend = opened()
    assert backend.run((x, y), steps, Clock()) == bad
    assert backend.run(rows(1), 1, Clock()) == 0  # its weights are lost


def test_weights_that_grow_too_large_show_in_the_next_step() -> None:
    assert opened(learning_rate=1e30).run(rows(4), 4, Clock()) == 1
