"""A cluster on AWS where the extra `aws` is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from tests.clusters.aws_files import write


@pytest.fixture(autouse=True)
def _no_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("boto3", "botocore", "botocore.config"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "known"))


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "up", "FILE"],
        ["cluster", "down", "prod", "--hosts", "FILE"],
        ["cluster", "logs", "prod", "--hosts", "FILE"],
        ["cluster", "list", "--all-regions"],
    ],
)  # fmt: skip
def test_the_extra_is_named(words: list[str], tmp_path: Path):
    path = str(write(tmp_path))
    said = [path if word == "FILE" else word for word in words]
    done = CliRunner().invoke(app, said, prog_name="shoal")
    assert done.exit_code not in (0, None)
    assert "boto3 is not installed" in done.output
    assert "pip install 'shoal[aws]'" in done.output
    assert not list((tmp_path / "known").glob("*.json"))


def test_a_dry_run_needs_no_extra(tmp_path: Path):
    words = ["cluster", "up", str(write(tmp_path)), "--dry-run"]
    done = CliRunner().invoke(app, words, prog_name="shoal")
    assert done.exit_code == 0, done.output
    assert "An hour costs" in done.output
