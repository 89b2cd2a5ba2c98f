"""Elephas on the slots of a Spark session: three trainings in one process.

The first one starts all processes, and its model is judged. An epoch's seconds are the
difference of the second training and one of a single epoch.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

import numpy as np

from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS


def f1_of(model: Any, work: Any) -> float:
    """Returns the F1 of held back samples, by Spark's formula: weighted by class."""
    x, y = work.held_back()
    found = np.asarray(model.predict(x, verbose=0)).argmax(1)
    total = 0.0
    for label in np.unique(y):
        is_found, is_true = found == label, y == label
        f1 = 2 * np.sum(is_found & is_true) / (np.sum(is_found) + np.sum(is_true))
        total += f1 * np.sum(is_true)
    return float(total / len(y))


def main() -> None:
    """Trains."""
    from elephas.spark_model import AsynchronousSparkModel, SparkModel
    from elephas.utils.rdd_utils import to_simple_rdd
    from pyspark import SparkConf, SparkContext

    given = asked(lambda parser: parser.add_argument("--mode", required=True))
    work = WORKS[given.work]
    x, y = work.samples(given.rows)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false", "spark.driver.memory": "1g",
    }  # fmt: skip
    conf = SparkConf().setMaster("local[2]").setAppName("elephas")
    context: Any = SparkContext(conf=conf.setAll([*settings.items()]))
    context.setLogLevel("ERROR")
    read = context.accumulator(0)

    def counted(row: Any) -> Any:
        read.add(1)
        return row

    rows = to_simple_rdd(context, x, y).repartition(2).cache()
    rows.count()
    rows = rows.map(counted)

    def train(epochs: int) -> tuple[float, Any]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        model = (
            SparkModel(work.make(), num_workers=2)
            if given.mode == "synchronous"
            else AsynchronousSparkModel(
                work.make(), frequency=given.mode, num_workers=2, port=port
            )
        )
        began = time.perf_counter()
        model.fit(
            rows, epochs=epochs, batch_size=given.batch, verbose=0, validation_split=0.0
        )
        return time.perf_counter() - began, model.master_network

    first_s, model = train(given.epochs)
    trained_at, trained = time.time(), read.value * given.epochs
    whole_s, _ = train(given.epochs)
    short_s, _ = train(1)
    context.stop()
    answer(
        [(whole_s - short_s) / (given.epochs - 1)], [], trained_at=trained_at,
        first_s=first_s, whole_s=whole_s, f1=f1_of(model, work), trained=trained,
    )  # fmt: skip


if __name__ == "__main__":
    main()
