"""An ensemble: members differ, the best one is the model, all are kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import PlanError, WorkerFailed
from shoal.facts import Monitor
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.testing import faults
from shoal.training import ensemble
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


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "is_higher_better", "last", "order"),
    [
        ("loss", False, [0.5, 0.3, 0.4], [1, 2, 0]),
        ("accuracy", True, [0.5, 0.3, 0.5], [0, 2, 1]),
        ("loss", False, [NAN, 9.0, None], [1, 0, 2]),
        ("accuracy", True, [NAN, 0.0, np.ones(2)], [1, 0, 2]),
    ],
)
def test_members_are_ranked_and_nan_is_the_worst(
    name: str, is_higher_better: bool, last: list[Any], order: list[int]
) -> None:
    histories = [{} if v is None else {name: [0.1, v]} for v in last]
    monitor = Monitor(name=name, is_higher_better=is_higher_better)
    assert ensemble._ranking(histories, monitor) == order


@pytest.mark.parametrize("verbose", [0, 2])
def test_ctrl_c_leaves_the_best_member_so_far(
    verbose: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = line(32)
    losses = [0.5, 0.2, None]

    def interrupt(ready: Any, works: Any, *_: Any) -> Any:
        for number, (work, loss) in enumerate(zip(works, losses, strict=True)):
            work.model.set_weights([np.full(w.shape, number) for w in make_weights()])
            if loss is not None:  # the third has not ended an epoch
                work.model.history = SimpleNamespace(history={"loss": [loss]})
        raise KeyboardInterrupt

    monkeypatch.setattr(ensemble, "_train_all", interrupt)
    model = linear()
    with pytest.raises(KeyboardInterrupt):
        shoal.fit(
            model, x, y, strategy="ensemble:members=3", workers=1, run=False,
            verbose=verbose,
        )  # fmt: skip
    assert (model.get_weights()[0] == 1).all()
    told = capsys.readouterr().err
    assert ("Interrupted: the model holds member 2 of 3" in told) == (verbose > 0)


def make_weights() -> list[np.ndarray]:
    return linear().get_weights()


@pytest.mark.process
def test_faults_hit_the_member_they_name(tmp_path: Path) -> None:
    x, y = line(96)
    with faults.kill(rank=1, step=1):
        history = shoal.fit(
            make, x, y, strategy="ensemble:members=2", workers=2, run=tmp_path,
            verbose=0,
        )  # fmt: skip
    found = history.run.summary()
    assert (found.status, found.samples_committed) == ("finished", 2 * 96)
    events = read_events(Folder.at(history.run.url))
    assert [e["rank"] for e in events if e["kind"] == "worker_lost"] == [1]


def test_faults_need_processes() -> None:
    x, y = line(32)
    with faults.kill(rank=0, step=1), pytest.raises(PlanError, match="faults"):
        shoal.fit(linear(), x, y, cluster="inline", run=False, verbose=0)


@pytest.mark.process
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the loss is JAX's")
def test_a_failure_of_one_member_ends_all() -> None:
    x, y = line(64)
    with pytest.raises(WorkerFailed, match="no weather for row 7"):
        shoal.fit(
            linear(failing_loss), x, y, strategy="ensemble:members=2", workers=2,
            run=False, verbose=0,
        )  # fmt: skip
