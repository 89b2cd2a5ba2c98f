"""The end of a `Job` on the head: checks the secret, trains, keeps the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.host.temporary import keras_saving
from shoal.spark.job_secrets import identity_of, one_job, secrets_file

SECRET, SPEC, MODEL, RESULT = "secret", "job.json", "model.keras", "result"
HISTORY = "history.json"
TEXT = "from shoal.spark.job_script import main\n\nmain()\n"
"""The script that is submitted."""


def main(folder: Path = Path()) -> None:
    """Trains what is in a folder, if its secret is known here.

    Nothing but the secret is read before that.

    Raises:
        ConfigError: The secret is unknown, or another job of it runs.
    """
    given = folder / SECRET
    secret = given.read_text()
    given.unlink()
    path = secrets_file()
    identity = identity_of(path, secret)
    with one_job(path, identity):
        spec = json.loads((folder / SPEC).read_text())
        _keep(folder / RESULT, *train(spec, folder / MODEL))


def train(spec: Mapping[str, Any], archive: Path) -> tuple[Any, dict[str, Any]]:
    """Trains on the files of a job; returns the model and its history."""
    import keras

    from shoal.spark.deserialization import deserialize_trainer

    workers = spec["num_executors"] * spec["num_processes"]
    model = keras.saving.load_model(archive, compile=False)
    session = open_session(spec, workers)
    try:
        path: str = spec["data_path"]
        kind = Path(path.rstrip("/")).suffix.removeprefix(".") or "parquet"
        options = {"header": True, "inferSchema": True} if kind == "csv" else {}
        frame = session.read.format(kind).options(**options).load(path)
        trainer = deserialize_trainer(spec["trainer"], model)
        if hasattr(trainer, "num_workers"):
            trainer.num_workers = workers
        trained = trainer.train(frame)
        return trained, trainer.history.history
    finally:
        session.stop()


def open_session(spec: Mapping[str, Any], workers: int) -> Any:
    """Opens a session with the executors and processes of a job.

    Where this machine has no master of Spark, workers run on this machine.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # pyright: ignore[reportPrivateUsage]
    words = {
        "spark.master": SparkConf().get("spark.master") or f"local[{workers}]",
        "spark.executor.instances": str(spec["num_executors"]),
        "spark.executor.cores": str(spec["num_processes"]),
        **spec["conf"],
    }
    builder: Any = SparkSession.builder
    builder = builder.appName(spec["job_name"])
    for name, word in words.items():
        builder = builder.config(name, word)
    return builder.getOrCreate()


def _keep(folder: Path, model: Any, history: dict[str, Any]) -> None:
    folder.mkdir(mode=0o700)
    (folder / HISTORY).write_text(json.dumps(history, default=float))
    with keras_saving():
        model.save(folder / MODEL)
