"""An ensemble: members differ, the best one is the model, all are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import WorkerFailed
from tests.api.problems import line, linear
from tests.api.test_errors import failing_loss


def make() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


class Epochs(keras.callbacks.Callback):
    """Counts what it sees; a copy for each member."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(epoch)


@pytest.mark.process
def test_members_are_trained_apart_and_the_best_is_kept(tmp_path: Path) -> None:
    x, y = line(96)
    callback = Epochs()
    history = shoal.fit(
        make, x, y, strategy="ensemble", workers=2, epochs=2, run=tmp_path,
        validation_split=1 / 3, callbacks=[callback], verbose=0,
    )  # fmt: skip
    first, second = history.models
    losses = [m.evaluate(x[64:], y[64:], verbose=0) for m in (first, second)]
    assert losses[0] < losses[1]
    assert history.history["val_loss"][-1] == pytest.approx(losses[0], rel=1e-5)
    assert history.members[1].history["val_loss"][-1] == pytest.approx(losses[1])
    for ours, best in zip(
        history.model.get_weights(), first.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, best)
    mean = np.mean([m.predict(x, verbose=0) for m in history.models], axis=0)
    np.testing.assert_allclose(history.predict(x, verbose=0), mean)
    assert callback.seen == []
    check_records(history, tmp_path)
    history.model.fit(x, y, verbose=0)  # nothing is shared with the members
    first.fit(x, y, verbose=0)


def check_records(history: Any, root: Path) -> None:
    found = history.run.summary()
    assert (found.status, found.epochs) == ("finished", 2)
    assert found.samples_committed == found.samples_expected == 2 * 2 * 64
    folder = root / history.run.id
    assert {p.name for p in (folder / "models").iterdir()} == {
        "best.keras", "last.keras",
    }  # fmt: skip
    logs = {p.name for p in (folder / "experiments").iterdir()}
    assert {"worker-0.log", "worker-1.log"} <= logs


@pytest.mark.process
def test_a_failure_of_one_member_ends_all() -> None:
    x, y = line(64)
    with pytest.raises(WorkerFailed, match="no weather for row 7"):
        shoal.fit(
            linear(failing_loss), x, y, strategy="ensemble:members=2", workers=2,
            run=False, verbose=0,
        )  # fmt: skip
