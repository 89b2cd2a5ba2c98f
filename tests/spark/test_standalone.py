"""Workers on executors of a standalone cluster, which are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.clusters import Spark
from shoal.clusters.spark import address
from shoal.errors import ShoalWarning
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.habits.cases import data, make_model
from tests.spark.conftest import open_standalone
from tests.spark.killing import Killer, StopLater
from tests.spark.processes import training_processes
from tests.spark.standalone import Standalone, own_address

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]


@pytest.fixture(scope="module")
def spark(
    standalone: Standalone,
    python_of_tests: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """A session of two slots, one on each daemon."""
    folder = str(tmp_path_factory.mktemp("spark"))
    words = {
        "spark.decommission.enabled": "true",
        "spark.executor.decommission.forceKillTimeout": "3s",
    }
    session = open_standalone(standalone.url, folder, **words)
    yield session
    session.stop()


def of_run(history: Any) -> list[str]:
    return [event["kind"] for event in read_events(Folder.at(history.run.url))]


def kill_one(executors: list[psutil.Process]) -> list[psutil.Process]:
    executors[0].kill()
    return executors[:1]


def kill_all(executors: list[psutil.Process]) -> list[psutil.Process]:
    for one in executors:
        one.kill()
    return executors


def decommission_one(executors: list[psutil.Process]) -> list[psutil.Process]:
    """Spark gives it no task any more, and kills it after a while."""
    executors[0].send_signal(signal.SIGPWR)
    return executors[:1]


LONG = pytest.mark.spark_long


@pytest.mark.parametrize(
    ("lose", "strategy"),
    [
        (kill_one, "aeasgd"),
        pytest.param(kill_one, "all_reduce", marks=LONG),
        pytest.param(kill_one, "local_sgd", marks=LONG),
        pytest.param(kill_all, "aeasgd", marks=LONG),
        pytest.param(decommission_one, "aeasgd", marks=LONG),
    ],
)
def test_killed_executors_are_replaced_and_every_sample_counts_once(
    standalone: Standalone, spark: Any, tmp_path: Path,
    lose: Callable[[list[psutil.Process]], list[psutil.Process]], strategy: str,
) -> None:  # fmt: skip
    runs = tmp_path / "runs"
    x, y = data(320)
    lost: list[psutil.Process] = []

    def losing() -> None:
        lost.extend(lose(standalone.executors()))

    history = shoal.fit(
        make_model(), x, y, batch_size=16, epochs=99999, strategy=strategy, workers=2,
        run=str(runs), verbose=0, cluster="spark", callbacks=[Killer(runs, losing)],
    )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    kinds = of_run(history)
    assert kinds.count("worker_lost") >= 1
    assert kinds.count("worker_replaced") >= 1
    assert len(lost) == (2 if lose is kill_all else 1)
    assert psutil.wait_procs(lost, timeout=30)[1] == []
    assert [p for one in standalone.workers for p in training_processes(one.pid)] == []
    assert spark.range(100).count() == 100


@LONG
def test_one_worker_may_be_lost_more_often_than_a_task_of_spark(
    standalone: Standalone, spark: Any, tmp_path: Path
) -> None:
    """Spark aborts a job after four losses of a task (`spark.task.maxFailures`)."""
    runs = tmp_path / "runs"

    def kill_its_task() -> None:
        [training] = training_processes(standalone.workers[0].pid)
        task = training.parent()
        assert task is not None
        task.kill()

    history = shoal.fit(
        make_model(), *data(320), batch_size=16, epochs=99999, strategy="aeasgd",
        workers=2, run=str(runs), verbose=0, cluster="spark", max_restarts=9,
        callbacks=[Killer(runs, kill_its_task, times=5)],
    )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    events = read_events(Folder.at(history.run.url))
    lost = [event["rank"] for event in events if event["kind"] == "worker_lost"]
    assert (len(lost), len(set(lost))) == (5, 1)
    assert [p for one in standalone.workers for p in training_processes(one.pid)] == []
    assert spark.range(100).count() == 100


DRIVER = """
import sys
import shoal
from shoal.clusters import Spark
from tests.habits.cases import make_model
from tests.spark.conftest import open_session, open_standalone

url, folder, store = sys.argv[1:]
opened = open_session if url.startswith("local") else open_standalone
session = opened(url, f"{folder}/spark")
frame = session.read.parquet(f"{folder}/rows")
print(session.sparkContext.applicationId, flush=True)
shoal.fit(
    make_model(), frame, features="x", label="y", batch_size=16, epochs=99999,
    strategy="aeasgd", workers=2, run=f"{folder}/runs/", verbose=0,
    cluster=Spark(store=store or None),
)
"""


@pytest.mark.parametrize(
    ("is_local", "signals"),
    [
        (False, [signal.SIGKILL]),
        pytest.param(True, [signal.SIGKILL], marks=LONG),
        pytest.param(False, [signal.SIGINT] * 2, marks=LONG),
    ],
    ids=["store", "local", "ctrl-c-twice"],
)
def test_a_run_goes_on_after_its_driver_was_killed(
    standalone: Standalone,
    spark: Any,
    tmp_path: Path,
    is_local: bool,
    signals: list[signal.Signals],
) -> None:
    """Rows are in a store, or in the temporary folder of one machine."""
    url = "local[2]" if is_local else standalone.url
    store = "" if is_local else str(tmp_path / "store")
    x, y = data(320)
    columns = {"x": pa.array(x.tolist(), pa.list_(pa.float32())), "y": y}
    pq.write_table(pa.table(columns), tmp_path / "rows")
    pause = threading.Event()
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, url, str(tmp_path), store],
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        application = driver.stdout.readline().strip()
        while not list(tmp_path.glob("runs/*/checkpoints/*.manifest")):
            assert driver.poll() is None
            pause.wait(0.05)
        executors = standalone.executors(application)
        below = [p for one in executors for p in one.children(recursive=True)]
        jvm = psutil.Process(driver.pid).children(recursive=True)
        for number in signals:
            driver.send_signal(number)
            pause.wait(0.5)
        driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert len(executors) == (0 if is_local else 2)
    assert psutil.wait_procs([*executors, *below, *jvm], timeout=60)[1] == []

    [run] = (tmp_path / "runs").iterdir()
    history = shoal.resume(run, callbacks=[StopLater()], verbose=0)
    epochs = len(history.history["loss"])
    assert epochs >= 4
    assert history.run.summary().samples_committed == epochs * 320
    assert not list(tmp_path.glob("store/*"))
    assert not list(Path(tempfile.gettempdir()).glob("shoal-frame-*"))
    assert spark.range(100).count() == 100


def test_its_driver_is_called_with_tls(spark: Any) -> None:
    from shoal.launchers.spark_session import active_context, read_session
    from shoal.wire.tls import identity_for

    host = address(read_session(active_context()))
    assert host == own_address()
    assert host.startswith("127.") or identity_for(host) is not None


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
