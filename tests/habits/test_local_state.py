"""Frozen layers, and what layers count and keep: after `fit`, and while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.engine.controller import controller
from shoal.models.inspection import prepare
from shoal.training.evaluator import Evaluator
from shoal.training.start_run import most_state
from tests.habits.cases import data, weights_of

ROWS, BATCH, EPOCHS = 96, 32, 3
FROZEN = 5_000_000  # floats: 20 MB, more than a server took of a worker once
BACKEND = keras.backend.backend()


@keras.saving.register_keras_serializable("tests")
class Warm(keras.layers.Layer):
    """Warms up by the number of steps it has taken, and knows whether it has."""

    def build(self, _: Any) -> None:
        self.count = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="count"
        )
        self.has_begun = self.add_weight(
            shape=(), dtype="bool", initializer="zeros", trainable=False, name="begun"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        share = keras.ops.minimum(1.0, keras.ops.cast(self.count, "float32") / 12.0)
        if training:
            self.count.assign(self.count + 1)
            self.has_begun.assign(True)
        return x * share


def net(frozen: int = 800, dropout: float = 0.0) -> Any:
    keras.utils.set_random_seed(7)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(frozen // 8, "relu", use_bias=False, name="frozen"),
            layers.Dense(16, activation="tanh"),
            Warm(name="warm"),
            *([layers.Dropout(dropout, seed=3)] if dropout else []),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.layers[0].trainable = False
    model.compile(
        keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["acc"]
    )
    return model


def state_of(model: Any) -> list[Any]:
    """What is neither trained nor averaged, random state included."""
    return [np.array(v.numpy()) for v in model.non_trainable_variables]


def count(model: Any) -> int:
    warm = model.get_layer("warm")
    assert bool(warm.has_begun.numpy()) == (int(warm.count.numpy()) > 0)
    return int(warm.count.numpy())


def assert_same(ours: Any, theirs: Any) -> None:
    for mine, other in zip(state_of(ours), state_of(theirs), strict=True):
        np.testing.assert_array_equal(mine, other)
    for mine, other in zip(weights_of(ours), weights_of(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)


COMMON: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "verbose": 0}


@pytest.mark.parametrize("strategy", ["single", "all_reduce"])
def test_local_state_after_fit_equals_that_of_keras(strategy: str) -> None:
    """Random state too, where dropout draws from it; a later fit goes on from there."""
    x, y = data(ROWS)
    plain, model = net(dropout=0.5), net(dropout=0.5)
    workers = 1 if strategy == "single" else 3
    ours: dict[str, Any] = {"strategy": strategy, "workers": workers, "run": False}
    for _ in range(2):
        plain.fit(x, y, epochs=EPOCHS, **COMMON)
        shoal.fit(model, x, y, epochs=EPOCHS, cluster="inline", **ours, **COMMON)
        for mine, other in zip(state_of(model), state_of(plain), strict=True):
            np.testing.assert_array_equal(mine, other)
    assert count(model) == 2 * EPOCHS * ROWS // BATCH


@pytest.mark.parametrize("rows", [ROWS, ROWS + 1])
def test_workers_without_rows_count_all_the_same(rows: int) -> None:
    """The last batch has one row, for three workers."""
    x, y = data(rows)
    plain, model = net(), net()
    plain.fit(x, y, epochs=2, **COMMON)
    shoal.fit(model, x, y, epochs=2, workers=3, cluster="inline", run=False, **COMMON)
    assert_same(model, plain)


@pytest.mark.parametrize("strategy", ["aeasgd:period=1", "local_sgd:period=2"])
def test_local_state_of_independent_steps_is_that_of_one_worker(strategy: str) -> None:
    x, y = data(ROWS)
    model = net()
    shoal.fit(
        model, x, y, epochs=EPOCHS, strategy=strategy, workers=2, cluster="inline",
        run=False, **COMMON,
    )  # fmt: skip
    assert 0 < count(model) <= EPOCHS * ROWS // BATCH


class Watch(keras.callbacks.Callback):
    """Records the count of the layer at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(count(self.model))


@pytest.mark.parametrize("strategy", ["single", "all_reduce"])
def test_validation_and_callbacks_see_local_state(
    tmp_path: Path, strategy: str
) -> None:
    """Best models and the weights that EarlyStopping restores have it as well."""
    x, y = data(ROWS)
    plain, model = net(), net()
    given: dict[str, Any] = {**COMMON, "epochs": EPOCHS, "validation_data": (x, y)}

    def callbacks() -> list[Any]:
        # The highest loss is the best: that of the first epoch.
        best = keras.callbacks.EarlyStopping(
            "val_loss", mode="max", patience=9, restore_best_weights=True
        )
        return [Watch(), best]

    theirs, ours = callbacks(), callbacks()
    kept = plain.fit(x, y, callbacks=theirs, **given)
    found = shoal.fit(
        model, x, y, callbacks=ours, strategy=strategy, cluster="inline",
        workers=1 if strategy == "single" else 2, run=str(tmp_path), **given,
    )  # fmt: skip
    assert ours[0].seen == theirs[0].seen == [3, 6, 9]
    np.testing.assert_allclose(
        found.history["val_loss"], kept.history["val_loss"], rtol=1e-3
    )
    assert_same(model, plain)
    best = keras.models.load_model(next(tmp_path.rglob("best.keras")))
    least = int(np.argmin(kept.history["val_loss"]))
    assert count(best) == theirs[0].seen[least]


