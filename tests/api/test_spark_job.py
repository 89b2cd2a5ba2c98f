"""Jobs of Spark: secrets, the trainer as JSON, and what is sent and fetched."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal import spark, strategies
from shoal.cli.app import app
from shoal.clusters.remote_jobs import Job as Found
from shoal.errors import ClusterError, ConfigError
from shoal.spark.job import Job
from shoal.spark.job_script import HISTORY, MODEL, RESULT, SECRET, SPEC, main
from shoal.spark.job_secrets import add_secret, identity_of, one_job, secrets_file
from tests.habits.cases import make_model, weights_of

GIVEN = ("adagrad", "mse")


# --------------------------------------------------------------------- secrets


def test_a_secret_is_valid_until_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secrets.json"
    first, other = add_secret(path, "ann"), add_secret(path, "bob")
    assert (identity_of(path, first), identity_of(path, other)) == ("ann", "bob")
    assert path.stat().st_mode & 0o777 == 0o600
    assert first not in path.read_text()
    again = add_secret(path, "ann")
    assert identity_of(path, again) == "ann"
    with pytest.raises(ConfigError, match="is not in"):
        identity_of(path, first)


def test_without_a_file_no_secret_is_valid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"shoal spark secret --identity NAME\.$"):
        identity_of(tmp_path / "secrets.json", "any")


def test_a_file_that_others_can_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    secret = add_secret(path, "ann")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"mode 640\)\. Expected mode 600"):
        identity_of(path, secret)
    path.chmod(0o600)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        add_secret(path, "bob")


def test_an_identity_has_one_job_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    runs = pytest.raises(ConfigError, match="a job of 'ann' runs already")
    with one_job(path, "ann"), one_job(path, "bob"), runs, one_job(path, "ann"):
        pass
    with one_job(path, "ann"):
        pass


def test_the_command_prints_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "clusters"))
    done = CliRunner().invoke(app, ["spark", "secret", "--identity", "ann"])
    assert identity_of(secrets_file(), done.output.strip()) == "ann"
    assert secrets_file() == tmp_path / "secrets.json"


def test_nothing_is_read_before_the_secret_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "clusters"))
    add_secret(secrets_file(), "ann")
    (tmp_path / SECRET).write_text("guessed")
    (tmp_path / SPEC).mkdir()  # reading it would raise another error
    with pytest.raises(ConfigError, match="the secret of the job is not in"):
        main(tmp_path)
    assert not (tmp_path / SECRET).exists()


# -------------------------------------------------------------------- trainers


def test_trainers_that_the_head_cannot_make_are_refused() -> None:
    class Mine(spark.DistributedTrainer):
        def strategy(self) -> Any:
            return strategies.LocalSGD()

    for trainer, message in (
        (Mine("model", *GIVEN), r"trainer is a Mine\. Expected a class of shoal"),
        (spark.EnsembleTrainer("model", *GIVEN), "trains several models"),
        (spark.ADAG("model", *GIVEN, callbacks=[object()]), "no form in JSON"),
    ):
        with pytest.raises(ConfigError, match=message):
            Job("s", "n", "/p", 1, 1, trainer)


# ------------------------------------------------------------------ the client


class FakeJobs:
    """A cluster in a folder, whose job ends when it is told to."""

    name = "lab"

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, "running"
        self.removed: list[str] = []

    def submit(self, script: Path, arguments: Any, beside: Sequence[Path]) -> str:
        for path in (script, *beside):
            (self.folder / path.name).write_bytes(path.read_bytes())
        return "job-1"

    def find(self, said: str) -> Found:
        return Found(id=said, state=self.state, script="higgs.py")

    def read(self, job: Found) -> Generator[bytes]:
        yield b"epoch 1\n"

    def stop(self, job: Found, *, grace_s: float) -> int:
        self.state = "stopped"
        return 1

    def remove(self, job: Found) -> None:
        self.removed.append(job.id)

    def fetch(self, job: Found, folder: str, target: Path) -> None:
        with tarfile.open(target, "w:gz") as archive:
            archive.add(self.folder / folder, folder)


def test_a_job_is_sent_followed_and_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model()
    trainer = spark.AEASGD(model, "sgd", "sparse_categorical_crossentropy")
    job = Job("secret", "Higgs now", "/rows", 2, 3, trainer, conf={"a": "b"})
    jobs: Any = FakeJobs(tmp_path)
    assert job.send(jobs) == "job-1"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["higgs-now.py", SECRET, SPEC, MODEL]
    )
    spec = json.loads((tmp_path / SPEC).read_text())
    assert (spec["num_executors"], spec["num_processes"]) == (2, 3)
    assert (spec["data_path"], spec["conf"]) == ("/rows", {"a": "b"})
    assert json.loads(spec["trainer"])["trainer"] == "AEASGD"
    assert not job.is_finished()

    result = tmp_path / RESULT
    result.mkdir()
    (result / HISTORY).write_text('{"loss": [0.5]}')
    (tmp_path / MODEL).rename(result / MODEL)
    jobs.state = "done"
    job.wait_completion()
    assert capsys.readouterr().out == "epoch 1\n"
    assert job.is_finished()
    assert job.get_history() == {"loss": [0.5]}
    for one, other in zip(
        weights_of(job.get_trained_model()), weights_of(model), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    job.destroy_remote_job()
    assert jobs.removed == ["job-1"]


def test_a_failed_job_raises_its_error(tmp_path: Path) -> None:
    job = Job(
        "secret", "higgs", "/rows", 1, 1, spark.SingleTrainer(make_model(), *GIVEN)
    )
    with pytest.raises(ConfigError, match="was not sent yet"):
        job.is_finished()
    jobs: Any = FakeJobs(tmp_path)
    job.send(jobs)
    with pytest.raises(ConfigError, match="was sent already, as job-1"):
        job.send(jobs)
    jobs.state = "failed (1)"
    with pytest.raises(ClusterError, match=r"failed \(1\).*shoal jobs logs job-1"):
        job.wait_completion()
    job.cancel()
    assert jobs.state == "stopped"


@pytest.mark.parametrize("name", ["num_executors", "num_processes"])
def test_numbers_are_at_least_one(name: str) -> None:
    numbers: dict[str, Any] = {"num_executors": 1, "num_processes": 1, name: 0}
    with pytest.raises(ConfigError, match=f"{name}=0 cannot be used"):
        Job("s", "n", "/p", trainer=spark.SingleTrainer("m", *GIVEN), **numbers)
