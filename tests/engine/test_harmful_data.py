"""`on_nan` of `fit` on real processes: one row of the data is NaN."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.engine.worker.factories import OpenMapped
from shoal.errors import ConfigError, DataError, NotFinite, PlanError
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.runs.store import open_run
from shoal.training import shared_rows

# No worker begins with the bad row: somebody has exchanged before it is read.
ROWS, EPOCHS, BATCH, BAD = 1000, 3, 32, 900
# Threads have shown what rounds do (`test_not_finite.py`); `make matrix` starts
# processes for them as well.
ALSO_ROUNDS = pytest.param("local_sgd", marks=pytest.mark.slow)
ALSO_SERVED = pytest.param("aeasgd", marks=pytest.mark.slow)
ALSO_GRADIENTS = pytest.param("all_reduce", marks=pytest.mark.slow)
SERVED = ["aeasgd", ALSO_ROUNDS, ALSO_GRADIENTS]


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))


def data(*, is_bad: bool = True) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((ROWS, 4)).astype("float32")
    y = (x[:, :1] - x[:, 1:2] > 0).astype("float32")
    if is_bad:
        x[BAD, 2] = np.nan
    return x, y


def model(optimizer: Any = None, loss: Any = "binary_crossentropy") -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile(optimizer or keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    return net


def fit(net: Any, strategy: str, on_nan: str | None, **fields: Any) -> Any:
    given: dict[str, Any] = {
        "workers": 2, "epochs": EPOCHS, "batch_size": BATCH, "verbose": 0,
        "shuffle": False, "strategy": strategy, "on_nan": on_nan, "run": "nan",
        **fields,
    }  # fmt: skip
    x, y = given.pop("data", None) or data()
    train = given.pop("by", shoal.fit)
    return train(net, x, y, **given)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(Folder.at(run)) if event["kind"] == kind]


def only(folder: Path) -> Path:
    """The only run in a folder."""
    [run] = [path for path in folder.iterdir() if "-nan-" in path.name]
    return run


def is_finite(net: Any) -> bool:
    values = [*net.weights, *net.optimizer.variables]
    return all(np.isfinite(np.asarray(value)).all() for value in values)


def check_whole(net: Any, history: Any) -> None:
    """Every sample was committed once, and the bad one left no trace."""
    found = history.run.summary()
    assert found.samples_committed == found.samples_expected == ROWS * EPOCHS
    assert is_finite(net)
    assert np.isfinite(history.history["loss"]).all()


def check_named(found: list[dict[str, Any]]) -> None:
    for event in found:
        assert event["rows"] == [BAD]
        # In the order of the data a sample's place is its row.
        assert any(start <= BAD < stop for start, stop in event["ranges"])
        assert event["rank"] in (0, 1)


@pytest.mark.process
@pytest.mark.parametrize("strategy", SERVED)
def test_skipped_samples_are_committed_once_and_not_trained_on(
    strategy: str, kept: shoal.Session
) -> None:
    net = model()
    history = fit(net, strategy, "skip", by=kept.fit)
    check_whole(net, history)
    assert history.history["loss"][-1] < history.history["loss"][0]
    told = events(Path(history.run.url), "not_finite")
    check_named(told)
    assert [event["epoch"] for event in told] == [0, 1, 2]
    assert len(events(Path(history.run.url), "warning")) >= 3


@pytest.mark.process
def test_all_reduce_that_skips_trains_as_keras_without_that_batch(
    kept: shoal.Session,
) -> None:
    net = model()
    history = fit(net, "all_reduce", "skip", by=kept.fit)
    check_whole(net, history)
    start = BAD - BAD % BATCH
    x, y = (np.delete(a, slice(start, start + BATCH), axis=0) for a in data())
    plain = model()
    given = {"epochs": EPOCHS, "batch_size": BATCH, "shuffle": False, "verbose": 0}
    plain.fit(x, y, **given)
    for ours, theirs in zip(net.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    check_named(events(Path(history.run.url), "not_finite"))


@pytest.mark.process
@pytest.mark.parametrize("strategy", SERVED)
def test_a_stopped_run_names_the_chunk_and_keeps_what_was_good(
    strategy: str, tmp_path: Path
) -> None:
    net = model()
    before = net.get_weights()
    with pytest.raises(NotFinite, match=f"row {BAD} of the data is not") as caught:
        fit(net, strategy, "stop")
    error = caught.value
    assert (error.epoch, error.rows) == (0, (BAD,))
    assert error.rank in (0, 1)
    assert any(start <= BAD < stop for start, stop in error.samples)
    check_named(events(only(tmp_path), "not_finite"))
    assert is_finite(net)
    # The center of the last good exchange, not what the run began with.
    pairs = zip(net.get_weights(), before, strict=True)
    assert not all(np.array_equal(now, then) for now, then in pairs)
    assert open_run(str(only(tmp_path))).summary().status == "failed"


@pytest.mark.process
@pytest.mark.parametrize("strategy", [ALSO_SERVED, ALSO_ROUNDS, "all_reduce"])
def test_a_run_that_is_rolled_back_leaves_the_chunk_out(
    strategy: str, kept: shoal.Session
) -> None:
    net = model()
    history = fit(net, strategy, "rollback", by=kept.fit)
    check_whole(net, history)
    assert history.run.summary().workers_lost == 0
    url = Path(history.run.url)
    # The row is known from then on: once is enough for all epochs.
    assert len(events(url, "rolling_back")) == len(events(url, "not_finite")) == 1
    check_named(events(url, "not_finite"))


class Fault(keras.callbacks.Callback):
    """Breaks off a run after its first epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Raises once the harmful data is known."""
        if epoch:
            raise RuntimeError("broken off")


@pytest.mark.slow
@pytest.mark.process
def test_samples_left_out_stay_left_out_in_a_resumed_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken off") as caught:
        fit(model(), "local_sgd", "rollback", callbacks=[Fault()])
    [note] = caught.value.__notes__
    url = only(tmp_path)
    assert f"shoal runs resume {url}" in note
    history = shoal.resume(str(url), callbacks=[])
    assert history.epoch == [0, 1, 2]
    assert all(np.isfinite(history.history["loss"]))
    assert len(events(url, "rolling_back")) == len(events(url, "not_finite")) == 1


@pytest.mark.slow
@pytest.mark.process
def test_the_number_of_rollbacks_is_limited(tmp_path: Path) -> None:
    """Every window diverges: leaving out samples does not help."""
    net = model(keras.optimizers.SGD(float("inf")))
    with pytest.raises(NotFinite, match="after 3 rollbacks"):
        fit(net, "local_sgd", "rollback", data=data(is_bad=False))
    assert len(events(only(tmp_path), "rolling_back")) == 3
    assert all(np.isfinite(weights).all() for weights in net.get_weights())


@pytest.mark.process
def test_the_default_trains_on_as_keras_and_warns(
    tmp_path: Path, kept: shoal.Session
) -> None:
    # Not cross-entropy: PyTorch's raises, in plain Keras too.
    net, plain = model(loss="mse"), model(loss="mse")
    history = fit(net, "all_reduce", None, by=kept.fit)
    plain.fit(*data(), epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0)
    assert np.isnan(history.history["loss"]).all()
    for ours, theirs in zip(net.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    [told] = events(only(tmp_path), "not_finite")
    check_named([told])
    assert told["reaction"] == "warn"


def hurt_by_a_label(y: Any, predicted: Any) -> Any:
    """A loss that is NaN where a label is negative; its gradient is finite."""
    import keras

    loss = keras.losses.binary_crossentropy(keras.ops.maximum(y, 0.0), predicted)
    return loss + keras.ops.where(y[:, 0] < 0, float("nan"), 0.0)


@pytest.mark.process
@pytest.mark.parametrize("strategy", [ALSO_ROUNDS, ALSO_GRADIENTS])
def test_a_loss_alone_counts_as_well(strategy: str) -> None:
    x, y = data(is_bad=False)
    y[BAD] = -1.0
    net, other = model(loss=hurt_by_a_label), model(loss=hurt_by_a_label)
    with shoal.Session() as session:
        history = fit(net, strategy, "skip", data=(x, y), epochs=1, by=session.fit)
        with pytest.raises(NotFinite, match="the loss of worker"):
            fit(other, strategy, "stop", data=(x, y), run=False, by=session.fit)
    [told] = events(Path(history.run.url), "not_finite")
    assert told["what"] == "loss"
    # The data shows nothing; the loss of each step of the window does.
    assert told["step"] == told["last_step"]
    assert any(start <= BAD < stop for start, stop in told["ranges"])
    assert told["bad_rows"] == 0
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.process
def test_an_optimizer_that_handles_nan_itself_is_not_stopped(
    kept: shoal.Session,
) -> None:
    """Loss scaling makes gradients overflow on purpose, and steps over them."""

    def scaled() -> Any:
        inner = keras.optimizers.SGD(0.1)
        return model(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127))

    ours, theirs = scaled(), scaled()
    good = data(is_bad=False)
    history = fit(ours, "all_reduce", "stop", data=good, by=kept.fit)
    fit(theirs, "all_reduce", None, data=good, run=False, by=kept.fit)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert not events(Path(history.run.url), "not_finite")


# ------------------------------------------------------ data that cannot be read


class Torn:
    """Samples of which one cannot be read."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def take(self, indices: Any) -> Any:
        if BAD in indices:
            raise ConnectionError("the disk is gone")
        return self._source.take(indices)


