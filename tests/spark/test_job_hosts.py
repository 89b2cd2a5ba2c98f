"""A job that is sent to the head of a cluster over real SSH."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import shoal
from shoal import spark
from shoal.cli.app import app
from shoal.errors import ClusterError
from shoal.spark.job import Job
from tests.habits.cases import data, make_model
from tests.hosts import hosts_with_sshd, skip_or_fail
from tests.spark.conftest import needs_java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.spark_long,
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.filterwarnings("default"),
]


def test_a_job_trains_on_the_head_and_its_result_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_java()
    if find_spec("ray") is None:
        skip_or_fail("Ray: pip install 'shoal[ray]'")
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "known"))
    x, y = data(320)
    columns = {"features": pa.array(x.tolist(), pa.list_(pa.float32())), "label": y}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    (tmp_path / "sshd").mkdir()
    variables = {
        "PYTHONPATH": str(Path(shoal.__file__).parents[1]),
        "PYSPARK_PYTHON": sys.executable,
    }
    with hosts_with_sshd(1, tmp_path / "sshd", variables) as (_, server):
        [address] = server.addresses
        hosts = tmp_path / "hosts.yaml"
        hosts.write_text(
            f"name: lab\nuser: root\nssh: ssh -F {server.client}\n"
            f"object_store_mib: 80\nenvironment: {{python: {sys.executable}}}\n"
            f"hosts: [{address}]\n"
        )
        done = CliRunner().invoke(app, ["cluster", "up", str(hosts)])
        assert done.exit_code == 0, done.output
        try:
            send(server.ssh, address, tmp_path)
        finally:
            CliRunner().invoke(app, ["cluster", "down", "lab"])


def send(ssh: tuple[str, ...], address: str, folder: Path) -> None:
    """Sends jobs, one of whose secrets is unknown."""
    x, y = data(320)
    trainer = spark.DOWNPOUR(
        make_model(), "sgd", "sparse_categorical_crossentropy", batch_size=16,
        num_epoch=2, verbose=0,
    )  # fmt: skip
    words = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "600m",
        "spark.local.dir": str(folder / "spark"),
    }  # fmt: skip
    rows = f"file://{folder}/rows.parquet"
    made = subprocess.run(
        [*ssh, f"root@{address}", sys.executable, "-m", "shoal", "spark", "secret",
         "--identity", "ann"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    guessed = Job("guessed", "small", rows, 1, 2, trainer, conf=words)
    guessed.send("lab")
    with pytest.raises(ClusterError, match="failed"):
        guessed.wait_completion()
    guessed.destroy_remote_job()

    job = Job(made.stdout.strip(), "small", rows, 1, 2, trainer, conf=words)
    job.send("lab")
    job.wait_completion()
    assert job.is_finished()
    assert len(job.get_history()["loss"]) == 2
    _, accuracy = job.get_trained_model().evaluate(x, y, verbose=0)
    assert accuracy > 0.5
    job.destroy_remote_job()
    listed = CliRunner().invoke(app, ["jobs", "--cluster", "lab"])
    assert "No jobs" in listed.output
