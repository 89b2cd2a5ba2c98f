"""Keras' callbacks on real runs, against the same callbacks in plain Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from tests.habits.cases import (
    Recorder,
    assert_close,
    data,
    make_model,
    weights_of,
)

pytestmark = pytest.mark.process

BATCH = 32


def train(model: Any, rows: int, by: Any = shoal.fit, **arguments: Any) -> Any:
    """The same arguments for Keras and for Shoal, which has a few of its own."""
    ours = {"strategy", "workers", "epoch_barrier", "run"} & set(arguments)
    x, y = data(rows)
    common: dict[str, Any] = {
        "batch_size": BATCH,
        "shuffle": False,
        "verbose": 0,
        **arguments,
    }
    if not ours:
        return model.fit(x, y, **common)
    full: dict[str, Any] = {"workers": 2, "run": False, **common}
    return by(model, x, y, **full)


def test_hooks_logs_and_learning_rates_are_those_of_keras(
    tmp_path: Path, kept: shoal.Session
) -> None:
    """One run with whatever can be compared call by call."""
    found: dict[str, Any] = {}
    own = {"strategy": "all_reduce", "by": kept.fit}
    for who, ours in (("keras", {}), ("shoal", own)):
        recorder, folder = Recorder(), tmp_path / who
        folder.mkdir()
        seen: list[float] = []
        callbacks = [
            recorder,
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch)),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.ModelCheckpoint(folder / "epoch{epoch}.keras"),
            keras.callbacks.ModelCheckpoint(
                folder / "best.keras", monitor="loss", save_best_only=True
            ),
            keras.callbacks.ModelCheckpoint(
                folder / "{epoch}-{batch}.weights.h5",
                save_freq=4,
                save_weights_only=True,
            ),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs, seen=seen: seen.append(logs["loss"])
            ),
        ]
        model = make_model()
        history = train(
            model, 300, epochs=3, callbacks=callbacks,
            validation_data=data(100, seed=1), validation_freq=[1, 3], **ours,
        )  # fmt: skip
        found[who] = (recorder, history, model, seen, folder)
    (recorder, history, model, seen, folder) = found["shoal"]
    (theirs, plain, wanted, lambda_seen, keras_folder) = found["keras"]
    assert recorder.calls == theirs.calls
    for mine, other in zip(recorder.logs, theirs.logs, strict=True):
        assert_close(mine, other)
    assert recorder.params == theirs.params == {"verbose": 0, "epochs": 3, "steps": 10}
    assert_close(history.history, plain.history)
    assert history.epoch == plain.epoch
    assert_close(weights_of(model), weights_of(wanted))
    assert int(model.optimizer.iterations) == int(wanted.optimizer.iterations)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 / 3)
    np.testing.assert_allclose(seen, lambda_seen, rtol=1e-4)
    names = sorted(path.name for path in keras_folder.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == names
    # Whole models as Keras saves them: weights, step count, slots.
    for name in ("epoch1.keras", "epoch3.keras", "best.keras"):
        mine = keras.models.load_model(folder / name)
        other = keras.models.load_model(keras_folder / name)
        assert_close(weights_of(mine), weights_of(other))
        assert_close(
            [np.array(v) for v in mine.optimizer.variables],
            [np.array(v) for v in other.optimizer.variables],
        )
    mine, other = ((f / "log.csv").read_text() for f in (folder, keras_folder))
    assert mine.splitlines()[0] == other.splitlines()[0]
    assert len(mine.splitlines()) == len(other.splitlines()) == 4


def test_early_stopping_stops_where_keras_stops_and_leaves_its_weights(
    kept: shoal.Session,
) -> None:
    runs = []
    for ours in ({}, {"strategy": "all_reduce", "by": kept.fit}):
        stopping = keras.callbacks.EarlyStopping(
            "loss", min_delta=10.0, patience=2, restore_best_weights=True
        )
        plateau = keras.callbacks.ReduceLROnPlateau(
            "loss", min_delta=10.0, patience=1, factor=0.5
        )
        model = make_model()
        history = train(model, 300, epochs=9, callbacks=[stopping, plateau], **ours)
        runs.append((stopping.stopped_epoch, history.history, weights_of(model)))
    (epoch, plain, wanted), (stopped, history, weights) = runs
    assert stopped == epoch == 2
    assert history["learning_rate"] == pytest.approx(plain["learning_rate"])
    assert_close(history, plain)
    assert_close(weights, wanted)


class _Break(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise RuntimeError("the power went")


def test_a_run_ended_by_a_callback_continues_from_its_backup(
    tmp_path: Path, kept: shoal.Session
) -> None:
    """Also that the exception comes out and leaves nothing: see tests/conftest.py."""
    plain = make_model()
    train(plain, 300, epochs=3)

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    ours = {"strategy": "all_reduce", "epochs": 3}
    with pytest.raises(RuntimeError, match="the power went"):
        train(make_model(), 300, callbacks=[backup(), _Break()], **ours)
    model = make_model()
    history = train(model, 300, kept.fit, callbacks=[backup()], **ours)
    assert history.epoch == [1, 2]
    assert history.run.summary().samples_committed == 600
    assert_close(weights_of(model), weights_of(plain))


def test_nan_ends_the_epoch_that_is_under_way(kept: shoal.Session) -> None:
    recorder = Recorder()
    model = make_model(keras.optimizers.SGD(float("inf")))
    history = train(
        model, 20_000, kept.fit, strategy="downpour", epochs=3,
        callbacks=[keras.callbacks.TerminateOnNaN(), recorder],
    )  # fmt: skip
    # Of three epochs; how much of the first was under way then is up to the machine.
    assert history.epoch == [0]
    assert 0 < history.run.summary().samples_committed <= 20_000
    hooks = [hook for hook, _, _ in recorder.calls]
    assert hooks[-2:] == ["on_epoch_end", "on_train_end"]
    # Steps are counted in batches of the run, each hook where the last one ended.
    ends = [step for hook, step, _ in recorder.calls if hook == "on_train_batch_end"]
    begins = [s for hook, s, _ in recorder.calls if hook == "on_train_batch_begin"]
    assert begins == [0, *((end or 0) + 1 for end in ends[:-1])]


class _StopAfter(keras.callbacks.Callback):
    """Stops after the first epoch, whose learning rate it sets in a batch hook."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert self.model is not None
        self.model.optimizer.learning_rate = 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self.model is not None
        self.kept = weights_of(self.model)
        self.model.stop_training = True


def test_without_a_barrier_at_most_one_epoch_overruns(
    capsys: pytest.CaptureFixture[str], kept: shoal.Session
) -> None:
    stop = _StopAfter()
    model = make_model()
    history = train(
        model, 4000, kept.fit, strategy="aeasgd", epochs=50, epoch_barrier=False,
        callbacks=[stop], verbose=2,
    )  # fmt: skip
    assert history.epoch == [0]
    found = history.run.summary()
    extra = found.samples_overrun
    assert 0 <= extra <= 4000
    assert found.samples_committed == found.samples_expected == 4000
    assert_close(weights_of(model), stop.kept, tolerance=0)
    shown = capsys.readouterr().out
    assert "Epoch 1/50" in shown
    assert ("epoch_barrier=False" in shown) == (extra > 0)
