"""DataFrames as data of fit: what is trained is what the frame has."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.clusters import Spark
from shoal.data.located import FileArguments
from shoal.data.reading import Reading
from shoal.errors import ConfigError, DataError, ShoalError
from tests.habits.cases import data, make_model
from tests.s3 import Bucket
from tests.spark.killing import Press, StopLater
from tests.spark.processes import daemons, jobs_end

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]

KEYS_OF_S3 = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
)  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any]:
    return data(640)


@pytest.fixture
def frame(spark: Any, rows: tuple[Any, Any]) -> Any:
    """Vectors and labels, in partitions of several sizes, one of them empty."""
    from pyspark.ml.linalg import Vectors

    x, y = rows
    listed = [
        (Vectors.dense(one.tolist()), int(label), number)
        for number, (one, label) in enumerate(zip(x, y, strict=True))
    ]
    made = spark.createDataFrame(
        listed, schema(("features", "vector"), ("label", "long"), ("id", "long"))
    )
    return made.repartition(5, "label")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    gc.collect()  # an error may hold the source
    left = list(Path(tempfile.gettempdir()).glob("shoal-frame-*"))
    assert left == []


def schema(*columns: tuple[str, str]) -> Any:
    """A schema of names and types; "vector" is Spark ML's."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField, StructType

    session: Any = SparkSession.getActiveSession()

    def kind(word: str) -> Any:
        if word == "vector":
            return VectorUDT()
        return session.createDataFrame([], f"a {word}").schema[0].dataType

    return StructType([StructField(name, kind(word)) for name, word in columns])


def source_of(frame: Any, features: Any, label: Any, **options: Any) -> Any:
    from shoal.data.spark import open_frame

    columns = FileArguments(features=features, label=label)
    weight = options.pop("weight", None)
    return open_frame(frame, None, weight, columns, Reading(**options))


def taken(source: Any) -> Any:
    found = source.take(slice(None))
    source.close()
    return found


# -------------------------------------------------------------------- training


@pytest.mark.parametrize("cluster", ["spark", "local"])
def test_every_row_is_trained_once(frame: Any, cluster: str) -> None:
    model = make_model()
    weighted = frame.selectExpr("*", "float(id % 2) as weight")
    history = shoal.fit(
        model, weighted, features="features", label="label", sample_weight="weight",
        batch_size=16, epochs=2, strategy="aeasgd", workers=2, cluster=cluster,
        run=False, verbose=0,
    )  # fmt: skip
    assert history.run.summary().samples_committed == 1280
    assert len(history.history["loss"]) == 2


