"""A loss on NaN: PyTorch's binary cross-entropy raises, other backends return NaN."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from shoal.backends.base import Clock, ComputeSpec
from shoal.engine.worker.factories import backend_class
from shoal.models.inspection import prepare
from tests.backends.cases import BACKEND

ROWS, STEPS, BAD_STEP = 4, 3, 1
LOSS_AT = (0,)  # the sum of the loss comes first


def data(*, is_bad: bool = True) -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((ROWS * STEPS, 3)).astype("f4")
    y = (x[:, :1] > 0).astype("f4")
    if is_bad:
        x[ROWS * BAD_STEP] = np.nan
    return x, y


def make(*, has_policy: bool, is_bad_weight: bool = False) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    prepare(model, tuple(part[:ROWS] for part in data(is_bad=False)))
    if is_bad_weight:
        model.set_weights([np.full((3, 1), np.inf, "f4"), np.zeros(1, "f4")])
    spec = ComputeSpec(
        window=STEPS, batch_size=ROWS, loss_at=LOSS_AT, has_nan_policy=has_policy
    )
    return backend_class(BACKEND)(model, spec)


def loss_of(backend: Any) -> float:
    found = np.zeros(backend.metrics_size)
    backend.take_metrics(found, add=False)
    return float(found[LOSS_AT[0]])


def test_a_window_tells_the_first_step_whose_loss_is_nan():
    backend = make(has_policy=True)
    backend.load(*(part.copy() for part in backend.read()))
    assert backend.run(data(), STEPS, Clock()) == BAD_STEP
    assert np.isnan(loss_of(backend))


def test_a_gradient_of_nan_rows_has_a_nan_loss():
    backend = make(has_policy=True)
    bad = tuple(part[ROWS : 2 * ROWS] for part in data())
    out = np.empty(backend.layout.size, np.float32)
    backend.gradient(bad, ROWS, out)
    assert np.isnan(loss_of(backend))
    backend.gradient(tuple(part[:ROWS] for part in data()), ROWS, out)
    assert np.isfinite(out).all()
    assert np.isfinite(loss_of(backend))


def test_weights_that_are_not_finite_count_as_well():
    backend = make(has_policy=True, is_bad_weight=True)
    backend.load(*(part.copy() for part in backend.read()))
    assert backend.run(data(is_bad=False), STEPS, Clock()) == 0


@pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch's loss raises")
def test_without_a_policy_it_raises_as_in_plain_keras():
    backend = make(has_policy=False)
    backend.load(*(part.copy() for part in backend.read()))
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        backend.run(data(), STEPS, Clock())
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        backend.gradient(data(), ROWS * STEPS, np.empty(backend.layout.size, "f4"))


@pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch's loss raises")
def test_another_error_of_a_step_is_raised():
    backend = make(has_policy=True)
    backend.load(*(part.copy() for part in backend.read()))
    x, y = data(is_bad=False)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        backend.run((x, y + 5.0), STEPS, Clock())
