"""Workers on executors of a standalone cluster, which are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.clusters import Spark
from shoal.clusters.spark import address
from shoal.data.located import FileArguments
from shoal.data.reading import Reading
from shoal.errors import ShoalWarning
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.habits.cases import data, make_model
from tests.spark.conftest import needs_java, open_session
from tests.spark.killing import Killer
from tests.spark.processes import training_processes
from tests.spark.standalone import Standalone, own_address

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]


@pytest.fixture(scope="module")
def cluster(
    _own_temporary_folder: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standalone]:
    """A master and two worker daemons."""
    needs_java()
    found = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        for _ in range(2):
            found.add_worker()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def spark(
    cluster: Standalone, python_of_tests: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A session on it; its driver listens where TLS is used, if there is such."""
    folder = str(tmp_path_factory.mktemp("spark"))
    host = own_address()
    session = open_session(
        cluster.url, folder, **{
            "spark.driver.host": host, "spark.driver.bindAddress": host,
            "spark.executor.memory": "500m",
        }
    )  # fmt: skip
    yield session
    session.stop()


def of_run(history: Any) -> list[str]:
    return [event["kind"] for event in read_events(Folder.at(history.run.url))]


def kill_one(executors: list[psutil.Process]) -> list[psutil.Process]:
    return executors[:1]


def kill_all(executors: list[psutil.Process]) -> list[psutil.Process]:
    return executors


@pytest.mark.parametrize(
    ("which", "strategy"),
    [(kill_one, "aeasgd"), (kill_one, "all_reduce"), (kill_all, "aeasgd")],
)
def test_killed_executors_are_replaced_and_every_sample_counts_once(
    cluster: Standalone, spark: Any, tmp_path: Path,
    which: Callable[[list[psutil.Process]], list[psutil.Process]], strategy: str,
) -> None:  # fmt: skip
    runs = tmp_path / "runs"
    x, y = data(320)
    killed: list[psutil.Process] = []

    def killing() -> None:
        killed.extend(which(cluster.executors()))
        for one in killed:
            one.kill()

    history = shoal.fit(
        make_model(), x, y, batch_size=16, epochs=99999, strategy=strategy, workers=2,
        run=str(runs), verbose=0, cluster="spark", callbacks=[Killer(runs, killing)],
    )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    kinds = of_run(history)
    assert kinds.count("worker_lost") >= 1
    assert kinds.count("worker_replaced") >= 1
    assert len(killed) == (2 if which is kill_all else 1)
    assert psutil.wait_procs(killed, timeout=30)[1] == []
    assert [p for one in cluster.workers for p in training_processes(one.pid)] == []
    assert spark.range(100).count() == 100


def test_its_driver_is_called_with_tls(cluster: Standalone, spark: Any) -> None:
    from shoal.launchers.spark_session import active_context, read_session
    from shoal.wire.tls import identity_for

    host = address(read_session(active_context()))
    assert host == own_address()
    assert host.startswith("127.") or identity_for(host) is not None


def test_rows_of_failed_attempts_are_not_counted(spark: Any, tmp_path: Path) -> None:
    from shoal.data.spark import open_frame

    def flaky(batches: Any) -> Any:
        """Fails in the first attempt of each partition, after half of its rows."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 1 and context.attemptNumber() == 0:
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
        assert len(list(tmp_path.glob("*/*.arrow"))) == 4
        source.close()
        assert list(tmp_path.iterdir()) == []
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_frame_goes_to_a_store_or_through_the_driver(
    spark: Any, tmp_path: Path
) -> None:
    frame = spark.range(320).selectExpr("array(float(id), 1f) as x", "id % 2 as y")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    asked: dict[str, Any] = {
        "features": "x", "label": "y", "batch_size": 16, "workers": 2, "verbose": 0,
        "strategy": "aeasgd", "run": False,
    }  # fmt: skip
    with pytest.warns(ShoalWarning, match="pass through the driver"):
        history = shoal.fit(model, frame, cluster="spark", **asked)
    assert history.run.summary().samples_committed == 320
    stored = Spark(store=str(tmp_path))
    history = shoal.fit(model, frame, cluster=stored, **asked)
    assert history.run.summary().samples_committed == 320
    assert list(tmp_path.iterdir()) == []