def test_a_store_is_used_and_emptied(frame: Any, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append([path.suffix for path in tmp_path.glob("shoal-frame-*/*")])

    shoal.fit(
        make_model(), frame, features="features", label="label", batch_size=16,
        workers=1, run=False, verbose=0, cluster=Spark(store=str(tmp_path)),
        callbacks=[Look()],
    )  # fmt: skip
    assert set(seen[0]) == {".arrow", ".json"}
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_is_a_store(
    spark: Any, frame: Any, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors find credentials as boto does, here in variables of the session."""
    for name in KEYS_OF_S3:
        monkeypatch.setitem(spark.sparkContext.environment, name, os.environ[name])
    before = daemons()
    history = shoal.fit(
        make_model(), frame, features="features", label="label", batch_size=16,
        workers=1, run=False, verbose=0, cluster=Spark(store=f"{s3.url}/rows"),
    )  # fmt: skip
    for one in daemons() - before:  # those with these variables would stay
        with suppress(psutil.NoSuchProcess):  # daemons of tasks end by themselves
            one.kill()
    assert history.run.summary().samples_committed == 640
    assert "Contents" not in s3.client.list_objects_v2(Bucket=s3.name)


def test_rows_are_written_where_they_are(spark: Any) -> None:
    """One stage, a task for each partition: nothing is shuffled, kept or cached."""
    frame = spark.range(0, 100, 1, 7).selectExpr("float(id) as x", "id as y")
    x, _ = taken(source_of(frame, ["x"], "y"))
    assert len(x) == 100
    jobs = spark.sparkContext.statusTracker()
    [stage] = jobs.getJobInfo(max(jobs.getJobIdsForGroup(None))).stageIds
    assert jobs.getStageInfo(stage).numTasks == 7
    assert not frame.is_cached


def test_rows_pass_through_the_driver_where_no_store_is_shared(
    frame: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[int] = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            names = [thread.name for thread in threading.enumerate()]
            served.append(names.count("shoal-frame-server"))

    history = shoal.fit(
        make_model(), frame, features="features", label="label", batch_size=16,
        epochs=2, strategy="aeasgd", workers=2, run=False, verbose=2,
        cluster=Spark(store="driver"), callbacks=[Look()],
    )  # fmt: skip
    assert history.run.summary().samples_committed == 1280
    assert served[-1] >= 2  # one waits for callers, another serves a worker
    assert "DataFrame: 640 rows in " in capsys.readouterr().out


def test_a_run_on_rows_of_the_driver_goes_on_in_its_process(
    frame: Any, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        shoal.fit(
            make_model(), frame, features="features", label="label", batch_size=16,
            epochs=99999, strategy="aeasgd", workers=2, run=str(tmp_path), verbose=0,
            cluster=Spark(store="driver"), callbacks=[Press()],
        )  # fmt: skip
    [run] = tmp_path.iterdir()
    history = shoal.resume(run, callbacks=[StopLater()], verbose=0)
    epochs = len(history.history["loss"])
    assert epochs >= 3
    assert history.run.summary().samples_committed == epochs * 640


def test_a_frame_that_changes_is_trained_as_it_was_written(spark: Any) -> None:
    rows = spark.range(2000).selectExpr("float(id) as x", "id as y")
    source = source_of(rows.filter("rand() < 0.5"), ["x"], "y")
    count = len(source)
    x, y = taken(source)
    assert 800 < count == len(y) == len(set(y)) < 1200
    np.testing.assert_array_equal(x[:, 0], y)


def test_two_threads_have_a_cached_frame_written_once(spark: Any) -> None:
    kept = spark.range(2000).selectExpr("float(id) as x", "id as y").cache()

    def rows(_: int) -> Any:
        return taken(source_of(kept, ["x"], "y"))[1]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(rows, range(2)))
    for one in found:
        np.testing.assert_array_equal(np.sort(one), np.arange(2000))
    assert len(list(Path(tempfile.gettempdir()).glob("shoal-frame-*"))) == 1
    kept.unpersist()
    from shoal.data.kept_frames import drop_released

    drop_released()


def test_the_size_of_wide_vectors_is_refused_before_they_are_written(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.ml.feature import HashingTF

    monkeypatch.setattr("shoal.data.spark_writing.free_bytes", lambda store: 10**6)
    words = spark.createDataFrame(
        [(["a"], 1), (["b"], 0)], "words array<string>, y int"
    )
    hashing: Any = HashingTF
    wide = hashing(numFeatures=200_000, inputCol="words", outputCol="x").transform(
        words
    )
    with pytest.raises(DataError, match=r"2 rows with vectors 'x' of 200,000 numbers"):
        source_of(wide, "x", "y")


def test_the_plan_is_read_once(frame: Any, spark: Any) -> None:
    asked: dict[str, Any] = {
        "features": "features", "label": "label", "batch_size": 16, "workers": 1,
        "verbose": 0, "run": False,
    }  # fmt: skip
    plan = shoal.plan(make_model(), frame, **asked)
    assert (plan.data.rows, plan.data.kind) == (640, "Spark DataFrame")
    jobs = spark.sparkContext.statusTracker()
    before = max(jobs.getJobIdsForGroup(None), default=0)
    shoal.fit(make_model(), frame, **asked)
    assert max(jobs.getJobIdsForGroup(None), default=0) == before


def test_validation_on_another_frame(frame: Any, rows: tuple[Any, Any]) -> None:
    held = frame.filter("id < 100")
    model = make_model()
    history = shoal.fit(
        model, frame, features="features", label="label", validation_data=held,
        batch_size=16, workers=1, run=False, verbose=0,
    )  # fmt: skip
    x, y = rows
    expected = model.evaluate(x[:100], y[:100], verbose=0, return_dict=True)
    assert history.history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-4)
    found = shoal.evaluate(
        model, held, features="features", label="label", verbose=0, return_dict=True
    )
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_ctrl_c_while_rows_are_written_ends_the_job(
    spark: Any, frame: Any, tmp_path: Path
) -> None:
    began, over = tmp_path / "began", threading.Event()

    def slow(batches: Any) -> Any:
        for batch in batches:
            began.touch()
            while True:
                time.sleep(0.05)
            yield batch

    def press() -> None:
        while not began.exists() and not over.wait(0.05):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    waiting = frame.select("id").mapInArrow(slow, "id long")
    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        shoal.fit(make_model(), waiting, features=["id"], label="id", run=False)
    over.set()
    presser.join()
    assert jobs_end(spark)
    assert spark.range(100).count() == 100


@pytest.mark.parametrize(("few", "cluster"), [(3, "spark"), (1, "inline")])
def test_few_rows_are_trained_on(frame: Any, few: int, cluster: str) -> None:
    history = shoal.fit(
        make_model(), frame.filter(f"id < {few}"), features="features", label="label",
        batch_size=16, epochs=2, strategy="aeasgd", workers=2, cluster=cluster,
        run=False, verbose=0,
    )  # fmt: skip
    assert history.run.summary().samples_committed == 2 * few


# --------------------------------------------------------------------- columns


def test_vectors_numbers_arrays_and_weights(spark: Any) -> None:
    from pyspark.ml.linalg import Vectors

    listed = [
        (Vectors.dense([n, 1.0]), Vectors.sparse(3, {1: float(n)}), [[n, 2], [3, 4]],
         float(n), n % 2 == 0, n)
        for n in range(50)
    ]  # fmt: skip
    frame = spark.createDataFrame(
        listed,
        schema(
            ("dense", "vector"),
            ("sparse", "vector"),
            ("grid", "array<array<int>>"),
            ("a.b", "double"),
            ("yes", "boolean"),
            ("n", "int"),
        ),
    ).coalesce(1)
    features = {"both": ["dense", "sparse"], "grid": "grid", "flag": "yes"}
    x, y, weight = taken(source_of(frame, features, "n", weight="a.b"))
    number = np.arange(50)
    np.testing.assert_array_equal(y, number)
    np.testing.assert_array_equal(weight, number.astype("f4"))
    expected = np.stack([number, number * 0 + 1, number * 0, number, number * 0], 1)
    np.testing.assert_array_equal(x["both"], expected)
    assert (x["grid"].shape, x["grid"].dtype) == ((50, 2, 2), "int32")
    assert x["flag"].dtype == "bool"


BAD = {
    "an unknown column": ("vec", "label", r"Did you mean 'vector'"),
    "text": ("text", "label", r"column 'text' of the DataFrame holds string"),
    "a date": ("day", "label", r"column 'day' of the DataFrame holds date"),
    "a map": ("table", "label", r"holds map<string,int>"),
    "a null": ("vector", "holed", r"column 'holed' of the DataFrame has 1 nulls"),
    "a null vector": ("gone", "label", r"column 'gone' of the DataFrame has 1 nulls"),
    "lengths": ("ragged", "label", r"'ragged' of the DataFrame has rows of shape"),
}


@pytest.fixture(scope="module")
def odd(spark: Any) -> Any:
    """A frame with a column of each kind that cannot be trained on."""
    from datetime import date

    from pyspark.ml.linalg import Vectors

    listed = [
        (Vectors.dense([1.0]), n, None if n == 3 else n, "a", date(2026, 1, 1),
         {"a": 1}, None if n == 5 else Vectors.dense([2.0]), [1.0] * (1 + (n == 6)))
        for n in range(8)
    ]  # fmt: skip
    return spark.createDataFrame(
        listed,
        schema(
            ("vector", "vector"),
            ("label", "int"),
            ("holed", "int"),
            ("text", "string"),
            ("day", "date"),
            ("table", "map<string, int>"),
            ("gone", "vector"),
            ("ragged", "array<double>"),
        ),
    )


@pytest.mark.parametrize("name", BAD)
def test_columns_that_cannot_be_used_are_refused(odd: Any, name: str) -> None:
    features, label, said = BAD[name]
    with pytest.raises(DataError, match=said) as told:
        shoal.plan(make_model(), odd, features=features, label=label)
    assert ".scala" not in str(told.value)


def test_values_that_are_not_finite_are_warned_of(spark: Any) -> None:
    frame = spark.createDataFrame([(float("nan"), 1), (1.0, 0)], "x double, y int")
    source = source_of(frame, ["x"], "y")
    assert source.notes == (
        "column 'x' of the DataFrame has 1 values that are NaN or infinite.",
    )
    source.close()


def test_a_frame_without_rows_is_refused(frame: Any) -> None:
    with pytest.raises(DataError, match="the DataFrame has no rows"):
        source_of(frame.filter("id < 0"), "features", "label")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"y": [1]}, "is given beside a DataFrame"),
        ({"on_bad_file": "skip"}, "but x is a DataFrame"),
    ],
)
def test_arguments_that_do_not_go_with_a_frame(
    frame: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        shoal.plan(make_model(), frame, features="features", label="label", **given)


def test_a_stream_is_refused(spark: Any) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="x is a stream"):
        shoal.plan(make_model(), stream, features="value", label=())


def test_columns_of_another_size_than_the_model_has_are_refused(frame: Any) -> None:
    with pytest.raises(ShoalError, match=r"\(1,\)|shape"):
        shoal.fit(make_model(), frame, features=["id"], label="label", run=False)


def test_a_store_that_only_executors_see_is_an_error(frame: Any) -> None:
    with pytest.raises(DataError, match=r"which an executor on \S+ has written, is"):
        source_of(frame, "features", "label", store="memory://shoal-rows")


def test_a_full_store_is_an_error_and_is_emptied(spark: Any, tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs to mount a file system, which root may")
    rows = spark.range(100_000).selectExpr("float(id) as x", "id as y")
    try:
        with pytest.raises(DataError, match="No space left on device") as told:
            source_of(rows, ["x"], "y", store=str(tmp_path))
        assert ".scala" not in str(told.value)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_read_only_store_is_an_error(frame: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="executors could not write the rows") as told:
        source_of(frame, "features", "label", store=str(tmp_path / "file"))
    assert ".scala" not in str(told.value)
