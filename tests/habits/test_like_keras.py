"""Settings of Keras that change a whole `fit`, with plain Keras as the judge."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from tests.habits.cases import Recorder, assert_close, data, make_model, weights_of

ROWS, BATCH = 200, 32  # seven steps, the last one short


@pytest.fixture
def limits() -> Iterator[Any]:
    """Keras' configuration, without limits again afterwards."""
    yield keras.config
    keras.config.set_max_epochs(None)
    keras.config.set_max_steps_per_epoch(None)


def fit(model: Any, is_shoal: bool, **arguments: Any) -> Any:
    x, y = data(ROWS)
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    if not is_shoal:
        return model.fit(x, y, **common, **arguments)
    ours: dict[str, Any] = {"workers": 2, "run": False, "cluster": "inline"}
    return shoal.fit(model, x, y, **common, **{**ours, **arguments})


@pytest.mark.parametrize(
    ("epochs", "steps", "given"),
    [
        (2, None, {"epochs": 4}),
        (None, 3, {"epochs": 2}),
        (None, 3, {"epochs": 2, "steps_per_epoch": 5}),
        (None, 5, {"epochs": 2, "steps_per_epoch": 3}),
        (9, 50, {"epochs": 2, "steps_per_epoch": 2}),
        (1, 1, {"epochs": 3, "validation_split": 0.5}),
    ],
)
def test_limits_of_keras_config_are_those_of_keras(
    limits: Any, epochs: int | None, steps: int | None, given: dict[str, Any]
) -> None:
    limits.set_max_epochs(epochs)
    limits.set_max_steps_per_epoch(steps)
    found = {}
    for is_shoal in (False, True):
        model, recorder = make_model(), Recorder()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            fit(model, is_shoal, callbacks=[recorder], **given)
        hooks = [
            (hook, step) for hook, step, _ in recorder.calls if "_test_" not in hook
        ]
        texts = {str(w.message) for w in warned if "Limiting" in str(w.message)}
        found[is_shoal] = (hooks, texts, model)
    assert found[True][0] == found[False][0]
    assert found[True][1] >= {t for t in found[False][1] if "epochs to" in t}
    assert bool(found[True][1]) == bool(found[False][1])
    assert_close(weights_of(found[True][2]), weights_of(found[False][2]))


@pytest.mark.parametrize("evaluated", ["evaluate", "predict"])
def test_limits_hold_for_scores_and_predictions(limits: Any, evaluated: str) -> None:
    limits.set_max_steps_per_epoch(2)
    model, (x, y) = make_model(), data(ROWS)
    targets = (y,) if evaluated == "evaluate" else ()
    with pytest.warns(UserWarning, match="Limiting"):
        plain = getattr(model, evaluated)(x, *targets, batch_size=BATCH, verbose=0)
    score = getattr(shoal, evaluated)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ours = score(model, x, *targets, batch_size=BATCH, workers=1, verbose=0)
    assert "Limiting steps to 2" in {str(w.message) for w in warned}
    np.testing.assert_allclose(ours, plain, rtol=1e-5)


IS_TORCH = keras.backend.backend() == "torch"
only_one_step = pytest.mark.skipif(
    IS_TORCH, reason="Keras refuses steps_per_execution on PyTorch"
)


@only_one_step
@pytest.mark.parametrize("every", [2, 3, 7, 50])
def test_batch_hooks_have_keras_indices_under_steps_per_execution(every: int) -> None:
    found = {}
    for is_shoal in (False, True):
        model, recorder = make_model(), Recorder()
        model.compile(
            "sgd", "sparse_categorical_crossentropy", steps_per_execution=every
        )
        fit(model, is_shoal, callbacks=[recorder], epochs=2)
        found[is_shoal] = [(hook, step) for hook, step, _ in recorder.calls]
    assert found[True] == found[False]


class Watcher(keras.callbacks.Callback):
    """Sees a weight after each step, halves the rate after some."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets a rate before the step that it is for."""
        if batch == 4:
            self.model.optimizer.learning_rate = 0.5

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sees what this step made of the weights."""
        weight = float(np.asarray(self.model.layers[0].kernel.numpy())[0, 0])
        self.seen.append((batch, weight, (logs or {})["loss"]))


@pytest.mark.parametrize("strategy", ["single", "all_reduce"])
def test_inline_hooks_are_called_right_after_their_step(strategy: str) -> None:
    found = {}
    for is_shoal in (False, True):
        watcher = Watcher()
        model = make_model("sgd")
        given: dict[str, Any] = {}
        if is_shoal:
            given = {"strategy": strategy, "workers": 1 + (strategy != "single")}
        fit(model, is_shoal, callbacks=[watcher], epochs=2, **given)
        found[is_shoal] = np.array(watcher.seen)
    np.testing.assert_allclose(found[True], found[False], rtol=1e-4, atol=1e-6)


@pytest.mark.process
@pytest.mark.parametrize("every", [1, pytest.param(3, marks=only_one_step)])
def test_single_calls_batch_hooks_once_a_step(every: int) -> None:
    found = {}
    for is_shoal in (False, True):
        model, recorder = make_model(), Recorder()
        model.compile(
            "sgd", "sparse_categorical_crossentropy", steps_per_execution=every
        )
        ours = {"strategy": "single", "workers": 1, "cluster": "local"}
        given = ours if is_shoal else {}
        fit(model, is_shoal, callbacks=[recorder], epochs=3, **given)
        found[is_shoal] = [(hook, step) for hook, step, _ in recorder.calls]
    assert found[True] == found[False]


def test_checkpoints_every_few_steps_are_those_of_keras(tmp_path: Path) -> None:
    names = {}
    for is_shoal in (False, True):
        folder = tmp_path / str(is_shoal)
        folder.mkdir()
        path = str(folder / "{epoch}-{batch}.weights.h5")
        save = keras.callbacks.ModelCheckpoint(
            path, save_freq=2, save_weights_only=True
        )
        given = {"strategy": "single", "workers": 1} if is_shoal else {}
        fit(make_model(), is_shoal, callbacks=[save], epochs=3, **given)
        names[is_shoal] = sorted(found.name for found in folder.iterdir())
    assert names[True] == names[False]
