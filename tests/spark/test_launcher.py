"""Workers as tasks of a Spark session on this machine."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.clusters import Spark
from shoal.errors import ClusterError, PlanError, ShoalError
from shoal.launchers.agent_loop import Ticket
from shoal.launchers.spark_session import active_context
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.habits.cases import data, make_model
from tests.spark.killing import Killer, Press
from tests.spark.processes import jobs_end, training_processes

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]

USUAL: dict[str, Any] = {"batch_size": 16, "verbose": 0, "cluster": "spark"}


def is_usable(spark: Any) -> bool:
    return spark.range(100).count() == 100


def test_the_same_weights_as_keras(spark: Any) -> None:
    x, y = data(96)
    ours, plain = make_model(), make_model()
    shoal.fit(ours, x, y, epochs=2, workers=2, shuffle=False, run=False, **USUAL)
    plain.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for mine, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)
    assert is_usable(spark)
    assert jobs_end(spark)


def test_asynchronous_workers_read_files(spark: Any, tmp_path: Path) -> None:
    x, y = data(320)
    for part in range(4):
        rows = slice(80 * part, 80 * part + 80)
        np.savez(tmp_path / f"{part}.npz", x=x[rows], y=y[rows])
    history = shoal.fit(
        make_model(), str(tmp_path), epochs=2, strategy="aeasgd", workers=2,
        run=False, **USUAL,
    )  # fmt: skip
    assert history.run.summary().samples_committed == 640
    assert is_usable(spark)


def kill_a_training_process() -> None:
    training_processes()[0].kill()


def kill_a_task() -> None:
    """Kills the Python process of Spark in which an agent runs."""
    task = training_processes()[0].parent()
    assert task is not None
    task.kill()


def kill_an_attempt() -> None:
    """Kills a task as Spark's web page does."""
    context: Any = active_context()
    java = context._jsc.sc()
    assert any(java.killTaskAttempt(n, True, "by a test") for n in range(1000))


@pytest.mark.parametrize(
    "kill", [kill_a_training_process, kill_a_task, kill_an_attempt]
)
def test_a_lost_worker_is_replaced_and_every_sample_counts_once(
    spark: Any, tmp_path: Path, kill: Callable[[], object]
) -> None:
    runs = tmp_path / "runs"
    x, y = data(320)
    history = shoal.fit(
        make_model(), x, y, epochs=9999, strategy="aeasgd", workers=2, run=str(runs),
        callbacks=[Killer(runs, kill)], **USUAL,
    )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    kinds = [event["kind"] for event in read_events(Folder.at(history.run.url))]
    assert kinds.count("worker_lost") == 1
    assert kinds.count("worker_replaced") >= 1
    assert training_processes() == []
    assert is_usable(spark)


def test_ctrl_c_keeps_the_center_and_the_session(spark: Any) -> None:
    import pyspark

    handler = signal.getsignal(signal.SIGINT)
    assert getattr(handler, "__module__", "").startswith("pyspark.")
    x, y = data(320)
    model = make_model()
    before = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        shoal.fit(
            model, x, y, epochs=9999, strategy="aeasgd", workers=2, run=False,
            callbacks=[Press()], **USUAL,
        )  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is handler
    assert not np.array_equal(model.get_weights()[0], before[0])
    assert training_processes() == []
    assert is_usable(spark)
    assert pyspark.SparkContext._active_spark_context is spark.sparkContext


def test_the_session_is_left_as_it_was(spark: Any, tmp_path: Path) -> None:
    def settings() -> Any:
        own = spark.sparkContext.getConf().getAll()
        rows = spark.sql("SET").collect()
        return sorted(own), sorted((row.key, row.value) for row in rows)

    before = settings()
    with held_slot(spark, tmp_path):
        shoal.fit(make_model(), *data(96), workers=1, run=False, **USUAL)
        assert settings() == before
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_two_runs_at_once_do_not_wait_for_each_other(spark: Any) -> None:
    def train(number: int) -> int:
        x, y = data(96, seed=number)
        asked: dict[str, Any] = {**USUAL, "cluster": Spark(wait_s=200)}
        history = shoal.fit(
            make_model(), x, y, strategy="aeasgd", workers=2, run=False, **asked
        )
        return history.run.summary().samples_committed

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, range(2))) == [96, 96]
    assert is_usable(spark)


# -------------------------------------------------------------------- planning


def test_a_plan_shows_slots_and_starts_nothing(spark: Any) -> None:
    x, y = data(96)
    plan = shoal.plan(make_model(), x, y, cluster="spark")
    assert (plan.workers, plan.threads) == (2, 1)
    assert "1 executor (127.0.0.1), 2 slots of 1 core" in plan.explain()
    assert jobs_end(spark)


def test_a_callback_leaves_a_slot_free(spark: Any) -> None:
    x, y = data(96)
    callbacks = [keras.callbacks.Callback()]
    asked: dict[str, Any] = {"cluster": "spark", "callbacks": callbacks}
    assert shoal.plan(make_model(), x, y, **asked).workers == 1
    plan = shoal.plan(make_model(), x, y, workers=2, **asked)
    assert "the workers take all 2 slots" in plan.explain()


class Counts(keras.callbacks.Callback):
    """Asks Spark for something during a run."""

    def __init__(self, spark: Any) -> None:
        super().__init__()
        self.spark, self.counted = spark, 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.counted += self.spark.range(50).count()


def test_a_callback_may_ask_spark(spark: Any) -> None:
    x, y = data(96)
    counts = Counts(spark)
    shoal.fit(make_model(), x, y, epochs=2, callbacks=[counts], run=False, **USUAL)
    assert counts.counted == 100


