"""Objects that cannot be copied are shared within a process."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import PlanError
from shoal.models.lending import lending, may_be_lent
from shoal.models.pickling import CannotPickle, dumps, loads

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X[:, :1] * 2


class Counter:
    """Counts, and cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.losses = 0


def make(counter: Counter) -> Any:
    """A model whose loss closes over something that cannot be copied."""
    keras.utils.set_random_seed(3)

    def loss(y: Any, p: Any) -> Any:
        with counter.lock:
            counter.losses += 1
        return keras.ops.mean((y - p) ** 2)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def fit(model: Any, **ours: Any) -> Any:
    common: dict[str, Any] = {"batch_size": 16, "shuffle": False, "verbose": 0}
    if not ours:
        return model.fit(X, Y, **common)
    return shoal.fit(model, X, Y, workers=2, run=False, **common, **ours)


def test_inline_workers_share_what_a_loss_closes_over() -> None:
    counter = Counter()
    plain, ours = make(Counter()), make(counter)
    expected = fit(plain).history["loss"]
    found = fit(ours, cluster="inline").history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(ours.get_weights()[0], plain.get_weights()[0], rtol=1e-5)
    assert counter.losses > 0


def test_processes_do_not_share_what_a_loss_closes_over() -> None:
    with pytest.raises(PlanError, match=r"captured variable 'counter'.*lock"):
        fit(make(Counter()), cluster="local")


def test_inline_workers_call_a_mock_of_the_user() -> None:
    model = make(Counter())
    is_torch = keras.backend.backend() == "torch"
    name = "_parallel_update_step" if is_torch else "assign_sub"
    with mock.patch.object(model.optimizer, name, autospec=True) as called:
        fit(model, cluster="inline")
    assert called.call_count > 0


def test_objects_with_variables_are_not_shared() -> None:
    counter = Counter()
    assert may_be_lent(counter)
    for part in (
        keras.layers.Dense(1), keras.Variable(1.0), keras.optimizers.SGD(),
        keras.metrics.Mean(),
    ):  # fmt: skip
        vars(counter)["part"] = {"nested": [part]}
        assert not may_be_lent(counter)


def test_the_part_that_fails_is_shared_where_the_whole_may_not_be() -> None:
    counter = Counter()
    vars(counter)["layer"] = keras.layers.Dense(1)
    with lending():
        copied = loads(dumps(counter))
        assert copied is not counter
        assert copied.layer is not vars(counter)["layer"]
        assert copied.lock is counter.lock
    with pytest.raises(CannotPickle):
        dumps(counter)
