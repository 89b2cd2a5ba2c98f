"""Models whose batches must have a certain number of rows, with Keras as the judge."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import PlanError, ShoalWarning
from shoal.models.inspection import fixed_batch
from tests.habits.cases import assert_close, weights_of

layers: Any = keras.layers
FIXED, ROWS = 8, 64


def stateful() -> Any:
    keras.utils.set_random_seed(3)
    model: Any = keras.Sequential(
        [
            keras.Input(batch_shape=(FIXED, 5, 2)),
            layers.LSTM(4, stateful=True),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def reshaping() -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input(batch_shape=(FIXED, 5, 2))
    hidden = layers.Dense(4)(keras.ops.reshape(inputs, (FIXED, 10)))
    model: Any = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def rows(count: int = ROWS) -> tuple[Any, Any]:
    x = np.random.default_rng(1).normal(size=(count, 5, 2)).astype("f4")
    return x, x.sum((1, 2))


def fit(model: Any, count: int = ROWS, **arguments: Any) -> Any:
    given: dict[str, Any] = {
        "epochs": 2, "shuffle": False, "verbose": 0, "run": False, "cluster": "inline",
        "batch_size": FIXED, **arguments,
    }  # fmt: skip
    return shoal.fit(model, *rows(count), **given)


@pytest.mark.parametrize("make", [stateful, reshaping])
def test_one_worker_is_plain_keras(make: Any) -> None:
    assert fixed_batch(make()) == FIXED
    plain, ours = make(), make()
    x, y = rows()
    history = plain.fit(
        x, y, batch_size=FIXED, epochs=2, shuffle=False, verbose=0,
        validation_data=(x[:16], y[:16]), validation_batch_size=FIXED,
    )  # fmt: skip
    found = fit(
        ours, strategy="single", validation_data=(x[:16], y[:16]),
        validation_batch_size=FIXED,
    )  # fmt: skip
    assert_close(found.history, history.history)
    assert_close(weights_of(ours), weights_of(plain))


def test_shares_of_the_fixed_size_train_as_keras_trains_the_whole() -> None:
    x, y = rows()

    def free() -> Any:
        keras.utils.set_random_seed(3)
        model: Any = keras.Sequential(
            [
                keras.Input((5, 2)),
                layers.Reshape((10,)),
                layers.Dense(4),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    plain, ours = free(), reshaping()
    plain.set_weights(ours.get_weights())
    plain.fit(x, y, batch_size=2 * FIXED, epochs=2, shuffle=False, verbose=0)
    fit(ours, strategy="all_reduce", workers=2, batch_size=2 * FIXED)
    assert_close(weights_of(ours), weights_of(plain))


@pytest.mark.parametrize("strategy", ["local_sgd", "aeasgd", "downpour"])
def test_workers_with_batches_of_their_own_train(strategy: str) -> None:
    history = fit(reshaping(), 20 * FIXED, strategy=strategy, workers=2)
    assert history.run.summary().samples_committed == 2 * 20 * FIXED


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"strategy": "all_reduce", "workers": 2}, r"size of 8, a worker's share is 4"),
        ({"strategy": "single", "batch_size": 4}, r"and batch_size=4.*batch_size=8"),
        ({"strategy": "single", "count": 60}, r"make a batch of 4.*Pass 56 samples"),
    ],
)
def test_other_batches_are_refused_by_the_plan(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        fit(reshaping(), **given)


def test_state_of_several_workers_is_warned_of() -> None:
    with pytest.warns(ShoalWarning, match="stateful layers: each worker keeps"):
        fit(stateful(), strategy="local_sgd", workers=2)


def test_what_keras_noted_of_the_first_batch_fixes_nothing() -> None:
    x, y = rows()
    model: Any = keras.Sequential([layers.Flatten(), layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=4, verbose=0)
    assert fixed_batch(model) == 0
    fit(model, strategy="single", batch_size=32)


@pytest.mark.parametrize("make", [stateful, reshaping])
def test_scores_and_predictions(make: Any) -> None:
    x, y = rows()
    told: dict[str, Any] = {"batch_size": FIXED, "verbose": 0}
    assert shoal.evaluate(make(), x, y, workers=1, **told) == pytest.approx(
        make().evaluate(x, y, **told), rel=1e-5
    )
    np.testing.assert_allclose(
        shoal.predict(make(), x, workers=1, **told),
        make().predict(x, **told),
        rtol=1e-5,
    )