def test_a_task_shows_its_process_no_gpu_that_spark_did_not_give(spark: Any) -> None:
    def seen(_: Any) -> Any:
        from shoal.launchers.spark import VISIBLE, gpus_of_task

        os.environ[VISIBLE] = "7"
        with gpus_of_task():
            inside = os.environ[VISIBLE]
        return [inside, os.environ[VISIBLE]]

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(seen).collect()
    assert found == ["", "7"]


# ------------------------------------------------------------------- refusals


def test_other_cores_than_the_sessions_are_refused_on_one_machine(spark: Any) -> None:
    with pytest.raises(PlanError, match="each worker was to have 2 cores"):
        shoal.plan(make_model(), *data(96), cluster=Spark(cpus=2))


def test_more_threads_than_a_slot_has_are_refused(spark: Any) -> None:
    with pytest.raises(PlanError, match="threads=2, but each slot"):
        shoal.plan(make_model(), *data(96), cluster="spark", threads=2)


def test_more_workers_than_there_will_ever_be_slots_are_refused_at_once(
    spark: Any,
) -> None:
    with pytest.raises(ClusterError, match=r"has 2 slots\. Expected 3 that are free"):
        shoal.fit(
            make_model(), *data(96), batch_size=16, workers=3, run=False,
            cluster=Spark(wait_s=1e6),
        )  # fmt: skip


@contextmanager
def held_slot(spark: Any, folder: Path) -> Iterator[Callable[[], object]]:
    """A job of the user's in one slot; yields what ends it."""
    from pyspark import InheritableThread

    context, stop = spark.sparkContext, folder / "stop"
    began = folder / "began"

    def hold(_: Any) -> Any:
        began.touch()
        while not stop.exists():
            time.sleep(0.05)
        return [1]

    outcomes: list[Any] = []
    other = InheritableThread(
        lambda: outcomes.extend(
            context.parallelize([0], 1).mapPartitions(hold).collect()
        )
    )
    other.start()
    pause = threading.Event()
    while not began.exists():
        pause.wait(0.05)
    try:
        yield stop.touch
    finally:
        stop.touch()
        other.join()
    assert outcomes == [1]  # no job of the user's was ended


def test_slots_that_others_hold_are_waited_for_and_named(
    spark: Any, tmp_path: Path
) -> None:
    short: dict[str, Any] = {**USUAL, "cluster": Spark(wait_s=0.5)}
    with (
        held_slot(spark, tmp_path),
        pytest.raises(ClusterError, match=r"has 2 slots; 1 of them run tasks \(jobs"),
    ):
        shoal.fit(make_model(), *data(96), workers=2, run=False, **short)


class Free(keras.callbacks.Callback):
    """Frees the other slot, and trains until two workers have trained for a while."""

    def __init__(self, free: Callable[[], object]) -> None:
        super().__init__()
        self.free, self.epochs = free, 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.free()
        self.epochs += len(training_processes()) == 2
        self.model.stop_training = self.epochs > 5


def test_a_worker_joins_when_a_slot_is_free(spark: Any, tmp_path: Path) -> None:
    x, y = data(320)
    with held_slot(spark, tmp_path) as free:
        history = shoal.fit(
            make_model(), x, y, epochs=99999, strategy="aeasgd", workers=(1, 2),
            run=str(tmp_path / "runs"), callbacks=[Free(free)], **USUAL,
        )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    events = list(read_events(Folder.at(history.run.url)))
    assert "worker_lost" not in [event["kind"] for event in events]


def test_error_of_a_node_without_shoal_is_one_sentence(
    spark: Any, tmp_path: Path
) -> None:
    from shoal.launchers import spark as carrier

    (tmp_path / "shoal.py").write_text("raise ImportError('none here')")

    def elsewhere(text: str) -> Any:
        task = carrier.agent_task(text)

        def run(rows: Any) -> Any:
            import sys

            for name in [n for n in sys.modules if n.split(".")[0] == "shoal"]:
                del sys.modules[name]
            sys.path.insert(0, str(tmp_path))
            return task(rows)

        return run

    said = spark.sparkContext.parallelize([0], 1).mapPartitions(elsewhere("")).collect()
    assert "cannot import Shoal (none here)" in said[0]


def test_error_of_another_python_is_one_sentence(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.8")
    with pytest.raises(ShoalError, match="PYTHON_VERSION_MISMATCH") as told:
        shoal.fit(make_model(), *data(96), workers=1, run=False, **USUAL)
    assert "PYSPARK_PYTHON" in str(told.value)
    assert ".scala:" not in str(told.value)


def test_error_of_an_unreachable_driver_names_its_port(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.launchers import spark as carrier

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    there = carrier.agent_task

    def task(text: str) -> Any:
        return there(replace(Ticket.from_text(text), port=port).to_text())

    monkeypatch.setattr(carrier, "agent_task", task)
    with pytest.raises(ShoalError, match=f"does not reach .*:{port}") as told:
        shoal.fit(make_model(), *data(96), workers=1, run=False, **USUAL)
    assert ".scala:" not in str(told.value)


def test_error_of_a_failing_task_has_no_java_frames(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(text: str) -> Any:
        def run(_: Any) -> Any:
            raise OSError("no disk here")

        return run

    monkeypatch.setattr("shoal.launchers.spark.agent_task", failing)
    with pytest.raises(ShoalError, match="OSError: no disk here") as told:
        shoal.fit(make_model(), *data(96), workers=1, run=False, **USUAL)
    assert ".scala:" not in str(told.value)
    assert is_usable(spark)
