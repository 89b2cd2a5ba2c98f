"""Sessions whose settings decide who runs a task, how often, and with what."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shoal
from shoal.clusters import Spark
from shoal.data.located import FileArguments
from shoal.data.reading import Reading
from shoal.errors import ClusterError
from shoal.launchers.spark_session import active_context, read_session
from tests.habits.cases import data, make_model
from tests.spark.conftest import open_standalone
from tests.spark.killing import Killer
from tests.spark.processes import jobs_end, training_processes
from tests.spark.standalone import Standalone
from tests.support.watch import Watch

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]

USUAL: dict[str, Any] = {
    "batch_size": 16, "epochs": 99999, "strategy": "aeasgd", "verbose": 0,
}  # fmt: skip
EAGER = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    # Spark has a job of one task started again when it takes longer than this.
    "spark.speculation.task.duration.threshold": "1s",
}
EXCLUDING = {
    "spark.speculation": "false",  # a JVM keeps the settings of its first session
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1",
}
GROWING = {
    "spark.speculation": "false",
    "spark.excludeOnFailure.enabled": "false",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
}


@pytest.fixture(scope="module")
def spark(
    standalone: Standalone,
    python_of_tests: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """Four slots on two executors with a GPU each, and speculation."""
    session = open_standalone(
        standalone.url, str(tmp_path_factory.mktemp("spark")), **{
            "spark.executor.cores": "2", "spark.cores.max": "4",
            "spark.executor.resource.gpu.amount": "1", **EAGER,
        },
    )  # fmt: skip
    yield session
    session.stop()


def workers_of(standalone: Standalone) -> list[psutil.Process]:
    return [p for one in standalone.workers for p in training_processes(one.pid)]


class Look(Watch):
    """Notes variables of two training processes, and ends the run."""

    def __init__(self, root: Path, standalone: Standalone) -> None:
        super().__init__(root)
        self.standalone, self.seen = standalone, list[dict[str, str]]()

    def is_over(self, kinds: Counter[str]) -> bool:
        self.seen = [one.environ() for one in workers_of(self.standalone)]
        return len(self.seen) == 2


def test_workers_have_cores_and_a_gpu_by_a_profile(
    standalone: Standalone, spark: Any, tmp_path: Path
) -> None:
    x, y = data(320)
    cluster = Spark(cpus=2, gpus=1)
    plan = shoal.plan(make_model(), x, y, cluster=cluster)
    assert (plan.workers, plan.threads, plan.machine.slots) == (2, 2, 2)
    look = Look(tmp_path, standalone)
    history = shoal.fit(
        make_model(), x, y, workers=2, run=str(tmp_path), cluster=cluster,
        callbacks=[look], **USUAL,
    )  # fmt: skip
    assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in look.seen) == ["4", "5"]
    assert {one["OMP_NUM_THREADS"] for one in look.seen} == {"2"}
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    assert workers_of(standalone) == []


def test_threads_are_cores_of_a_profile(spark: Any) -> None:
    plan = shoal.plan(make_model(), *data(96), cluster="spark", threads=2)
    assert plan.threads == 2
    history = shoal.fit(
        make_model(), *data(96), batch_size=16, workers=2, threads=2, run=False,
        cluster="spark", verbose=0,
    )  # fmt: skip
    assert history.run.summary().samples_committed == 96


class KillAmongCopies(Killer):
    """Waits until Spark has started copies of the workers' tasks, and then kills."""

    most = 0

    def is_over(self, kinds: Counter[str]) -> bool:
        self.most = max(self.most, read_session(active_context()).busy)
        return self.most > 3 and super().is_over(kinds)


def test_speculative_copies_of_tasks_train_nothing(
    standalone: Standalone, spark: Any, tmp_path: Path
) -> None:
    x, y = data(320)
    runs = tmp_path / "runs"
    kill = KillAmongCopies(runs, lambda: workers_of(standalone)[0].kill())
    history = shoal.fit(
        make_model(), x, y, workers=2, run=str(runs), cluster="spark",
        callbacks=[kill], **USUAL,
    )  # fmt: skip
    assert kill.most == 4
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    assert kill.kinds()["worker_lost"] == 1
    assert workers_of(standalone) == []
    assert jobs_end(spark)
    assert spark.range(100).count() == 100


