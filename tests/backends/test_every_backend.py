"""What every backend does alike: run it with KERAS_BACKEND set to each of them.

`make test` runs this file on JAX, TensorFlow and torch, with a cover of all pairs of
strategy and case; `make matrix` runs all of them.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.strategies import get, registry
from tests.backends.cases import BACKEND, BATCH_SIZE, CASES, ROWS, make

EPOCHS = 2
SHARED = [name for name in registry.names() if not get(name).is_independent]
# Every strategy and every case at least once; `make matrix` has the rest.
PAIRS = [
    pytest.param(
        strategy,
        case,
        marks=[] if (i + j) % len(CASES) == 0 else [pytest.mark.slow],
    )
    for i, strategy in enumerate(SHARED)
    for j, case in enumerate(CASES)
]
TOLERANCE = {"mixed_precision": 0.05}


def fit(model: Any, data: dict[str, Any], **given: Any) -> Any:
    usual: dict[str, Any] = {
        "batch_size": BATCH_SIZE, "epochs": EPOCHS, "shuffle": False, "verbose": 0
    }  # fmt: skip
    if "strategy" not in given:
        return model.fit(**data, **usual)
    usual |= {"cluster": "inline", "run": False, "seed": 1}
    return shoal.fit(model, **data, **{**usual, **given})


def close(name: str, one: Any, other: Any) -> None:
    """The same weights, to what a dtype allows."""
    limit = TOLERANCE.get(name, 2e-3)
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=limit, atol=limit / 10)


@pytest.mark.parametrize("name", CASES)
def test_one_worker_is_plain_keras(name: str) -> None:
    (plain, data), (ours, _) = make(name), make(name)
    kept = fit(plain, data)
    found = fit(ours, data, strategy="local_sgd:period=3", workers=1)
    close(name, ours, plain)
    assert found.history.keys() == kept.history.keys()
    if name == "own_train_step":
        return  # a log that is no metric: Keras shows that of the last step
    for key, values in kept.history.items():
        if BACKEND == "tensorflow" and key.endswith("_loss"):
            continue  # Keras counts the short batch as a whole one there
        limit = TOLERANCE.get(name, 1e-3)
        np.testing.assert_allclose(found.history[key], values, rtol=limit)


@pytest.mark.parametrize("name", [name for name in CASES if name != "batch_norm"])
def test_gradient_exchange_is_plain_keras(name: str) -> None:
    (plain, data), (ours, _) = make(name), make(name)
    fit(plain, data)
    fit(ours, data, strategy="all_reduce", workers=3)
    close(name, ours, plain)


@pytest.mark.parametrize(("strategy", "name"), PAIRS)
def test_every_strategy_learns(strategy: str, name: str) -> None:
    model, data = make(name)
    workers = min(2, get(strategy).max_workers or 2)
    found = fit(model, data, strategy=strategy, workers=workers, epochs=4)
    losses = found.history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_statistics_of_batch_norm_come_back() -> None:
    model, data = make("batch_norm")
    before = [np.array(w) for w in model.non_trainable_weights and model.get_weights()]
    fit(model, data, strategy="all_reduce", workers=2)
    moved = [
        not np.array_equal(a, b)
        for a, b in zip(before, model.get_weights(), strict=True)
    ]
    assert all(moved)


def test_schedules_are_read_at_the_run_clock() -> None:
    """Two workers take half of the steps each; the rate ends where Keras' would."""
    seen: dict[str, float] = {}
    for strategy in ("single", "local_sgd:period=2"):
        model, data = make("arrays")
        rate = keras.optimizers.schedules.PolynomialDecay(0.1, ROWS // 5, 0.0)
        model.compile(keras.optimizers.SGD(rate), "mse")
        fit(model, data, strategy=strategy, workers=1 if strategy == "single" else 2)
        seen[strategy] = float(
            keras.ops.convert_to_numpy(model.optimizer.learning_rate)
        )
    assert seen["single"] == pytest.approx(seen["local_sgd:period=2"], abs=1e-6)


def test_momentum_looks_ahead() -> None:
    """v := mu v + s(x + mu v), x := x + v; with s of plain gradient descent."""
    rate, mu, steps = 0.05, 0.7, 5
    random = np.random.default_rng(1)
    x = random.standard_normal((steps * 4, 3)).astype("f4")
    y = random.standard_normal((steps * 4, 1)).astype("f4")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    w = model.get_weights()[0].astype("f8")
    v = np.zeros_like(w)
    for i in range(steps):
        rows, wanted = x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4]
        gradient = 2 / 4 * rows.T @ (rows @ (w + mu * v) - wanted)
        v = mu * v - rate * gradient
        w = w + v
    # A pull of 1 on a center that stays behind would hide the worker: look at it.
    from shoal.backends.base import Clock, ComputeSpec
    from shoal.engine.worker.factories import backend_class
    from shoal.models.inspection import prepare

    prepare(model, (x[:4], y[:4]))
    spec = ComputeSpec(window=steps, batch_size=4, local_momentum=mu)
    backend = backend_class(BACKEND)(model, spec)
    vector, statistics = (part.copy() for part in backend.read())
    backend.load(vector, statistics)
    backend.run((x[:8], y[:8]), 2, Clock())
    backend.run((x[8:], y[8:]), 3, Clock())
    np.testing.assert_allclose(backend.read()[0], w.reshape(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.process
@pytest.mark.skipif(BACKEND == "jax", reason="all tests with processes are of JAX")
def test_on_processes() -> None:
    """Two processes, dropout, statistics of batch norm, and a validation."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    x, y = (
        np.tile(make("arrays").data["x"], (4, 1)),
        np.tile(make("arrays").data["y"], (4, 1)),
    )
    with shoal.Session():
        for strategy in ("all_reduce", "aeasgd:period=2"):
            found = shoal.fit(
                model, x, y, strategy=strategy, workers=2, epochs=3, batch_size=16,
                validation_split=0.2, verbose=0, run=False,
            )  # fmt: skip
            assert found.history["val_loss"][-1] < found.history["val_loss"][0]
