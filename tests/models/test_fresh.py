"""New variables that begin with a constant, without programs of the backend's."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest

from shoal.models.fresh import all_zero, plain_constants

OPTIMIZERS = [
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl",
    "lion", "nadam", "rmsprop", "sgd",
]  # fmt: skip


def make() -> keras.Model:
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()]
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_begins_as_keras_lets_it_begin(name: str) -> None:
    built = []
    for is_plain in (True, False):
        optimizer = keras.optimizers.get(name)
        model = make()
        if is_plain:
            with plain_constants():
                optimizer.build(model.trainable_variables)
        else:
            optimizer.build(model.trainable_variables)
        built.append(optimizer.variables)
    for ours, theirs in zip(*built, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_weights_that_are_drawn_are_still_drawn() -> None:
    with plain_constants():
        dense, scale = make().layers
    assert np.ptp(dense.kernel.numpy()) > 0
    assert scale.gamma.numpy().tolist() == [1.0] * 4


class Mine(keras.initializers.Initializer):
    """An initializer of a user."""

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> object:
        """Returns threes."""
        return np.full(shape, 3.0, dtype)


def test_all_zero_leaves_initializers_of_the_users_alone() -> None:
    with all_zero():
        layer = keras.layers.Dense(2, bias_initializer=Mine())
        layer.build((None, 3))
    assert not layer.kernel.numpy().any()
    assert layer.bias.numpy().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_narrow_and_whole_numbers(dtype: str) -> None:
    with plain_constants():
        variable = keras.Variable(
            keras.initializers.Ones(), shape=(2,), dtype=dtype, trainable=False
        )
    assert variable.dtype == dtype
    assert variable.numpy().tolist() == [1, 1]


def test_contexts_of_two_threads_end_in_any_order() -> None:
    kinds = keras.Variable.__mro__
    method = "_initialize_with_initializer"
    before = next(vars(kind)[method] for kind in kinds if method in vars(kind))
    began, goes = threading.Event(), threading.Event()
    drawn: list[float] = []

    def other() -> None:
        with plain_constants():
            began.set()
            assert goes.wait(30)
            drawn.append(float(np.ptp(make().layers[0].kernel.numpy())))

    thread = threading.Thread(target=other)
    with all_zero():
        thread.start()
        assert began.wait(30)
        assert not make().layers[0].kernel.numpy().any()
    assert np.ptp(make().layers[0].kernel.numpy()) > 0
    goes.set()
    thread.join()
    assert drawn[0] > 0
    assert next(vars(k)[method] for k in kinds if method in vars(k)) is before
