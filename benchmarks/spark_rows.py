"""Trains on 3,000,000 rows of a DataFrame, and watches memory of all processes.

Run: `SHOAL_DATA=... python -m benchmarks.spark_rows`. Executors are two of 1 GB of a
standalone cluster of its own. The file, `flights-3m.parquet`, is in the npm package
vega-datasets 3.2.1. A training on 30,000 of its rows goes before, so that what grows
with the data is told from what every run takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import psutil

import shoal
from benchmarks.spark_session import Marks, session
from benchmarks.works import given_file
from tests.spark.standalone import EXECUTOR, Standalone, own_address

WIDTH = 64
"""Numbers that origin and destination become: most of them zeros."""
LITTLE = 30_000
BATCH_SIZE = 1024
LOOK_S = 0.25
MB = 1e6
KINDS = {
    EXECUTOR: "JVM of an executor",
    "java": "other JVM",
    "pyspark": "Python of a task",
    " server": "server",
    " worker": "worker",
    "shoal:": "Shoal, other",
}
"""Parts of command lines and titles, in this order, and what they are."""


class Watch:
    """Highest resident memory of processes, by what they are.

    Args:
        roots: Processes whose children are looked at.
    """

    def __init__(self, roots: list[psutil.Process]) -> None:
        self.peaks: dict[str, float] = {}
        self._roots = roots
        self._is_over = threading.Event()

    @contextmanager
    def watching(self) -> Generator[None]:
        """Looks again and again."""
        thread = threading.Thread(target=self._look_again)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _look_again(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._note("driver", psutil.Process())
            for process in self._children():
                with suppress(psutil.NoSuchProcess):
                    self._note(kind_of(process), process)

    def _children(self) -> Iterator[psutil.Process]:
        for root in self._roots:
            with suppress(psutil.NoSuchProcess):
                yield from root.children(recursive=True)

    def _note(self, kind: str, process: psutil.Process) -> None:
        used = process.memory_info().rss / MB
        self.peaks[kind] = max(self.peaks.get(kind, 0.0), used)


def kind_of(process: psutil.Process) -> str:
    """Returns what a process is, by its command line or title."""
    words = " ".join(process.cmdline())
    for part, kind in KINDS.items():
        if part in words:
            return kind
    return "Python, other" if "python" in process.name() else "other"


def rows_of(spark: Any, path: Path, limit: int | None) -> Any:
    """Returns a frame of features and of whether a flight was late."""
    from pyspark.ml.feature import FeatureHasher
    from pyspark.sql import functions as F

    frame = spark.read.parquet(str(path)).na.drop()
    if limit is not None:
        frame = frame.limit(limit)
    frame = frame.select(
        "origin", "destination",
        (F.col("distance") / 1000).alias("distance"),
        (F.hour("date") / 24).alias("hour"),
        (F.dayofweek("date") / 7).alias("day"),
        (F.col("delay") > 0).cast("int").alias("late"),
    )  # fmt: skip
    names = ["origin", "destination", "distance", "hour", "day"]
    hasher = FeatureHasher(inputCols=names, outputCol="features", numFeatures=WIDTH)
    return hasher.transform(frame).select("features", "late")


def make_model() -> Any:
    """A small perceptron."""
    layers = [
        keras.Input((WIDTH,)),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dense(1, "sigmoid"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def train(frame: Any, store: str, epochs: int) -> dict[str, Any]:
    """Trains, and returns seconds and counts."""
    given: dict[str, Any] = {
        "features": "features", "label": "late", "strategy": "aeasgd", "workers": 2,
        "batch_size": BATCH_SIZE, "epochs": epochs, "verbose": 0,
        "cluster": shoal.clusters.Spark(store=store),
    }  # fmt: skip
    model, marks = make_model(), Marks()
    began = time.perf_counter()
    shoal.plan(model, frame, **given)  # has the rows written, which fit takes
    written = time.perf_counter()
    history = shoal.fit(model, frame, callbacks=[marks], run=f"{store}/runs", **given)
    ended, summary = time.perf_counter(), history.run.summary()
    first, rows = marks.first or ended, frame.count()
    if summary.samples_committed != rows * epochs:
        sys.exit(f"{summary.samples_committed:,} samples of {rows * epochs:,}")
    return {
        "rows": rows,
        "committed": summary.samples_committed,
        "write_s": round(written - began, 1),
        "first_step_s": round(first - written, 1),
        "whole_s": round(ended - began, 1),
        "written_rows_per_s": round(rows / (written - began)),
        "trained_rows_per_s": round(rows / marks.spans[-1]),
        "accuracy": round(history.history["accuracy"][-1], 4),
    }


def main() -> None:
    """Trains on little and on all, and prints both beside each other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, help="fewer than all")
    given = parser.parse_args()
    path, host = given_file("flights-3m.parquet"), own_address()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="spark-rows-") as folder:
        daemons = Standalone(Path(folder))
        try:
            for _ in range(2):
                daemons.add_worker()
            settings = {"spark_driver_host": host, "spark_driver_bindAddress": host}
            settings["spark_executor_memory"] = "1g"
            with session(daemons.url, **settings) as spark:
                roots = [psutil.Process(), *daemons.workers]
                for name, limit in (("little", LITTLE), ("much", given.rows)):
                    frame = rows_of(spark, path, limit)
                    before = psutil.Process().memory_info().rss / MB
                    watch = Watch(roots)
                    with watch.watching():
                        result = train(frame, f"{folder}/{name}", given.epochs)
                    result["driver_before_mb"] = round(before)
                    peaks = sorted(watch.peaks.items())
                    result["peaks_mb"] = {kind: round(mb) for kind, mb in peaks}
                    found[name] = result
                    print(name, json.dumps(result, indent=1), flush=True)
        finally:
            daemons.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
