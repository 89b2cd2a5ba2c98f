"""Models whose batches must have a certain number of rows, with Keras as the judge."""

from __future__ import annotations

import gc
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import PlanError, ShoalWarning
from shoal.models.fixed_batch import fixed_batch
from shoal.testing import faults
from tests.habits.cases import assert_close, weights_of

layers: Any = keras.layers
BACKEND = keras.backend.backend()
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


def states_of(model: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(s.value) for s in model.layers[0].states]


# Plain Keras on torch fails to train a stateful layer: it writes in place what autograd
# still needs.
TRAINED = [reshaping] if BACKEND == "torch" else [stateful, reshaping]
trains_state = pytest.mark.skipif(BACKEND == "torch", reason="Keras does not either")


@pytest.mark.parametrize("make", TRAINED)
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


@pytest.mark.process
def test_a_worker_of_shares_of_a_fixed_size_is_lost() -> None:
    with faults.kill(rank=1, step=3):
        history = fit(
            reshaping(), 10 * FIXED, cluster="local", strategy="all_reduce", workers=2,
            batch_size=2 * FIXED, epochs=4,
        )  # fmt: skip
    found = history.run.summary()
    assert found.samples_committed == 4 * 10 * FIXED
    assert found.workers_lost == 1


@pytest.mark.parametrize("strategy", ["local_sgd", "aeasgd", "downpour"])
def test_workers_with_batches_of_their_own_train(strategy: str) -> None:
    history = fit(reshaping(), 20 * FIXED, strategy=strategy, workers=2)
    assert history.run.summary().samples_committed == 2 * 20 * FIXED


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"strategy": "all_reduce", "workers": 2}, r"size of 8, a worker's share is 4"),
        ({"strategy": "single", "batch_size": 4}, r"and batch_size=4.*batch_size=8"),
        (
            {"strategy": "single", "count": 60, "epochs": 1},
            r"make a batch of 4.*Pass 56 samples, or steps_per_epoch=7",
        ),
        (  # the third epoch has what is left of a pass
            {"strategy": "single", "count": 60, "steps_per_epoch": 3, "epochs": 3},
            r"of 60 samples make a batch of 4.*Pass 56 samples\.",
        ),
        (
            {"strategy": "all_reduce", "workers": (1, 2), "batch_size": 16},
            r"among 1 to 2 workers.*Pass workers=2",
        ),
        (
            {
                "strategy": "single",
                "validation_split": 0.25,
                "validation_batch_size": 5,
            },
            r"makes a step of 5 rows.*Pass validation_batch_size=8",
        ),
        (
            {"strategy": "single", "validation_data": rows(12)},
            r"last of 12 rows of validation_data.*a step of 4.*validation_steps=1",
        ),
    ],
)
def test_other_batches_are_refused_by_the_plan(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        fit(reshaping(), **given)


@trains_state
def test_state_of_several_workers_is_warned_of() -> None:
    with pytest.warns(ShoalWarning, match="stateful layers: each worker keeps"):
        fit(stateful(), strategy="local_sgd", workers=2)


def test_odd_batches_of_the_data_are_refused() -> None:
    batches = (rows(count) for count in (8, 4, 12))  # 8 rows each, in the mean
    with pytest.raises(PlanError, match=r"a batch of the data has 4\."):
        shoal.fit(reshaping(), batches, strategy="single", cluster="inline")
    gc.collect()  # frames of the error held what was read


def test_steps_of_an_epoch_that_all_are_whole_train() -> None:
    fit(reshaping(), 60, strategy="single", steps_per_epoch=3, epochs=2)


def test_shares_are_validated_in_steps_of_the_fixed_size() -> None:
    given: dict[str, Any] = {"workers": 2, "batch_size": 2 * FIXED}
    history = fit(
        reshaping(), strategy="all_reduce", validation_data=rows(3 * FIXED), **given
    )
    assert np.isfinite(history.history["val_loss"]).all()


class Resets(keras.callbacks.Callback):
    """Begins the second epoch with states of zero, as recurrent models often do."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.model.layers[0].reset_state()


@trains_state
@pytest.mark.parametrize(
    "cluster", ["inline", pytest.param("local", marks=pytest.mark.process)]
)
def test_states_come_back_and_go_on(cluster: str) -> None:
    plain, ours = stateful(), stateful()
    x, y = rows()
    told: dict[str, Any] = {"validation_data": (x[:16], y[:16])}
    for _ in range(2):  # the second run goes on from states of the first
        plain.fit(
            x, y, batch_size=FIXED, epochs=2, shuffle=False, verbose=0,
            callbacks=[Resets()], **told,
        )  # fmt: skip
        fit(ours, strategy="single", cluster=cluster, callbacks=[Resets()], **told)
        assert_close(states_of(ours), states_of(plain))
        assert_close(weights_of(ours), weights_of(plain))
    assert np.any(states_of(plain)[0]) == (BACKEND != "jax")


def test_a_batch_size_recorded_by_keras_fixes_nothing() -> None:
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


@pytest.mark.parametrize("make", [stateful, reshaping])
def test_scores_of_other_steps_are_refused(make: Any) -> None:
    x, y = rows(60)
    with pytest.raises(PlanError, match=r"x makes a step of 32 rows.*batch_size=8"):
        shoal.evaluate(make(), x, y)
    with pytest.raises(PlanError, match=r"a step of 4.*Pass 56 rows, or steps=7"):
        shoal.predict(make(), x, batch_size=FIXED, workers=2)
    plain, ours = make(), make()
    told: dict[str, Any] = {"batch_size": FIXED, "steps": 7, "verbose": 0}
    # Asked for two processes, the states of batches before still count.
    assert shoal.evaluate(ours, x, y, workers=2, **told) == pytest.approx(
        plain.evaluate(x, y, **told), rel=1e-5
    )
