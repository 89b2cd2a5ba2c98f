"""A job's script, as the head runs it: it opens a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal import spark
from shoal.spark.job import Job
from shoal.spark.job_script import RESULT
from shoal.spark.job_secrets import add_secret
from tests.api.test_spark_job import FakeJobs
from tests.habits.cases import data, make_model
from tests.spark.conftest import needs_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]


def test_a_job_trains_with_the_workers_that_it_asks_for(tmp_path: Path) -> None:
    needs_java()
    x, y = data(320)
    columns = {"features": pa.array(x.tolist(), pa.list_(pa.float32())), "label": y}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    folder = tmp_path / "files"
    folder.mkdir()
    trainer = spark.DOWNPOUR(
        make_model(), "sgd", "sparse_categorical_crossentropy", batch_size=16,
        num_epoch=2, verbose=0,
    )  # fmt: skip
    secret = add_secret(tmp_path / "secrets.json", "ann")
    rows = f"file://{tmp_path}/rows.parquet"
    words = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "600m",
        "spark.local.dir": str(tmp_path / "spark"),
    }  # fmt: skip
    job = Job(secret, "small", rows, 1, 2, trainer, conf=words)
    jobs: Any = FakeJobs(folder)
    job.send(jobs)
    variables = {
        "SHOAL_CLUSTERS": str(tmp_path / "clusters"),
        "SHOAL_RUNS": str(tmp_path / "runs"),
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "small.py"],
        cwd=folder, env=os.environ | variables, capture_output=True, text=True,
        check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert (folder / RESULT).is_dir()
    assert len(job.get_history()["loss"]) == 2
    _, accuracy = job.get_trained_model().evaluate(x, y, verbose=0)
    assert accuracy > 0.5
