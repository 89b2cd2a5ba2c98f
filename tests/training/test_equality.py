"""all_reduce is plain Keras with the same batch_size, to float tolerance.

Most cases run on the inline cluster, which is the same sequencer, center and compiled
programs in one process; one case of each kind of trouble runs on real processes.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

import shoal

ROWS, FEATURES, BATCH_SIZE = 230, 5, 50


def data() -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    random = np.random.default_rng(7)
    x = random.standard_normal((ROWS, FEATURES)).astype("f4")
    y = (x[:, :1] * 2 - x[:, 1:2] + 0.1).astype("f4")
    weights = random.uniform(0.2, 3.0, ROWS).astype("f4")
    return x, y, weights


def make(loss: Any = "mse", *, is_regularised: bool = False) -> keras.Model:
    keras.utils.set_random_seed(3)
    penalty = keras.regularizers.L2(0.01) if is_regularised else None
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, activation="tanh", kernel_regularizer=penalty),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["mae"])
    return model


def both(
    loss: Any, workers: int, *, weighted: bool = False, regularised: bool = False,
    cluster: str = "inline",
) -> tuple[keras.Model, Any, keras.Model, Any]:  # fmt: skip
    """Trains the same model with Keras and with all_reduce."""
    x, y, weights = data()
    given: dict[str, Any] = {
        "batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0,
        "sample_weight": weights if weighted else None,
    }  # fmt: skip
    plain, ours = (make(loss, is_regularised=regularised) for _ in range(2))
    kept = plain.fit(x, y, **given)
    found = shoal.fit(ours, x, y, workers=workers, cluster=cluster, run=False, **given)
    return plain, kept, ours, found


def assert_same(plain: keras.Model, kept: Any, ours: keras.Model, found: Any) -> None:
    for mine, theirs in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
    pairs = zip(ours.optimizer.variables, plain.optimizer.variables, strict=True)
    for mine, theirs in pairs:
        np.testing.assert_allclose(
            np.asarray(mine), np.asarray(theirs), rtol=2e-3, atol=2e-5
        )
    assert found.history.keys() == kept.history.keys()


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean"])
def test_every_reduction(reduction: str, weighted: bool, workers: int) -> None:
    """Shares are uneven (50 over 3), the last batch of an epoch is short (30)."""
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    plain, kept, ours, found = both(loss, workers, weighted=weighted, regularised=True)
    assert_same(plain, kept, ours, found)
    np.testing.assert_allclose(
        found.history["loss"], kept.history["loss"], rtol=2e-4, atol=1e-5
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_mean_with_sample_weight(workers: int) -> None:
    """Steps are the same. The loss shown weighs workers by rows, so it may differ."""
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    plain, kept, ours, found = both(loss, workers, weighted=True)
    assert_same(plain, kept, ours, found)


@pytest.mark.process
def test_three_processes_with_uneven_shares_and_weights() -> None:
    assert_same(*both("mse", 3, weighted=True, cluster="local"))
