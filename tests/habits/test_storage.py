"""Storage that goes away while a run trains: it costs records, and is told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
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
