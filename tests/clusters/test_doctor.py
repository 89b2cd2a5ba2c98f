"""Findings of `shoal doctor`: missing parts, and versions that do not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.clusters import doctor
from shoal.clusters.doctor import Signs, examine, read_signs
from shoal.clusters.version_conflicts import Finding, clashes, misfits

GOOD = Signs(
    python="3.11.7", system="Linux x86_64", cores=4, memory=8 << 30, backend="jax",
    packages={"keras": "3.12.0", "jax": "0.6.2", "jaxlib": "0.6.2", "numpy": "2.1.0"},
)  # fmt: skip


def wrong(signs: Signs) -> dict[str, Finding]:
    return {each.name: each for each in examine(signs) if each.state == "wrong"}


def test_a_machine_that_trains_has_nothing_wrong() -> None:
    assert wrong(GOOD) == {}
    absent = {each.name for each in examine(GOOD) if each.state == "absent"}
    assert {"torch", "tensorflow", "Ray", "Spark", "Java", "GPUs"} <= absent


def test_a_configured_backend_that_is_not_installed() -> None:
    found = wrong(replace(GOOD, backend="torch"))
    assert found["torch"].fix == "pip install 'shoal[torch]'"


def test_an_unknown_backend() -> None:
    found = wrong(replace(GOOD, backend="jay"))
    assert found["KERAS_BACKEND"].fix == "set it to one of jax, tensorflow, torch"


def test_a_gpu_that_the_backend_cannot_use() -> None:
    assert "jax[cuda12]" in wrong(replace(GOOD, gpus=("0",)))["GPUs"].fix
    found = wrong(replace(GOOD, gpus=("0",), reaching=("torch",)))["GPUs"]
    assert "KERAS_BACKEND=torch" in found.fix
    assert wrong(replace(GOOD, gpus=("0",), reaching=("jax",))) == {}


def test_spark_without_java_and_with_one_that_is_too_old() -> None:
    packages = {**GOOD.packages, "pyspark": "4.0.0"}
    assert "Java 17" in wrong(replace(GOOD, packages=packages))["Java"].fix
    old = replace(GOOD, packages=packages, java='openjdk version "11.0.2" 2019')
    assert wrong(old)["pyspark and java"].fix == "install Java 17"
    new = replace(GOOD, packages=packages, java='openjdk version "17.0.2" 2022')
    assert wrong(new) == {}
    newer = replace(GOOD, packages=packages, java='openjdk version "24" 2025-03-18')
    assert wrong(newer)["pyspark and java"].fix == "install Java 17"
    fits = {**packages, "pyspark": "4.1.0"}
    assert wrong(replace(newer, packages=fits)) == {}


def test_a_disk_that_is_full() -> None:
    assert "runs" in wrong(replace(GOOD, free={"runs": 1 << 20}))
    assert wrong(replace(GOOD, free={"shared memory": 1 << 20})) == {}


@pytest.mark.parametrize(
    ("packages", "name"),
    [
        ({"jax": "0.6.2", "jaxlib": "0.5.0"}, "jax and jaxlib"),
        ({"tensorflow": "2.16.1", "numpy": "2.0.0"}, "tensorflow and numpy"),
        ({"pyspark": "3.5.1", "pandas": "3.0.0"}, "pyspark and pandas"),
        (
            {"tensorflow": "2.18.0", "tensorflow-cpu": "2.18.0"},
            "tensorflow and tensorflow-cpu",
        ),
    ],
)
def test_versions_that_do_not_fit_are_found(
    packages: dict[str, str], name: str
) -> None:
    assert [each.name for each in clashes(packages)] == [name]
    assert clashes({key: packages[key] for key in list(packages)[:1]}) == []


def test_requirements_of_absent_extras_are_ignored():
    wanted = {
        "shoal": ("ray[default]<3,>=2.50; extra == 'ray'", "pandas<3; extra == 'spark'",
                  "pandas<4; extra == 'demo'", "keras<4,>=3.10",
                  "numpy<1; sys_platform == 'plan9'"),
        "s3fs": ("fsspec<2026.9.1,>=2026.9.0",),
    }  # fmt: skip
    packages = {"ray": "2.49.2", "pandas": "3.0.1", "keras": "3.12.0.dev1",
                "s3fs": "2026.9.0", "fsspec": "2026.10.0", "numpy": "2"}  # fmt: skip
    found = {one.name: one.fix for one in misfits(packages, wanted)}
    assert found == {
        "s3fs and fsspec": "pip install 'fsspec<2026.9.1,>=2026.9.0'",
        "shoal and ray": "pip install 'ray[default]<3,>=2.50'",
    }
    assert misfits({"ray": "2.60.0"}, wanted) == []


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    signs = read_signs("jax", str(tmp_path / "to" / "come"))
    assert signs.aws == signs.java == ""
    assert "keras" in signs.packages
    assert signs.free["runs"] > 0
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("")
    assert doctor._aws({}, tmp_path) == "~/.aws/credentials"
    assert doctor._aws({"AWS_PROFILE": "me"}, tmp_path) == "$AWS_PROFILE"


@pytest.mark.process
def test_the_command_prints_findings_and_sets_its_exit_status() -> None:
    command = [sys.executable, "-m", "shoal", "doctor", "--json"]
    variables = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=variables
    )
    found = json.loads(done.stdout)
    assert {"Python", "Keras", "jax"} <= {each["name"] for each in found}
    assert done.returncode == any(each["state"] == "wrong" for each in found)
