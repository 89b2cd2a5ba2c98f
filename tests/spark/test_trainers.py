"""Trainers on DataFrames of a session."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

from shoal import spark as trainers
from tests.habits.cases import data, make_model

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    x, y = data(320)
    listed = [(one.tolist(), int(label)) for one, label in zip(x, y, strict=True)]
    return spark.createDataFrame(listed, "features array<float>, label long")


@pytest.mark.parametrize("name", ["SingleTrainer", "EASGD"])
def test_a_trained_copy_is_returned(frame: Any, name: str) -> None:
    model = make_model()
    before = [weight.copy() for weight in model.get_weights()]
    trainer: Any = getattr(trainers, name)(
        model, "adagrad", "sparse_categorical_crossentropy", batch_size=16,
        num_epoch=2, run=False, verbose=0,
    )  # fmt: skip
    trained = trainer.train(frame, shuffle=True)
    assert trained is not model
    for mine, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert not np.array_equal(trained.get_weights()[0], before[0])
    x, y = data(320)
    loss, accuracy = trained.evaluate(x, y, verbose=0)
    assert loss == pytest.approx(trainer.history.history["loss"][-1], abs=0.5)
    assert 0.4 < accuracy <= 1
    assert trainer.run.summary().samples_committed == 640
    assert trainer.get_training_time() > 0


GIVEN: dict[str, Any] = {
    "worker_optimizer": "adagrad", "loss": "sparse_categorical_crossentropy",
    "batch_size": 16, "verbose": 0,
}  # fmt: skip


def test_members_of_an_ensemble_train_on_executors(frame: Any, tmp_path: Path) -> None:
    trainer = trainers.EnsembleTrainer(
        make_model(), num_ensembles=2, run=str(tmp_path / "run"), **GIVEN
    )
    models = trainer.train(frame)
    assert len(models) == len(trainer.history.members) == 2
    weights = [model.get_weights()[0] for model in models]
    assert not np.array_equal(weights[0], weights[1])
    assert trainer.run.summary().samples_committed == 640
    assert {record["worker_id"] for record in trainer.get_history()} == {0, 1}


def test_a_trainer_listens_at_its_port_and_records_each_worker(
    frame: Any, tmp_path: Path
) -> None:
    port, seen = free_port(), list[int]()

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found = psutil.Process().net_connections()
            seen.extend(one.laddr.port for one in found if one.status == "LISTEN")

    trainer = trainers.DOWNPOUR(
        make_model(), num_workers=2, communication_window=5, num_epoch=2,
        master_port=port, parallelism_factor=2, callbacks=[Look()],
        run=str(tmp_path / "run"), **GIVEN,
    )  # fmt: skip
    trainer.train(frame)
    assert set(seen) & set(range(port, port + 3))
    history = trainer.get_history()
    assert sum(one["iteration"] for one in last_records(history)) >= 40
    assert trainer.num_updates == len(history)
    assert all(0 < record["loss"] < 10 for record in history)
    assert trainer.get_averaged_history()[0]["loss"] > 0


def last_records(history: Any) -> Any:
    """Last record of each worker."""
    return {record["worker_id"]: record for record in history}.values()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_rows_that_are_precached_are_written_once(spark: Any, frame: Any) -> None:
    from shoal.data import kept_frames

    kept = trainers.precache(frame, 2)
    evaluated: list[Any] = []
    emperor = trainers.Emperor(
        trainers.SingleTrainer(make_model(), run=False, **GIVEN),
        lambda model: evaluated.append(spark.range(3).count()) or 0.5,
        num_epoch=2, evaluation_frequency=1,
    )  # fmt: skip
    emperor.train(kept)
    assert (evaluated, emperor.rates) == ([3, 3], [0.01, 0.01])
    jobs = spark.sparkContext.statusTracker()
    [copy] = kept_frames._ENTRIES[kept].copies.values()
    assert Path(copy.told[0].url).exists()
    before = written(jobs)
    trainers.SingleTrainer(make_model(), run=False, **GIVEN).train(kept)
    assert written(jobs) == before  # that of its worker is in a group
    assert kept.unpersist() is kept
    assert not Path(copy.told[0].url).exists()


def written(jobs: Any) -> int:
    """Number of jobs of Spark so far."""
    return max(jobs.getJobIdsForGroup(None), default=0)
