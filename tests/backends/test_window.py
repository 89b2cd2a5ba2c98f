"""A window of any backend tells in which of its steps the loss turned."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from shoal.backends.base import Backend, Clock, ComputeSpec
from shoal.engine.worker.factories import backend_class
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
def test_a_finite_loss_turns_in_no_step(steps: int) -> None:
    assert opened().run(rows(steps), steps, Clock()) is None


@pytest.mark.parametrize("steps", [4, WINDOW])
@pytest.mark.parametrize("bad", [0, 2, 3])
def test_the_first_step_with_nan_is_reported(steps: int, bad: int) -> None:
    x, y = rows(steps)
    y[bad * BATCH + 1] = np.inf
    backend = opened()
    assert backend.run((x, y), steps, Clock()) == bad
    assert backend.run(rows(1), 1, Clock()) == 0  # its weights are lost


def test_weights_that_grow_too_large_show_in_the_next_step() -> None:
    assert opened(learning_rate=1e30).run(rows(4), 4, Clock()) == 1


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="a matter of XLA on CPU")
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_convolutions_go_step_by_step_to_where_a_loop_would(momentum: float) -> None:
    layers, found = keras.layers, list[Any]()
    data = rows(WINDOW)
    for is_stepwise in (True, False):
        keras.utils.set_random_seed(4)
        inner: list[Any] = [layers.Reshape((3, 1)), layers.Conv1D(4, 2)]
        net = keras.Sequential(
            [keras.Input((3,)), *inner, layers.Flatten(), layers.Dense(1)]
        )
        rate = keras.optimizers.schedules.InverseTimeDecay(0.1, 2, 0.5)
        net.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
        net.build((None, 3))
        net.optimizer.build(net.trainable_variables)
        net.train_on_batch(data[0][:1], data[1][:1])
        spec = ComputeSpec(window=WINDOW, batch_size=BATCH, local_momentum=momentum)
        backend: Any = backend_class("jax")(net, spec)
        if momentum:
            backend.warm_up(data, is_gradient=False)
            assert backend._is_stepwise
        backend._is_stepwise = None if is_stepwise else False
        backend.run(data, WINDOW, Clock(start=3.0, pace=2.0))
        sums = np.zeros(backend.metrics_size)
        backend.take_metrics(sums, add=False)
        assert backend._is_stepwise == is_stepwise
        found.append((*backend.read(), sums))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="a matter of XLA on CPU")
def test_without_convolutions_a_window_is_one_program() -> None:
    backend: Any = opened()
    backend.warm_up(rows(WINDOW), is_gradient=False)
    assert not backend._is_stepwise


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_windows_and_exchanged_steps_take_turns(optimizer: str) -> None:
    """A worker of all_reduce that is alone, then exchanges, then is alone again."""
    data, parts = rows(WINDOW), [(0, 3), (3, 4), (4, 5), (5, WINDOW)]
    found = list[Any]()
    for is_mixed in (False, True):
        keras.utils.set_random_seed(4)
        net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        net.compile(optimizer, "mse", metrics=["mae"])
        net.build((None, 3))
        net.optimizer.build(net.trainable_variables)
        net.train_on_batch(data[0][:1], data[1][:1])
        spec = ComputeSpec(window=WINDOW, batch_size=BATCH)
        backend = backend_class(keras.backend.backend())(net, spec)
        sums = np.zeros(backend.metrics_size)
        gradient = np.empty(backend.layout.size, np.float32)
        for start, stop in parts:
            part = tuple(array[start * BATCH : stop * BATCH] for array in data)
            clock = Clock(start=float(start))
            if is_mixed and stop - start == 1 and stop < WINDOW:
                mass = backend.gradient(part, BATCH, gradient)
                backend.apply(gradient / np.float32(mass), clock)
            else:
                backend.run(part, stop - start, clock)
            backend.take_metrics(sums, add=True)
        found.append((backend.read()[0].copy(), sums, backend.snapshot()))
    (plain, plain_sums, state), (mixed, mixed_sums, other) = found
    np.testing.assert_allclose(mixed, plain, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mixed_sums, plain_sums, rtol=1e-4)
    assert len(state) == len(other)
