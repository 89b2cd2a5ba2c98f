"""Loss and metrics of single exchanges, from the sums of their epoch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from shoal.models.exchange_means import ExchangeMeans
from shoal.models.metrics import MetricStates, build_metrics


@pytest.fixture
def model() -> Any:
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    metrics = ["mae", keras.metrics.RootMeanSquaredError()]
    made.compile(loss="mse", metrics=metrics)
    build_metrics(made, x=np.ones((3, 2), "f4"), y=np.ones((3, 1), "f4"))
    return made


def test_each_exchange_has_its_own_means(model: Any) -> None:
    means = ExchangeMeans(model, MetricStates.of(model))
    # Total and count of loss, mean absolute error and root mean squared error.
    assert means.of(0, [8, 4, 4, 4, 9, 4]) == {"loss": 2.0, "mae": 1.0}
    assert means.of(0, [9, 5, 5, 5, 9, 5]) == {"loss": 1.0, "mae": 1.0}
    assert means.of(1, [6, 2, 2, 2, 9, 2]) == {"loss": 3.0, "mae": 1.0}


def test_after_a_rollback_the_next_exchange_is_unknown(model: Any) -> None:
    means = ExchangeMeans(model, MetricStates.of(model))
    means.of(0, [8, 4, 4, 4, 9, 4])
    means.forget([0])
    assert means.of(0, [6, 3, 3, 3, 9, 3]) == {}
    assert means.of(0, [8, 4, 5, 4, 9, 4]) == {"loss": 2.0, "mae": 2.0}


def test_the_first_sums_give_the_means_that_they_hold(model: Any) -> None:
    means = ExchangeMeans(model, MetricStates.of(model))
    assert means.of(0, [8, 4, 4]) == {"loss": 2.0}
    assert means.of(0, [9, 5, 5]) == {"loss": 1.0}


def test_unknown_sums_and_repeated_ones_have_no_means(model: Any) -> None:
    means = ExchangeMeans(model, MetricStates.of(model))
    assert means.of(0, None) == {}
    means.of(0, [8, 4, 4, 4, 9, 4])
    assert means.of(0, [8, 4, 4, 4, 9, 4]) == {}


def test_a_loss_that_diverges_is_no_warning(model: Any) -> None:
    means = ExchangeMeans(model, MetricStates.of(model))
    assert means.of(0, [np.inf, 4, 4, 4, 9, 4])["loss"] == np.inf
    assert np.isnan(means.of(0, [np.inf, 8, 8, 8, 9, 8])["loss"])