def test_rows_of_failed_and_speculative_attempts_are_not_counted(
    spark: Any, tmp_path: Path
) -> None:
    from shoal.data.spark import open_frame

    def flaky(batches: Any) -> Any:
        """In its first attempt each partition fails after half of its rows.

        The first one does not fail, it never ends: Spark starts a copy of it.
        """
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 1 and context.attemptNumber() == 0:
                if context.partitionId() == 0:
                    threading.Event().wait()
                raise OSError("the first attempt fails")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        frame = spark.range(0, 4000, 1, 4).selectExpr("id", "float(id) as x")
        failing = frame.mapInArrow(flaky, "id long, x float")
        columns = FileArguments(features=["x"], label="id")
        reading = Reading(store=str(tmp_path), is_away=True)
        source = open_frame(failing, None, None, columns, reading)
        x, y = source.take(slice(None))
        np.testing.assert_array_equal(np.sort(y), np.arange(4000))
        np.testing.assert_array_equal(x[:, 0], y.astype("f4"))
        source.close()
        assert list(tmp_path.iterdir()) == []
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


# ---------------------------------------------------------- dynamic allocation


class BothTrain(Watch):
    """Trains until two workers have trained for a while."""

    def __init__(self, root: Path, standalone: Standalone) -> None:
        super().__init__(root)
        self.standalone, self.seen = standalone, list[int]()

    def is_over(self, kinds: Counter[str]) -> bool:
        self.seen.append(len(workers_of(self.standalone)))
        return self.seen.count(2) > 5


@contextmanager
def instead(
    spark: Any, standalone: Standalone, folder: Path, **settings: str
) -> Generator[Any]:
    """A session in place of that of this module, which it ends."""
    spark.stop()
    session = open_standalone(standalone.url, str(folder), **settings)
    try:
        yield session
    finally:
        session.stop()


@pytest.mark.spark_long
def test_an_executor_that_spark_excludes_has_no_slots(
    spark: Any, standalone: Standalone, tmp_path: Path
) -> None:
    def fail_once(rows: Any) -> Any:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        if context.attemptNumber() == 0:
            raise OSError("the first attempt fails")
        return rows

    trained: dict[str, Any] = {
        "batch_size": 16, "verbose": 0, "strategy": "aeasgd", "run": False,
    }  # fmt: skip
    with instead(spark, standalone, tmp_path / "spark", **EXCLUDING) as session:
        assert session.sparkContext.parallelize([0], 1).mapPartitions(
            fail_once
        ).collect() == [0]
        pause = threading.Event()
        while read_session(active_context()).slots > 1:  # its listeners are told later
            pause.wait(0.05)
        assert shoal.plan(make_model(), *data(96), cluster="spark").workers == 1
        with pytest.raises(ClusterError, match=r"1 executor\(s\) get no tasks"):
            shoal.fit(
                make_model(), *data(96), workers=2, cluster=Spark(wait_s=0), **trained
            )
        history = shoal.fit(
            make_model(), *data(96), workers=1, cluster="spark", **trained
        )
        assert history.run.summary().samples_committed == 96


@pytest.fixture
def growing(
    spark: Any, standalone: Standalone, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A session that starts executors as they are needed."""
    folder = tmp_path_factory.mktemp("growing")
    with instead(spark, standalone, folder, **GROWING) as session:
        yield session


def test_executors_come_for_workers_and_go_with_them(
    standalone: Standalone, growing: Any, tmp_path: Path
) -> None:
    context = growing.sparkContext
    name, pause = context.applicationId, threading.Event()
    both = BothTrain(tmp_path, standalone)
    history = shoal.fit(
        make_model(), *data(320), workers=(1, 2), run=str(tmp_path), cluster="spark",
        callbacks=[both], **USUAL,
    )  # fmt: skip
    [run] = tmp_path.iterdir()
    assert json.loads((run / "plan.json").read_text())["workers"] == 1  # it began so
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    assert both.kinds()["worker_lost"] == 0
    executors = standalone.executors(name)
    assert psutil.wait_procs(executors, timeout=60)[1] == []
    while standalone.executors(name):  # one that has just been started
        pause.wait(0.1)
