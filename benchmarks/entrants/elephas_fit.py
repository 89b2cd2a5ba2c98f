"""Elephas on two Spark workers of this machine.

Elephas does not report its epochs. The seconds of an epoch are the difference between a
training of all epochs and a training of one epoch, after a first training that starts
the workers' Python.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from elephas.spark_model import AsynchronousSparkModel
from elephas.utils.rdd_utils import to_simple_rdd
from pyspark import SparkConf, SparkContext

from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS


def main() -> None:
    """Trains."""
    given = asked(
        lambda parser: parser.add_argument("--frequency", default="epoch"),
    )
    work = WORKS[given.work]
    x, y = work.samples(given.rows)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false", "spark.driver.memory": "4g",
    }  # fmt: skip
    conf = SparkConf().setMaster("local[2]").setAppName("elephas")
    context: Any = SparkContext(conf=conf.setAll([*settings.items()]))
    context.setLogLevel("ERROR")
    rows = to_simple_rdd(context, x, y).repartition(2).cache()
    rows.count()

    def train(epochs: int) -> tuple[float, Any]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        model = AsynchronousSparkModel(
            work.make(), frequency=given.frequency, num_workers=2, port=port
        )
        began = time.perf_counter()
        model.fit(
            rows, epochs=epochs, batch_size=given.batch, verbose=0, validation_split=0.0
        )
        return time.perf_counter() - began, model.master_network

    if given.until is not None:  # tells whether this number of epochs suffices
        whole, model = train(given.epochs)
        model.compile("adagrad", work.loss, metrics=["accuracy"])
        _, accuracy = model.evaluate(*work.held_back(), verbose=0)
        context.stop()
        span, is_reached = whole / given.epochs, accuracy >= given.until
        answer(
            [span] * given.epochs, [], reached_at=time.time() if is_reached else None
        )
        return
    train(1)
    (first, _), (whole, _) = train(1), train(given.epochs)
    span = (whole - first) / (given.epochs - 1)
    context.stop()
    answer([first, *[span] * (given.epochs - 1)], [])


if __name__ == "__main__":
    main()
