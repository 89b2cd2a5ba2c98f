"""One worker of `all_reduce` has no partner: it takes the path of `single`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.strategies import get
from shoal.testing import faults

ROWS, BATCH, EPOCHS = 1000, 32, 3
pytestmark = pytest.mark.process


def data() -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((ROWS, 4)).astype("f4")
    return x, (x[:, :1] > x[:, 1:2]).astype("f4")


def model(drop: float = 0.0) -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(drop),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["AUC"])
    return net


def fit(net: Any, **given: Any) -> Any:
    usual: dict[str, Any] = {
        "epochs": EPOCHS, "batch_size": BATCH, "verbose": 0, "seed": 2,
        "workers": 1, "run": False,
    }  # fmt: skip
    return shoal.fit(net, *data(), **{**usual, **given})


def same(one: Any, other: Any) -> None:
    for variables in (
        (one.trainable_variables, other.trainable_variables),
        (one.optimizer.variables, other.optimizer.variables),
    ):
        for mine, theirs in zip(*variables, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    # `single` has a running average of statistics, which rounds.
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_the_weights_are_those_of_single_bit_by_bit() -> None:
    steps = shoal.plan(model(), *data(), workers=1, batch_size=BATCH).alone_steps
    assert steps == ROWS // BATCH + 1
    ours, single = model(0.2), model(0.2)
    found = fit(ours)
    kept = fit(single, strategy=get("single", period=steps))
    same(ours, single)
    for name, values in kept.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-6)


def test_the_weights_are_those_of_plain_keras() -> None:
    ours, plain = model(), model()
    found = fit(ours, shuffle=False)
    kept = plain.fit(*data(), epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0)
    for mine, theirs in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(found.history["loss"], kept.history["loss"], rtol=1e-3)


@pytest.mark.parametrize(
    "fault", ["kill", pytest.param("stop", marks=pytest.mark.slow)]
)
def test_a_lost_worker_changes_no_bit(fault: str) -> None:
    """Its replacement goes on from the weights of the last epoch."""
    calm, wild = model(), model()
    fit(calm)
    with getattr(faults, fault)(rank=0, step=50):
        fit(wild)
    same(wild, calm)


class Steps(keras.callbacks.Callback):
    """Records the batches of which it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Records one."""
        self.batches.append(batch)


def test_batch_hooks_are_called_for_each_step() -> None:
    ours, plain = Steps(), Steps()
    fit(model(), callbacks=[ours], epochs=1)
    model().fit(*data(), batch_size=BATCH, callbacks=[plain], verbose=0)
    assert ours.batches == plain.batches
