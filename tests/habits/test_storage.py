"""Storage that goes away while a run trains: it costs records, and is told of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import CheckpointError, ModelNotSaved, ShoalWarning
from shoal.runs.store import create, open_run
from shoal.training import run_fit
from shoal.training.start_run import TrainingResult
from tests.habits.cases import data, make_model


class Away(keras.callbacks.Callback):
    """Puts a file where the folder of the run is, before the first epoch."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Moves the folder."""
        if epoch == 0:
            [run] = self.root.iterdir()
            run.rename(self.root / "moved")
            run.write_text("a file in the way")


class Full(keras.callbacks.Callback):
    """Puts a folder where the model goes, when training has ended."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the place."""
        [run] = self.root.iterdir()
        (run / "models" / "last.keras").mkdir()


def test_a_run_whose_model_was_not_saved_can_be_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_fit, "RETRIES_S", (0.0,))
    x, y = data(256)
    model = make_model()
    with pytest.raises(ModelNotSaved, match="shoal runs resume") as caught:
        shoal.fit(
            model, x, y, epochs=2, strategy="aeasgd", workers=1, verbose=0,
            run=str(tmp_path), callbacks=[Full(tmp_path)],
        )  # fmt: skip
    [folder] = tmp_path.iterdir()
    before: Any = caught.value.history
    summary = before.run.summary()
    assert summary.status == "failed"
    assert str(summary.report["reason"]).startswith("ModelNotSaved")
    (folder / "models" / "last.keras").rmdir()
    history = shoal.resume(folder, callbacks=[])
    assert history.epoch == before.epoch == [0, 1]
    assert history.history["loss"][0] == before.history["loss"][0]
    assert history.run.summary().samples_committed == 512
    saved = keras.saving.load_model(folder / "models" / "last.keras")
    for ours, theirs in zip(
        saved.get_weights(), history.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert int(saved.optimizer.iterations) == int(model.optimizer.iterations)
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize(
    "error",
    [OSError("away"), MemoryError(), RuntimeError("write failed: errno = 28")],
    ids=lambda error: type(error).__name__,
)
def test_a_model_that_cannot_be_saved_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(run_fit, "RETRIES_S", (0.0,))
    model = make_model()
    monkeypatch.setattr(model, "save", raises(error))
    with create(tmp_path, "full") as run, pytest.raises(ModelNotSaved):
        run_fit.follow(run, model, 0.0, outcome, None)
    assert open_run(str(next(tmp_path.iterdir()))).summary().status == "failed"


def test_ctrl_c_while_checkpoints_are_closed(tmp_path: Path) -> None:
    """The run ends in any case."""
    writer: Any = writer_with(close=raises(KeyboardInterrupt()))
    with create(tmp_path, "twice") as run, pytest.raises(KeyboardInterrupt):
        run_fit.follow(run, make_model(), 0.0, raises(RuntimeError("first")), writer)
    summary = open_run(str(next(tmp_path.iterdir()))).summary()
    assert summary.status == "failed"
    assert summary.report["reason"] == "RuntimeError: first"


def test_ctrl_c_while_checkpoints_are_removed(tmp_path: Path) -> None:
    writer: Any = writer_with(discard=raises(KeyboardInterrupt()))
    with create(tmp_path, "removed") as run, pytest.raises(KeyboardInterrupt):
        run_fit.follow(run, make_model(), 0.0, outcome, writer)
    assert open_run(str(next(tmp_path.iterdir()))).summary().status == "finished"


def test_a_run_taken_over_by_another_process_is_not_written(tmp_path: Path) -> None:
    writer: Any = writer_with(close=lambda: None, has_saved=True)
    error = CheckpointError("another process goes on with this run")
    with create(tmp_path, "fenced") as run, pytest.raises(CheckpointError) as caught:
        run_fit.follow(run, make_model(), 0.0, raises(error), writer)
    assert not hasattr(caught.value, "__notes__")
    assert open_run(str(next(tmp_path.iterdir()))).summary().status == "running"


def raises(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def writer_with(**fields: Any) -> Any:
    """A writer of checkpoints of a run that nobody else has resumed."""
    return SimpleNamespace(check=lambda: None, is_taken=False, **fields)


def outcome() -> TrainingResult:
    """Returns the result of a training without errors."""
    return TrainingResult(history=SimpleNamespace(), first_step=None)


def test_a_model_that_was_not_saved_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_fit, "RETRIES_S", (0.0,))
    x, y = data(256)
    model = make_model()
    before = model.get_weights()[0].copy()
    with (
        pytest.warns(ShoalWarning, match="no checkpoint can be written"),
        pytest.raises(ModelNotSaved, match="holds the trained weights") as caught,
    ):
        shoal.fit(
            model, x, y, epochs=3, strategy="aeasgd", workers=1, verbose=0,
            run=str(tmp_path), callbacks=[Away(tmp_path)],
        )  # fmt: skip
    assert (model.get_weights()[0] != before).any()
    history: Any = caught.value.history
    assert len(history.history["loss"]) == 3