@dataclass(frozen=True, kw_only=True)
class OpenTorn:
    """Opens the samples of a run but one."""

    descriptor: int

    def __call__(self, _on_wait: object) -> Torn:
        return Torn(OpenMapped(descriptor=self.descriptor)())


@pytest.mark.process
def test_a_chunk_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After several attempts, which take 2.1 s."""
    monkeypatch.setattr(shared_rows, "OpenMapped", OpenTorn)
    pattern = r"worker \d at step \d+: samples .* of the order of epoch 1 .*the disk is"
    with pytest.raises(DataError, match=pattern) as caught:
        fit(model(), "local_sgd", None, data=data(is_bad=False))
    assert "was asked 4 times" in str(caught.value)
    assert "in take" in str(caught.value)  # the traceback of the source
    told = events(only(tmp_path), "data_retry")
    assert [event["attempt"] for event in told] == [1, 2, 3]
    assert all("the disk is gone" in event["text"] for event in told)


# -------------------------------------------------------------- the argument


def test_the_plan_says_what_follows() -> None:
    x, y = data()
    made = shoal.plan(model(), x, y, strategy="local_sgd", workers=2, on_nan="skip")
    assert "that window of 5 steps is not applied" in made.explain()
    assert made.to_json()["on_nan"] == "skip"
    assert "nan " not in shoal.plan(model(), x, y).explain()


def test_an_unknown_value_is_refused() -> None:
    x, y = data()
    with pytest.raises(ConfigError, match="'stop', 'skip', 'rollback' or None"):
        shoal.plan(model(), x, y, on_nan="ignore")
    with pytest.raises(PlanError, match="cluster='inline'"):
        shoal.plan(model(), x, y, strategy="local_sgd", cluster="inline", on_nan="skip")
