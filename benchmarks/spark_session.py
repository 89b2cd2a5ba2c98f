"""Spark sessions of benchmarks, and what trains on them."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import keras


@contextmanager
def session(master: str = "local[2]", **settings: str) -> Generator[Any]:
    """Opens a session whose tasks run by this interpreter, and stops it.

    Args:
        master: Spark's master.
        settings: Settings of Spark, with "_" for ".".
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="spark-bench-") as folder:
        words = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            **{name.replace("_", "."): word for name, word in settings.items()},
        }
        builder: Any = SparkSession.builder
        builder = builder.master(master).appName("shoal-benchmarks")
        for name, word in words.items():
            builder = builder.config(name, word)
        found = builder.getOrCreate()
        found.sparkContext.setLogLevel("ERROR")
        try:
            yield found
        finally:
            found.stop()


class Marks(keras.callbacks.Callback):
    """Notes the time of the first step, and the seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None
        self.spans: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the first step."""
        self.first = self.first or time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops the clock."""
        self.spans.append(time.perf_counter() - self._began)
