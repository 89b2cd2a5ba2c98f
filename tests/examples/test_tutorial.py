"""Parts 1, 2, 3 and 6 of the tutorial, word for word.

Part 4 is in `tests/clusters`, part 5 in `tests/spark`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.runs.catalogue import list_runs
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.support.tutorial import TUTORIAL, Reader

pytestmark = [pytest.mark.process, pytest.mark.examples, pytest.mark.timeout(600)]
FIRST = TUTORIAL / "1-laptop.md"
ROWS = 250_000


def test_your_laptop(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read(FIRST)
        assert reader.failures() == []
    [run] = list_runs(str(tmp_path / "shoal-runs"))
    assert run.samples_committed == 2 * ROWS
    assert (tmp_path / "late.keras").is_file()


def test_watch_kill_resume(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.save(FIRST)
        reader.read(TUTORIAL / "2-watch-and-resume.md")
        [failure] = reader.failures()
        assert failure.startswith("failed with 130: shoal fit")  # it was stopped
    [run] = list_runs(str(tmp_path / "shoal-runs"))
    assert run.status == "finished"
    assert run.samples_committed == run.samples_expected == 40 * ROWS
    kinds = [event["kind"] for event in read_events(Folder.at(run.url))]
    assert "worker_replaced" in kinds


def test_compare_strategies(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.save(FIRST)
        reader.read(TUTORIAL / "3-compare.md")
        assert reader.failures() == []
    assert (tmp_path / "comparison.png").is_file()
    assert len(list_runs(str(tmp_path / "comparison"))) == 5


def test_aws_as_far_as_it_needs_no_account(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read(TUTORIAL / "6-aws.md")
        assert reader.failures() == []
        assert "An hour costs" in reader.shown()
    assert json.loads((tmp_path / "policy.json").read_text())["Statement"]
    assert "AWSTemplateFormatVersion" in (tmp_path / "template.yaml").read_text()
    assert "Calls of AWS, in order" in (tmp_path / "dry-run.txt").read_text()
