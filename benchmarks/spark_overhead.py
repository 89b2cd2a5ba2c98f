"""What Spark costs: training, start, files of a DataFrame, beside the same without it.

Run: `python -m benchmarks.spark_overhead [steady|start|files ...]`. Each pair takes
turns in one run, so that ratios count, and not seconds. `start` has a new process for
each measurement; its programs were compiled once before, as in `benchmarks.start`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics as st
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import shoal
from benchmarks.spark_session import Marks, session
from benchmarks.works import WORKS

FEATURES = 30
ROWS, EPOCHS = 128_000, 4
FRAME_ROWS, PARTITIONS = 1_000_000, 4


def write_parquet(folder: Path, rows: int) -> None:
    """Writes rows of the Higgs perceptron as Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = WORKS["higgs"].samples(rows)
    columns = {f"x{n}": x[:, n] for n in range(FEATURES)} | {"y": y}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=4000)


def steady(repeats: int) -> dict[str, Any]:
    """Rows a second of epochs after the first, on the same files."""
    rates: dict[str, list[float]] = {"local": [], "spark": []}
    with tempfile.TemporaryDirectory() as folder, session():
        write_parquet(Path(folder), ROWS)
        for number in range(repeats):
            for cluster in [*rates] if number % 2 else [*rates][::-1]:
                marks = Marks()
                shoal.fit(
                    WORKS["higgs"].make(), folder, label="y", strategy="aeasgd",
                    features=[f"x{n}" for n in range(FEATURES)], workers=2,
                    batch_size=64, epochs=EPOCHS, verbose=0, run=False,
                    callbacks=[marks], cluster=cluster,
                )  # fmt: skip
                rates[cluster].append(ROWS / st.median(marks.spans[1:]))
                print(f"{number + 1} {cluster:6} {rates[cluster][-1]:10,.0f} rows/s")
    return compared("steady rows/s", rates["spark"], rates["local"], "least", 0.9)


_START = """
import sys, time
import numpy as np, keras, shoal
from contextlib import nullcontext
from benchmarks.spark_session import Marks, session
from benchmarks.works import WORKS
what = sys.argv[1]
x, y = np.ones((6400, 30), "f4"), np.zeros(6400, "i4")
model = WORKS["higgs"].make()
with nullcontext() if what == "local" else session() as spark:
    marks, began = Marks(), time.perf_counter()
    if what == "task":
        spark.sparkContext.parallelize([0], 1).map(lambda x: x).collect()
        marks.first = time.perf_counter()
    else:
        shoal.fit(model, x, y, batch_size=64, verbose=0, run=False, workers=2,
                  strategy="aeasgd", callbacks=[marks], cluster=what)
    print("took", marks.first - began)
"""


def start(repeats: int) -> dict[str, Any]:
    """Seconds from the call of `fit` to the first step, and of an empty task."""
    found: dict[str, list[float]] = {"local": [], "spark": [], "task": []}
    with tempfile.TemporaryDirectory() as cache:
        for number in range(-1, repeats):  # the first one compiles
            for what in found:
                done = subprocess.run(
                    [sys.executable, "-c", _START, what], check=True, text=True,
                    capture_output=True, env={**os.environ, "SHOAL_CACHE": cache},
                )  # fmt: skip
                took = float(done.stdout.split("took")[-1])
                if number >= 0:
                    found[what].append(took)
                    print(f"{number + 1} {what:6} {took:6.2f} s", flush=True)
    turns = zip(found["spark"], found["local"], found["task"], strict=True)
    beyond = [spark - local - task for spark, local, task in turns]
    print(
        f"start beyond local and an empty task: {st.median(beyond):.2f} s, "
        f"{min(beyond):.2f} to {max(beyond):.2f} (at most 2)"
    )
    return {"start": found, "beyond_s": beyond, "asked": 2.0}


