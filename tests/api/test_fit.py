"""`fit`: the arguments of Keras mean what they mean there, and the run tells it all."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.engine.transport import codec
from shoal.errors import ConfigError, PlanError
from shoal.plan.exchanging import CODECS
from shoal.runs.store import open_run
from shoal.training.fit_call import FitCall
from tests.api.problems import line, linear, two_headed, two_targets


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))


def weights_of(model: Any) -> list[np.ndarray]:
    return [np.array(weight) for weight in model.get_weights()]


@pytest.mark.process
def test_all_reduce_repeats_keras_and_records_the_run(
    tmp_path: Path, kept: shoal.Session
) -> None:
    x, y = line(100)
    given: dict[str, Any] = {
        "epochs": 3, "initial_epoch": 1, "batch_size": 16, "shuffle": False,
        "validation_split": 0.2, "validation_freq": 2, "verbose": 0,
    }  # fmt: skip
    plain = linear(metrics=["mae"])
    expected = plain.fit(x, y, **given)

    def make() -> Any:
        return linear(metrics=["mae"])

    history = kept.fit(make, x, y, workers=2, run="line", monitor="val_mae", **given)
    for found, wanted in zip(weights_of(history.model), weights_of(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert history.epoch == expected.epoch == [1, 2]
    assert history.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        assert history.history[name] == pytest.approx(values, rel=1e-4)
    check_records(history, tmp_path)


def check_records(history: Any, root: Path) -> None:
    run, report = history.run, history.run.report
    assert "line" in run.id
    assert Path(run.url) == root / run.id
    assert 0 < report["startup_s"] < report["total_s"]
    assert report["best"]["metric"] == "val_mae"
    assert {"compute_s", "exchange_share"} <= report.keys()
    found = open_run(run.id, root).summary()
    assert (found.status, found.epochs) == ("finished", 2)
    assert found.samples_committed == found.samples_expected == 160
    last = keras.saving.load_model(root / run.id / "models" / "last.keras")
    for saved, weight in zip(weights_of(last), weights_of(history.model), strict=True):
        np.testing.assert_array_equal(saved, weight)
    assert (root / run.id / "models" / "best.keras").exists()


@pytest.mark.process
def test_weights_of_samples_per_output(kept: shoal.Session) -> None:
    x, y = two_targets(96)
    weights = {
        "sign": np.random.default_rng(3).random(96),
        "kind": np.random.default_rng(4).random(96),
    }
    keras.utils.set_random_seed(5)
    model = two_headed()
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    plain.compile_from_config(model.get_compile_config())
    given: dict[str, Any] = {
        "sample_weight": weights, "batch_size": 32, "shuffle": False, "verbose": 0,
    }  # fmt: skip
    expected = plain.fit(x, y, **given)
    history = kept.fit(model, x, y, workers=2, run=False, **given)
    for found, wanted in zip(weights_of(model), weights_of(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert history.history["loss"] == pytest.approx(expected.history["loss"], rel=1e-4)


@pytest.mark.process
def test_single_takes_one_worker_and_validates_by_steps() -> None:
    x, y = line(64)
    labels = (y[:, 0] > 0).astype("int32")
    model = linear("binary_crossentropy")
    history = shoal.fit(
        model, x, labels, strategy="single", class_weight={0: 1.0, 1: 3.0},
        validation_data=(x, labels), validation_steps=1, validation_batch_size=8,
        steps_per_epoch=1, run=False, verbose=0,
    )  # fmt: skip
    found = history.run.summary()
    assert (found.workers, found.samples_committed) == (1, 64)
    assert history.history["val_loss"] == [
        pytest.approx(model.evaluate(x[:8], labels[:8], verbose=0), rel=1e-4)
    ]


def test_plan_starts_nothing_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shoal.launchers.process.ProcessLauncher.start", None)
    monkeypatch.setenv("SHOAL_WORKERS", "3")
    x, y = line(3200)
    keras.utils.set_random_seed(1)
    first = shoal.plan(linear(), x, y)
    keras.utils.set_random_seed(1)
    shoal.plan(linear(), x, y)
    assert shoal.plan(linear(), x, y).seed == first.seed
    assert first.workers == 3
    assert shoal.plan(linear(), x, y, workers=2).workers == 2
    assert shoal.plan(linear(), x, y, strategy="single").workers == 1
    assert "all_reduce on 3 workers" in first.explain()
    assert list(tmp_path.iterdir()) == []


def test_the_default_cluster_is_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOAL_CLUSTER", "inline")
    x, y = line(64)
    given: dict[str, Any] = {"strategy": "aeasgd", "workers": 2}
    assert shoal.plan(linear(), x, y, **given).request.cluster == "inline"
    plan = shoal.plan(linear(), x, y, cluster="local", **given)
    assert plan.request.cluster == "local"  # an argument overrides it
    found = shoal.fit(linear(), x, y, run=False, verbose=0, **given)
    assert found.run.summary().workers == 2
    monkeypatch.setenv("SHOAL_CLUSTER", "labb")
    with pytest.raises(ConfigError, match="unknown cluster 'labb'"):
        shoal.fit(linear(), x, y, run=False)


def test_plan_takes_the_arguments_of_fit() -> None:
    x, y = line(64)
    with pytest.raises(ConfigError, match=r"'epoch'\. Did you mean 'epochs'"):
        shoal.plan(linear(), x, y, epoch=3)
    with pytest.raises(ConfigError, match="validation_data has 4 parts"):
        shoal.plan(linear(), x, y, validation_data=(x, y, y, y))


def test_a_call_has_all_arguments_of_fit_with_their_defaults() -> None:
    """Each is a field of one class: the call, its request, or what is said of files."""
    call = FitCall.of(model=None)
    parts = [vars(call.request), vars(call.files), vars(call)]
    taken = {name: value for part in parts for name, value in part.items()}
    given = inspect.signature(shoal.fit).parameters
    left: dict[str, Any] = {
        "strategy": "all_reduce", "model": inspect.Parameter.empty, "cluster": None,
    }  # fmt: skip
    for name, argument in given.items():
        assert argument.default == left.get(name, taken[name]), name
    kept = {"request", "files", "known_clusters", "has_callbacks"}
    assert taken.keys() - given.keys() == kept


@pytest.mark.process
def test_fit_plan_and_session_give_the_same_plan(kept: shoal.Session) -> None:
    """`fit`, `plan` and a session take the same ones, and read them in one place."""
    x, y = line(64)
    given: dict[str, Any] = {
        "workers": 1, "epochs": 2, "seed": 5, "shuffle": "batch", "quorum": 1.0,
        "strategy": "local_sgd:period=3", "validation_freq": [2], "max_restarts": 7,
    }  # fmt: skip
    plan = shoal.plan(linear(), x, y, **given)
    for fit in (shoal.fit, kept.fit):
        run = fit(linear(), x, y, verbose=0, **given).run
        told = json.loads(run.folder.read("plan.json"))
        assert told.pop("explained")[:40] == plan.explain()[:40]
        wanted = json.loads(json.dumps(plan.to_json()))
        for other in ("machine", "model"):  # free memory, and the number in a name
            del told[other], wanted[other]
        assert told == wanted


def test_plan_names_spares_and_standby() -> None:
    x, y = line(64)
    told = shoal.plan(linear(), x, y, workers=1, standby=1, spares=2).explain()
    assert "a server that takes over when the first one is lost" in told
    assert "2 spare workers" in told
    for name in ("standby", "spares"):
        with pytest.raises(PlanError, match=f"{name}=1 with cluster='inline'"):
            shoal.plan(linear(), x, y, cluster="inline", **{name: 1})


def test_plan_names_several_servers() -> None:
    x, y = line(64)
    net = keras.Sequential([keras.Input((x.shape[1],)), keras.layers.Dense(200)])
    net.compile("sgd", "mse")
    given: dict[str, Any] = {"strategy": "aeasgd", "workers": 2}
    told = shoal.plan(net, x, y, servers=3, standby=1, **given).explain()
    assert "through 3 servers" in told
    assert "for each server one that takes over when it is lost" in told
    with pytest.raises(PlanError, match=r"servers=99 .* so at most servers=\d+\."):
        shoal.plan(net, x, y, servers=99, **given)
    with pytest.raises(ConfigError, match="servers=0"):
        shoal.plan(net, x, y, servers=0, **given)
    with pytest.raises(PlanError, match="servers=2 with ensemble"):
        shoal.plan(net, x, y, servers=2, strategy="ensemble")
    with pytest.raises(PlanError, match="servers=2 with cluster='inline'"):
        shoal.plan(net, x, y, servers=2, cluster="inline", **given)


def test_plan_names_the_codec() -> None:
    x, y = line(64)
    given: dict[str, Any] = {"strategy": "aeasgd", "workers": 2}
    assert "through the server\n" in shoal.plan(linear(), x, y, **given).explain()
    found = shoal.plan(linear(), x, y, codec="int8", overlap=True, **given)
    told = "through the server while workers compute on, in int8 between hosts"
    assert told in found.explain()
    assert (found.request.codec, found.request.overlap) == ("int8", True)
    for name, why in (("all_reduce", "needs the gradients"), ("ensemble", "nothing")):
        with pytest.raises(PlanError, match=f"overlap=True with {name}, which .*{why}"):
            shoal.plan(linear(), x, y, strategy=name, overlap=True)
    with pytest.raises(PlanError, match="overlap=True with cluster='inline'"):
        shoal.plan(linear(), x, y, cluster="inline", overlap=True, **given)


def test_the_plan_and_the_engine_have_the_same_codecs() -> None:
    assert {*CODECS} == {"float32", *codec.CODECS}


def test_numpy_numbers_are_accepted_as_arguments() -> None:
    x, y = line(64)
    given = {
        "batch_size": 8, "epochs": 2, "initial_epoch": 1, "steps_per_epoch": 3,
        "max_restarts": 2, "threads": 1, "seed": 5, "validation_freq": 2,
        "validation_steps": 1, "validation_batch_size": 4,
    }  # fmt: skip
    wide: dict[str, Any] = {name: np.int64(value) for name, value in given.items()}
    shared: dict[str, Any] = {"validation_data": (x, y)}
    counts: Any = (np.int32(1), np.int64(2))
    found = shoal.plan(linear(), x, y, workers=counts, **wide, **shared)
    json.dumps(found.to_json())
    assert (found.min_workers, found.workers) == (1, 2)
    assert type(found.batch_size) is type(found.request.epochs) is int
    history = shoal.fit(
        linear(), x, y, workers=counts, cluster="inline", run=False, verbose=0,
        **wide, **shared,
    )  # fmt: skip
    assert len(history.history["val_loss"]) == 1


def test_the_first_epoch_begins_a_pass_as_in_keras() -> None:
    """10 rows in batches of 2, 3 steps an epoch: epoch 1 has 3 steps and not 2."""
    x, y = line(10)
    given: dict[str, Any] = {
        "batch_size": 2, "steps_per_epoch": 3, "initial_epoch": 1, "epochs": 3,
        "shuffle": False, "verbose": 0,
    }  # fmt: skip
    plain, ours = linear(), linear()
    with pytest.warns(UserWarning, match="ran out of data"):
        expected = plain.fit(x, y, **given)
    history = shoal.fit(ours, x, y, workers=2, cluster="inline", run=False, **given)
    assert int(ours.optimizer.iterations) == int(plain.optimizer.iterations) == 3 + 2
    assert history.history["loss"] == pytest.approx(expected.history["loss"], rel=1e-4)
    for found, wanted in zip(weights_of(ours), weights_of(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    summary = history.run.summary()
    assert summary.samples_committed == summary.samples_expected == 10


def test_a_run_stopped_early_expected_the_epochs_it_had() -> None:
    """Epochs of 6 and 4 rows, by turns: an average of them would be wrong."""
    x, y = line(10)
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9)
    history = shoal.fit(
        linear(), x, y, workers=2, cluster="inline", run=False, verbose=0,
        batch_size=2, steps_per_epoch=3, epochs=9, callbacks=[stop],
    )  # fmt: skip
    assert history.epoch == [0, 1]
    summary = history.run.summary()
    assert summary.samples_committed == summary.samples_expected == 10


def test_the_best_model_follows_the_direction_of_its_metric(tmp_path: Path) -> None:
    """A metric whose name promises one way and whose kind the other."""
    x, y = line(32)
    error = keras.metrics.MeanAbsoluteError(name="accuracy_error")
    history = shoal.fit(
        linear(metrics=[error]), x, y, workers=1, cluster="inline", run=tmp_path,
        epochs=4, verbose=0, monitor="accuracy_error",
    )  # fmt: skip
    values = history.history["accuracy_error"]
    assert values == sorted(values, reverse=True)
    assert history.run.report["best"]["epoch"] == 3
    best, last = (
        keras.saving.load_model(Path(history.run.url, "models", f"{name}.keras"))
        for name in ("best", "last")
    )
    for one, other in zip(weights_of(best), weights_of(last), strict=True):
        np.testing.assert_array_equal(one, other)
