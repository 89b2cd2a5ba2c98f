"""Part 5 of the tutorial, word for word, with a session of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.runs.catalogue import list_runs
from tests.support.tutorial import TUTORIAL, Reader

pytestmark = [
    pytest.mark.spark, pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(600)
]  # fmt: skip


def test_spark(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.save(TUTORIAL / "1-laptop.md")
        reader.read(TUTORIAL / "5-spark.md")
        assert reader.failures() == []
    [run] = list_runs(str(tmp_path / "shoal-runs"))
    assert run.samples_committed == 3 * 50_000
