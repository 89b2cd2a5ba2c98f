"""Every error a user can make: what it says, and that nothing is left running."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.errors import (
    ConfigError,
    DataError,
    PlanError,
    ShoalWarning,
    WorkerFailed,
    WorkerLost,
)
from shoal.runs.store import open_run
from shoal.runs.summary import RunSummary
from tests.api.problems import line, linear, two_headed

DRIVER = os.getpid()


@pytest.fixture(autouse=True)
def _no_child_remains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))
    yield
    assert psutil.Process().children(recursive=True) == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that were given work: none, when arguments are refused."""
    found: list[Any] = []

    def give(launcher: Any, token: str, *_: Any) -> None:
        found.append(token)
        raise AssertionError(f"{token} was given work")

    monkeypatch.setattr("shoal.launchers.process.ProcessLauncher.give", give)
    return found


def uncompiled() -> Any:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def compiled_with(**given: Any) -> Any:
    model = uncompiled()
    model.compile("sgd", **given)
    return model


def ragged() -> np.ndarray:
    rows = np.empty(2, object)
    rows[0], rows[1] = [1.0, 2.0], [1.0]
    return rows


def mileage(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean(y_pred)


X, Y = line(64)

REFUSED: dict[str, tuple[type[Exception], dict[str, Any], tuple[str, ...]]] = {
    "uncompiled": (
        ConfigError,
        {"model": uncompiled},
        ("not compiled", "Call model.compile("),
    ),
    "no model": (ConfigError, {"model": 3}, ("model is an int", "Keras model")),
    "callable of no model": (
        ConfigError,
        {"model": lambda: "model"},
        ("callable given as model returned a str",),
    ),
    "ragged": (
        DataError,
        {"x": ragged()},
        ("rows of different lengths", "dtype object", "Pad"),
    ),
    "mismatched": (
        DataError,
        {"y": Y[:10]},
        ("y has 10 rows but x has 64", "one row for each sample"),
    ),
    "missing x": (DataError, {"x": None}, ("x is None", "Pass the inputs")),
    "missing y": (DataError, {"y": None}, ("cannot take the data", "y of None")),
    "wrong shape": (
        DataError,
        {"x": np.ones((64, 5))},
        ("cannot take the data", "(rows, 5)", "model.fit would take"),
    ),
    "a loss that is none": (
        ConfigError,
        {"model": lambda: compiled_with(loss="mean_sqared")},
        ("as it was compiled", "loss='mean_sqared'", "Call model.compile again"),
    ),
    "a metric that is none": (
        ConfigError,
        {"model": lambda: compiled_with(loss="mse", metrics=["no_metric"])},
        ("Could not interpret metric identifier", "metrics=['no_metric']"),
    ),
    "a loss of no output": (
        ConfigError,
        {"model": lambda: compiled_with(loss={"nope": "mse"})},
        ("as it was compiled", "loss={'nope': 'mse'}", "y of (rows,"),
    ),
    "weights of too many losses": (
        ConfigError,
        {"model": lambda: compiled_with(loss="mse", loss_weights=[1, 2])},
        ("must match the number of losses", "loss_weights=[1, 2]"),
    ),
    "no samples": (
        DataError,
        {"x": X[:0], "y": Y[:0]},
        ("x has no samples", "at least one row"),
    ),
    "zero workers": (ConfigError, {"workers": 0}, ("workers=0", "at least 1")),
    "odd workers": (ConfigError, {"workers": "many"}, ("workers='many'", "'auto'")),
    "strategy": (
        ConfigError,
        {"strategy": "eagsd"},
        ("unknown strategy 'eagsd'", "Did you mean 'easgd'?", "Known: adag"),
    ),
    "parameter": (
        ConfigError,
        {"strategy": "aeasgd:perod=3"},
        ("unknown parameter of aeasgd 'perod'", "'period'"),
    ),
    "cluster": (ConfigError, {"cluster": "moon"}, ("unknown cluster 'moon'", "local")),
    "epochs": (ConfigError, {"epochs": -1}, ("epochs=-1", "at least 0")),
    "verbose": (ConfigError, {"verbose": "loud"}, ("verbose='loud'", "0, 1, 2")),
    "freq": (ConfigError, {"validation_freq": 0}, ("validation_freq=0", "at least 1")),
    "monitor": (
        ConfigError,
        {"monitor": "val_loss"},
        ("unknown monitor 'val_loss'", "Did you mean 'loss'?"),
    ),
    "split": (ConfigError, {"validation_split": 1.5}, ("validation_split=1.5", "0.1")),
    "single": (
        PlanError,
        {"strategy": "single", "workers": 2},
        ("single works with at most 1", "workers=1"),
    ),
    "deterministic": (
        PlanError,
        {"strategy": "downpour", "workers": 2, "deterministic": True, "batch_size": 8},
        ("deterministic=True with downpour", "Choose all_reduce"),
    ),
    "run": (ConfigError, {"run": 3.5}, ("run=3.5 names no run", "False")),
    "direction": (
        PlanError,
        {"model": lambda: linear(metrics=[mileage]), "monitor": "mileage"},
        ("monitor='mileage' does not say", "Pass 'mileage:max' or 'mileage:min'"),
    ),
    "no cluster": (ConfigError, {"cluster": 3}, ("cluster=3", "local")),
    "half a freq": (ConfigError, {"validation_freq": 1.5}, ("validation_freq=1.5",)),
    "text as split": (
        ConfigError,
        {"validation_split": "a"},
        ("validation_split='a'", "at least 0"),
    ),
    "class weights": (
        ConfigError,
        {"class_weight": [1, 2]},
        ("class_weight=[1, 2]", "{0: 1.0"),
    ),
    "custom objects": (
        ConfigError,
        {"custom_objects": [1]},
        ("custom_objects=[1]", "Expected a dict"),
    ),
    "text as callback": (
        ConfigError,
        {"callbacks": ["x"]},
        ("callbacks has 'x'", "keras.callbacks.Callback"),
    ),
    "class as callback": (
        ConfigError,
        {"callbacks": keras.callbacks.EarlyStopping},
        ("EarlyStopping", "Expected objects"),
    ),
    "validation width": (
        DataError,
        {"validation_data": (np.ones((8, 5)), np.ones((8, 1)))},
        ("cannot take validation_data of fit", "x of (rows, 5)", "model.evaluate"),
    ),
    "validation targets": (
        DataError,
        {"validation_data": (X, np.ones((64, 3, 7)))},
        ("cannot take validation_data of fit", "y of (rows, 3, 7)"),
    ),
    "validation rows": (
        DataError,
        {"validation_data": (X, Y[:3])},
        ("y has 3 rows but x has 64 (validation_data of fit)",),
    ),
    "validation batch": (
        ConfigError,
        {"validation_data": (X, Y), "validation_batch_size": 0},
        ("validation_batch_size=0", "at least 1"),
    ),
    "validation steps": (
        ConfigError,
        {"validation_data": (X, Y), "validation_steps": 0},
        ("validation_steps=0", "at least 1"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments_are_refused_before_anything_starts(
    case: str, started: list[Any]
) -> None:
    kind, given, parts = REFUSED[case]
    arguments: dict[str, Any] = {"model": linear, "x": X, "y": Y, "verbose": 0}
    with pytest.raises(kind) as caught:
        shoal.fit(**{**arguments, **given})
    for part in parts:
        assert part in str(caught.value)
    assert started == []


@pytest.mark.parametrize("case", sorted(REFUSED.keys() - {"run"}))
def test_plan_refuses_the_same(case: str) -> None:
    kind, given, parts = REFUSED[case]
    with pytest.raises(kind) as caught:
        shoal.plan(**{"model": linear, "x": X, "y": Y, **given})
    assert parts[0] in str(caught.value)


def test_a_backend_that_cannot_train_is_refused(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "openvino")
    monkeypatch.setattr(keras.config, "backend", lambda: "openvino")
    for verb in (shoal.plan, shoal.fit):
        with pytest.raises(PlanError, match="'openvino' cannot train") as caught:
            verb(linear(), X, Y)
    assert "Set KERAS_BACKEND=jax" in str(caught.value)
    assert started == []


def test_a_warning_that_is_an_error_ends_the_run_too(tmp_path: Path) -> None:
    given: dict[str, Any] = {"strategy": "local_sgd", "workers": 2, "verbose": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ShoalWarning)
        with pytest.raises(ShoalWarning, match="too few"):
            shoal.fit(linear(), X[:7], Y[:7], cluster="inline", **given)
    assert latest(tmp_path).status == "failed"


def test_mixed_reductions_are_refused(started: list[Any]) -> None:
    model = two_headed(
        sign=keras.losses.BinaryCrossentropy(reduction="sum"),
        kind=keras.losses.SparseCategoricalCrossentropy(),
    )
    y = {"sign": np.ones((64, 1)), "kind": np.ones(64, "int32")}
    with pytest.raises(PlanError, match=r"reduced in different ways: sum, sum_over"):
        shoal.fit(model, X, y, workers=2, run=False)
    assert started == []


class Locked(keras.layers.Layer):
    """Holds what no process can send."""

    def __init__(self) -> None:
        super().__init__(name="locked")
        self.lock = threading.Lock()

    def call(self, inputs: Any) -> Any:
        return inputs


def test_a_trainer_that_is_no_model_is_refused(started: list[Any]) -> None:
    trainer: Any = next(c for c in keras.Model.__mro__[1:] if "fit" in vars(c))

    class Mixed(trainer, keras.layers.Dense):
        def __init__(self) -> None:
            keras.layers.Dense.__init__(self, 1)
            trainer.__init__(self)

    model: Any = Mixed()
    model.compile("sgd", "mse")
    for call in (shoal.fit, shoal.plan, shoal.evaluate):
        with pytest.raises(ConfigError, match=r"class Mixed\(keras.Model\)"):
            call(model, X, Y)
    assert started == []


def test_error_names_the_object_that_cannot_be_pickled(started: list[Any]) -> None:
    model = keras.Sequential([keras.Input((2,)), Locked(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(PlanError, match="cannot travel to worker processes") as caught:
        shoal.fit(model, X, Y, run=False)
    assert "lock" in str(caught.value)
    assert "model=callable" in str(caught.value)
    assert started == []


def test_error_names_a_callable_that_cannot_be_pickled(started: list[Any]) -> None:
    lock = threading.Lock()

    def make() -> Any:
        with lock:
            return linear()

    with pytest.raises(PlanError, match="cannot travel") as caught:
        shoal.fit(make, X, Y, run=False)
    assert "lock" in str(caught.value)
    assert started == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders that cannot be made")
def test_unwritable_run_folder(tmp_path: Path, started: list[Any]) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="cannot be written"):
        shoal.fit(linear(), X, Y, run=tmp_path / "file" / "runs")
    assert started == []


# ------------------------------------------------------- errors of running workers


def latest(folder: Path) -> RunSummary:
    (run,) = folder.glob("20*")
    return open_run(run.name, folder).summary()


def kill_on_worker() -> None:
    if os.getpid() != DRIVER:
        os.kill(os.getpid(), signal.SIGKILL)


def deadly_loss(y: Any, y_pred: Any) -> Any:
    """Kills the worker, as the system does when memory is short, at its first step."""
    jax.debug.callback(kill_on_worker)
    return keras.ops.mean(keras.ops.square(y - y_pred))


@pytest.mark.process
def test_worker_killed_until_restarts_are_used_up(tmp_path: Path) -> None:
    model = linear(deadly_loss)
    with pytest.raises(WorkerLost) as caught:
        shoal.fit(model, X, Y, strategy="aeasgd", workers=1, max_restarts=1, verbose=0)
    text = str(caught.value)
    assert "worker-0 killed by SIGKILL (out of memory, perhaps)" in text
    assert "1 of 1 restarts used" in text
    assert "max_restarts" in text
    assert caught.value.rank == 0
    found = latest(tmp_path)
    assert (found.status, found.workers_lost) == ("failed", 2)
    assert "WorkerLost" in found.report["reason"]


def raise_on_worker(value: Any) -> None:
    if os.getpid() != DRIVER:
        raise RuntimeError(f"no weather for row {float(value):g}")


def failing_loss(y: Any, y_pred: Any) -> Any:
    jax.debug.callback(raise_on_worker, y[0, 0] * 0 + 7)
    return keras.ops.mean(keras.ops.square(y - y_pred))


@pytest.mark.process
def test_exception_on_a_worker_comes_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed) as caught:
        shoal.fit(linear(failing_loss), X, Y, workers=2, verbose=0)
    text = str(caught.value)
    assert "at step" in text
    assert "no weather for row 7" in text
    assert "in raise_on_worker" in caught.value.traceback
    assert caught.value.rank in (0, 1)
    assert caught.value.step is not None
    assert latest(tmp_path).status == "failed"


class Twice(keras.Model):
    """Applies gradients twice a step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, state: Any, data: Any) -> Any:
        _, state = super().train_step(state, data)
        return super().train_step(state, data)


@pytest.mark.process
def test_two_updates_a_step_do_not_go_with_all_reduce(tmp_path: Path) -> None:
    model = Twice()
    model.compile("sgd", "mse")
    with pytest.raises((PlanError, WorkerFailed)) as caught:
        shoal.fit(model, X, Y, workers=2, verbose=0, run=False)
    assert "applies gradients 2 times" in str(caught.value)
    assert "'local_sgd'" in str(caught.value)


@pytest.mark.process
def test_small_data_trains_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(ShoalWarning, match="7 samples an epoch are too few for 2"):
        history = shoal.fit(
            linear(), X[:7], Y[:7], strategy="local_sgd", workers=2, verbose=0
        )
    found = history.run.summary()
    assert (found.status, found.samples_committed) == ("finished", 7)
    assert "too few" in found.warnings[0]


def test_data_that_does_not_fit_is_a_value_error_as_in_keras() -> None:
    model = compiled_with(loss="mse")
    given: dict[str, Any] = {"x": np.ones((64, 5)), "y": Y, "verbose": 0}
    with pytest.raises(ValueError, match="expected axis -1"):
        model.fit(**given)
    with pytest.raises(ValueError, match="expected axis -1"):
        shoal.fit(model, workers=2, run=False, cluster="inline", **given)
