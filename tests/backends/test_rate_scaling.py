"""Learning rates that grow with the workers, with a schedule of Keras as the judge."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError
from shoal.strategies.all_reduce import AllReduce
from tests.habits.cases import assert_close, data, make_model, weights_of

ROWS, BATCH, RATE, WORKERS = 100, 16, 0.02, 2
STEPS = 7  # of an epoch, the short last one as well
schedules = keras.optimizers.schedules


class Grown(schedules.LearningRateSchedule):
    """What the paper asks for, written down once more."""

    def __init__(self, rate: Any, steps: int, began: int = 0) -> None:
        self.rate, self.steps, self.began = rate, steps, began

    def __call__(self, step: Any) -> Any:
        ticks = keras.ops.cast(step, "float32")
        taken = ticks - self.began
        rate: Any = self.rate(ticks) if callable(self.rate) else self.rate
        if not self.steps:
            return rate * WORKERS
        part = keras.ops.minimum(taken / self.steps, 1.0)
        return rate * (1 + (WORKERS - 1) * part)


def decay() -> Any:
    return schedules.ExponentialDecay(RATE, 5, 0.8)


def fit(model: Any, **given: Any) -> Any:
    x, y = data(ROWS)
    usual: dict[str, Any] = {
        "epochs": 3, "batch_size": BATCH, "shuffle": False, "verbose": 0, "run": False,
        "workers": WORKERS, "cluster": "inline",
    }  # fmt: skip
    return shoal.fit(model, x, y, **{**usual, **given})


def plain_fit(model: Any, **given: Any) -> Any:
    x, y = data(ROWS)
    usual = {"epochs": 3, "batch_size": BATCH, "shuffle": False, "verbose": 0}
    return model.fit(x, y, **{**usual, **given})


SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
CASES = [(Adam, decay, 2), (SGD, lambda: RATE, 0)]
if keras.backend.backend() == "jax":  # the others trace each anew, for seconds
    CASES += [(SGD, decay, 2), (SGD, decay, 0), (Adam, lambda: RATE, 2)]


@pytest.mark.parametrize(("kind", "rate", "epochs"), CASES)
def test_the_rate_grows_to_that_of_all_workers(
    kind: Any, rate: Any, epochs: int
) -> None:
    ours = make_model(kind(rate()))
    plain = make_model(kind(Grown(rate(), epochs * STEPS)))
    strategy = AllReduce(scale_learning_rate=True, warmup_epochs=epochs)
    history = fit(ours, strategy=strategy)
    assert_close(history.history, plain_fit(plain).history)
    assert_close(weights_of(ours), weights_of(plain))


def test_each_fit_begins_with_a_warm_up_and_the_users_rate_stays() -> None:
    ours = make_model(keras.optimizers.SGD(RATE))
    strategy = AllReduce(scale_learning_rate=True, warmup_epochs=1)
    fit(ours, strategy=strategy)
    fit(ours, strategy=strategy, epochs=1)
    plain = make_model(keras.optimizers.SGD(Grown(RATE, STEPS)))
    plain_fit(plain)
    plain.optimizer._learning_rate.began = 3 * STEPS
    plain.train_function = None  # Keras keeps the program, and the number in it
    plain_fit(plain, epochs=1)
    assert_close(weights_of(ours), weights_of(plain))
    assert float(ours.optimizer.learning_rate) == pytest.approx(RATE)


def test_callbacks_change_the_unscaled_rate() -> None:
    class Halved(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = scale * RATE / 2**epoch

    scale = 1
    ours = make_model(keras.optimizers.SGD(RATE))
    fit(ours, strategy="all_reduce:scale_learning_rate=True", callbacks=[Halved()])
    scale = WORKERS
    plain = make_model(keras.optimizers.SGD(RATE))
    plain_fit(plain, callbacks=[Halved()])
    assert_close(weights_of(ours), weights_of(plain))


def test_averaged_workers_grow_to_the_rate_of_their_number() -> None:
    """The mean of two workers that took one step each is a step of both batches."""
    ours, plain = make_model(SGD(RATE)), make_model(SGD(Grown(RATE, 96 // BATCH)))
    x, y = data(96)
    given: dict[str, Any] = {"epochs": 3, "shuffle": False, "verbose": 0}
    shoal.fit(
        ours, x, y, strategy="local_sgd:period=1", scale_rate="linear", run=False,
        workers=WORKERS, cluster="inline", batch_size=BATCH // WORKERS, **given,
    )  # fmt: skip
    plain.fit(x, y, batch_size=BATCH, **given)
    assert_close(weights_of(ours), weights_of(plain))


class OwnAdam(Adam):
    """An optimizer that users derive from one of Keras."""


@pytest.mark.parametrize(
    ("make", "factor"),
    [
        (Adam, 2.0), (OwnAdam, 2.0), (keras.optimizers.AdamW, 2.0),
        (lambda: keras.optimizers.LossScaleOptimizer(Adam()), 2.0),
        (lambda: keras.optimizers.LossScaleOptimizer(SGD()), 1.0),
        (SGD, 1.0), (keras.optimizers.Adadelta, 1.0),
    ],
)  # fmt: skip
def test_the_default_follows_the_optimizer_that_takes_steps(
    make: Any, factor: float
) -> None:
    given: dict[str, Any] = {"strategy": "local_sgd", "cluster": "inline"}
    given["batch_size"] = BATCH
    found = shoal.plan(make_model(make()), *data(ROWS), workers=4, **given)
    assert found.rate_factor == factor


def test_a_warm_up_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs scale_learning_rate=True"):
        AllReduce(warmup_epochs=5)


@pytest.mark.process
def test_workers_that_are_processes(kept: shoal.Session) -> None:
    x, y = data(ROWS)
    ours = make_model(keras.optimizers.SGD(RATE))
    kept.fit(
        ours, x, y, epochs=3, batch_size=BATCH, shuffle=False, verbose=0, run=False,
        workers=WORKERS, strategy="all_reduce:scale_learning_rate=True,warmup_epochs=2",
    )  # fmt: skip
    plain = make_model(keras.optimizers.SGD(Grown(RATE, 2 * STEPS)))
    plain_fit(plain)
    for mine, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