@pytest.mark.process
@pytest.mark.skipif(BACKEND != "jax", reason="all tests with processes are of JAX")
def test_frozen_variables_are_not_sent_during_training(
    kept: shoal.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What travels while workers train is of the trained part."""
    sizes = list[int]()
    monkeypatch.setattr(controller, "read_checkpoint", seen(sizes, "read_checkpoint"))
    monkeypatch.setattr(controller, "read_epoch", seen(sizes, "read_epoch"))
    x, y = data(ROWS)
    plain, model = net(FROZEN), net(FROZEN)
    plain.fit(x, y, epochs=2, **COMMON)
    kept.fit(model, x, y, epochs=2, workers=2, run=False, **COMMON)
    assert_same(model, plain)
    trained = 4 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert sizes
    assert max(sizes) < 4 * trained + 4096


class Stop(Exception):
    """Ends a run."""


class StopAfter(keras.callbacks.Callback):
    """Breaks a run off."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise Stop


def best() -> Any:
    """Remembers the best weights, which are those of the first epoch."""
    return keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=9, restore_best_weights=True
    )


@pytest.mark.process
@pytest.mark.skipif(BACKEND != "jax", reason="all tests with processes are of JAX")
def test_a_resumed_run_continues_with_local_state(tmp_path: Path) -> None:
    """Its checkpoints have nothing of the frozen part, nor has what callbacks hold."""
    x, y = data(ROWS)
    plain, model = net(FROZEN), net(FROZEN)
    plain.fit(x, y, epochs=EPOCHS, callbacks=[best()], **COMMON)
    with pytest.raises(Stop):
        shoal.fit(
            model, x, y, epochs=EPOCHS, workers=2, callbacks=[best(), StopAfter()],
            run=str(tmp_path), checkpoint_every="1 samples", **COMMON,
        )  # fmt: skip
    [folder] = tmp_path.iterdir()
    files = [path for path in (folder / "checkpoints").rglob("*") if path.is_file()]
    trained = 4 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert files
    assert sum(path.stat().st_size for path in files) < 20 * trained + 65536
    history = shoal.resume(str(folder), callbacks=[best()], verbose=0)
    assert history.epoch == list(range(EPOCHS))
    assert_same(history.model, plain)


@pytest.mark.process
@pytest.mark.skipif(BACKEND != "jax", reason="all tests with processes are of JAX")
def test_an_evaluator_is_sent_changed_state_only(
    kept: shoal.Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[int]()
    ask = Evaluator.ask

    def asking(self: Any, epoch: int, weights: Any) -> Any:
        asked.append(sum(value.nbytes for value in weights.values()))
        return ask(self, epoch, weights)

    monkeypatch.setattr(Evaluator, "ask", asking)
    x, y = data(ROWS)
    plain, model = net(FROZEN), net(FROZEN)
    given: dict[str, Any] = {**COMMON, "epochs": EPOCHS, "validation_data": (x, y)}
    theirs = plain.fit(x, y, **given)
    history = kept.fit(
        model, x, y, workers=2, validation="async", run=str(tmp_path), **given
    )
    values = theirs.history["val_loss"]
    np.testing.assert_allclose(history.history["val_loss"], values, rtol=1e-3)
    trained = 4 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert len(asked) == EPOCHS
    assert max(asked) < trained + 64
    assert_same(model, plain)
    kept_best = keras.models.load_model(next(tmp_path.rglob("best.keras")))
    assert count(kept_best) == 3 * (int(np.argmin(values)) + 1)


def seen(sizes: list[int], name: str) -> Any:
    """Reads as before, and keeps how long what it reads is."""
    read = getattr(controller, name)

    def reading(head: Any, body: Any, state: Any = None) -> Any:
        sizes.append(len(body) + len(state or b""))
        return read(head, body) if state is None else read(head, body, state)

    return reading


def test_plan_names_bytes_that_are_sent_once() -> None:
    x, y = data(ROWS)
    found = shoal.plan(net(FROZEN), x, y)
    assert f"; {4 * FROZEN / 1e6:,.1f} MB that are not trained travel once" in (
        found.explain()
    )
    assert "travel once" not in shoal.plan(net(), x, y).explain()


def test_a_server_takes_what_a_model_may_send() -> None:
    model = net(frozen=8000)
    prepare(model, data(2))
    everything = sum(np.array(v.numpy()).nbytes for v in model.variables)
    assert 8000 * 4 < most_state(model) < everything + 1024