def files(repeats: int) -> dict[str, Any]:
    """Seconds to write a frame's files beside a scan, and rows/s to read them.

    A frame that Spark computes is scanned slowly, one of Parquet files fast; the files
    take the same.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, session() as spark:
        computed = vectors(spark)
        computed.write.parquet(f"{folder}/vectors")
        frames = {
            "computed": computed,
            "Parquet": spark.read.parquet(f"{folder}/vectors"),
        }
        times: dict[str, dict[str, list[float]]] = {name: {} for name in frames}
        for number in range(-1, repeats):  # the first one warms the JVM up
            for kind, frame in frames.items():
                for name, seconds in turn_of_files(frame).items():
                    if number >= 0:
                        times[kind].setdefault(name, []).append(seconds)
                        print(f"{number + 1} {kind:8} {name:14} {seconds:6.2f} s")
    for kind, one in times.items():
        name = f"files of a frame, {kind}, of a scan"
        found[kind] = compared(name, one["files"], one["scan"], "most", 1.5)
        compared("files, of rows to Python", one["files"], one["rows to Python"])
        rate = FRAME_ROWS / st.median(one["read"])
        print(f"read: {rate:,.0f} rows/s (at least 2,000,000)", flush=True)
    return {**found, "times": times}


def turn_of_files(frame: Any) -> dict[str, float]:
    """Returns seconds of two scans, of writing, and of reading what was written."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    from shoal.data.located import FileArguments
    from shoal.data.reading import Reading
    from shoal.data.spark import open_frame

    def scan(*columns: Any) -> None:
        frame.select(*columns).write.format("noop").mode("overwrite").save()

    arrays = vector_to_array("features", "float32"), F.col("label").cast("float")
    began = time.perf_counter()
    scan("features", "label")
    scanned = time.perf_counter()
    named = [column.alias(f"c{n}") for n, column in enumerate(arrays)]
    scan(*named)
    scanned_arrays = time.perf_counter()
    frame.select(*named).mapInArrow(nothing_of, "id long").collect()
    passed = time.perf_counter()
    columns = FileArguments(features="features", label="label")
    source = open_frame(frame, None, None, columns, Reading(workers=2))
    written = time.perf_counter()
    for chunk in range(len(source.chunk_rows)):
        source.read(chunk, 0)
    read = time.perf_counter()
    if len(source) != FRAME_ROWS:
        sys.exit(f"{len(source):,} rows were written of {FRAME_ROWS:,}")
    source.close()
    return {
        "scan": scanned - began,
        "scan as arrays": scanned_arrays - scanned,
        "rows to Python": passed - scanned_arrays,
        "files": written - passed,
        "read": read - written,
    }


def nothing_of(batches: Iterator[Any]) -> Iterator[Any]:
    """Takes all rows of a partition, and gives none."""
    for batch in batches:
        if not batch.num_columns:
            yield batch


def vectors(spark: Any) -> Any:
    """Returns a frame of vectors of 30 doubles and a label, which Spark computes."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    numbers = F.array(*(F.rand(seed) for seed in range(FEATURES)))
    return spark.range(0, FRAME_ROWS, 1, PARTITIONS).select(
        array_to_vector(numbers).alias("features"),
        (F.col("id") % 2).cast("double").alias("label"),
    )


def compared(
    name: str,
    ours: list[float],
    theirs: list[float],
    way: str = "",
    asked: float | None = None,
) -> dict[str, Any]:
    """Prints the median of ratios of turns; returns it."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    wanted = f" (at {way} {asked:g})" if asked is not None else ""
    print(
        f"{name}: {st.median(ours):,.2f} and {st.median(theirs):,.2f}, ratio "
        f"{st.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}{wanted}"
    )
    return {"name": name, "ratios": ratios, "asked": asked}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "steady": steady,
    "start": start,
    "files": files,
}


def main() -> None:
    """Prints what was measured, and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS], metavar="PART")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    unknown = {*given.parts} - {*PARTS}
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    print(json.dumps([PARTS[name](given.repeats) for name in given.parts]))


if __name__ == "__main__":
    main()
