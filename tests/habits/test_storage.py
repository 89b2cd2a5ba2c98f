"""Storage that goes away while a run trains: it costs records, and is told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import ModelNotSaved, ShoalWarning
from shoal.training import performing
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
    monkeypatch.setattr(performing, "RETRIES_S", (0.0,))
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
    assert history.history == before.history
    assert history.run.summary().samples_committed == 512
    saved = keras.saving.load_model(folder / "models" / "last.keras")
    for ours, theirs in zip(saved.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not (folder / "checkpoints").exists()


def test_a_model_that_nobody_took_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performing, "RETRIES_S", (0.0,))
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
