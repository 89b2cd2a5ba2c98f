"""What a model and its optimizer are after `fit`, and that another one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.data import training_data
from shoal.models.inspection import prepare
from shoal.runs.store import NullRun
from shoal.training import inline
from shoal.training.driver_options import DriverOptions
from shoal.training.start_run import Work
from tests.habits.cases import assert_close, data, make_model, weights_of

ROWS, BATCH = 330, 32


def cosine() -> Any:
    return keras.optimizers.schedules.CosineDecay(0.05, decay_steps=40)


@pytest.mark.process
def test_a_second_fit_and_keras_continue_from_the_state_of_fit(
    tmp_path: Path, kept: shoal.Session
) -> None:
    """Slots, step count, schedule, moving averages, files: one story for all."""

    def optimizer() -> Any:
        return keras.optimizers.AdamW(cosine(), use_ema=True, ema_momentum=0.9)

    x, y = data(ROWS)
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    ours: dict[str, Any] = {**common, "workers": 2, "run": False}
    plain = make_model(optimizer())
    model = make_model(optimizer())

    plain.fit(x, y, **common)
    plain.set_weights(weights_of(plain))  # else Keras cannot go on: shared buffers
    kept.fit(model, x, y, **ours)
    assert_close(weights_of(model), weights_of(plain))
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")

    plain.fit(x, y, epochs=2, initial_epoch=1, **common)
    plain.set_weights(weights_of(plain))
    kept.fit(model, x, y, epochs=2, initial_epoch=1, **ours)
    _assert_same_state(model, plain)

    plain.fit(x, y, **common)
    model.fit(x, y, **common)
    _assert_same_state(model, plain)
    model.save_weights(tmp_path / "model.weights.h5")
    other = make_model(optimizer())
    other.optimizer.build(other.trainable_variables)  # else Keras cannot load it
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(weights_of(other), weights_of(model), tolerance=0)


def _assert_same_state(model: Any, plain: Any) -> None:
    assert_close(weights_of(model), weights_of(plain), tolerance=1e-3)
    ours, theirs = model.optimizer, plain.optimizer
    assert int(ours.iterations) == int(theirs.iterations)
    assert float(ours.learning_rate) == pytest.approx(float(theirs.learning_rate))
    for mine, other in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(
            np.array(mine), np.array(other), rtol=0.02, atol=1e-4
        )


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [("all_reduce", 1), ("aeasgd", 2), ("local_sgd", 4)],
)
def test_schedules_end_where_keras_ends(strategy: str, workers: int) -> None:
    """Law 11: short batches and uneven shares change nothing about it."""
    plain = make_model(keras.optimizers.SGD(cosine()))
    x, y = data(ROWS)
    plain.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    model = make_model(keras.optimizers.SGD(cosine()))
    plan = shoal.plan(
        model, x, y, strategy=strategy, workers=workers, batch_size=BATCH, epochs=2
    )
    source, _ = training_data(x, y)
    prepare(model, source.take(slice(0, 4)))
    with NullRun(name="schedule") as run:
        inline.train(plan, Work(model=model, source=source), run, DriverOptions())
    assert int(model.optimizer.iterations) == int(plain.optimizer.iterations)
    assert float(model.optimizer.learning_rate) == pytest.approx(
        float(plain.optimizer.learning_rate)
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "strategy", ["all_reduce", pytest.param("local_sgd", marks=pytest.mark.slow)]
)
def test_deterministic_runs_repeat_bit_for_bit(
    strategy: str, kept: shoal.Session
) -> None:
    """With dropout and shuffling; the seed is that of `set_random_seed`."""
    x, y = data(1000)
    found = []
    for _ in range(2):
        model = make_model(dropout=0.3)  # sets the seed
        train = shoal.fit if found else kept.fit  # new processes and old ones
        history = train(
            model, x, y, strategy=strategy, workers=2, batch_size=BATCH, epochs=2,
            deterministic=True, run=False, verbose=0,
        )  # fmt: skip
        found.append((history.history, weights_of(model)))
    assert found[0][0] == found[1][0]
    assert_close(found[0][1], found[1][1], tolerance=0)


def test_a_model_compiled_again_without_metrics_trains() -> None:
    """Keras keeps showing the metrics of before; workers would not have them."""
    x, y = data(64)
    model = make_model()
    model.compile("sgd", "sparse_categorical_crossentropy")
    history = shoal.fit(model, x, y, cluster="inline", workers=2, run=False, verbose=0)
    assert list(history.history) == ["loss"]


@pytest.mark.process
def test_a_subclassed_model_trains_again_and_is_not_slowed_by_its_history(
    kept: shoal.Session,
) -> None:
    """The first run stays on the model; it has locks, and need not travel."""

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2, activation="softmax")

        def call(self, inputs: object) -> object:
            return self.dense(inputs)

    x, y = data(64)
    model = Net()
    model.compile("sgd", "sparse_categorical_crossentropy")
    first = kept.fit(model, x, y, workers=2, run=False, verbose=0)
    assert model.history is first
    again = kept.fit(model, x, y, workers=2, run=False, verbose=0)
    assert again.history["loss"][0] < first.history["loss"][0]
