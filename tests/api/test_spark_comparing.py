"""Comparisons of trainers, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.spark import compare
from shoal.spark.comparing import TrainerComparison, TrainerEntry

FOUND = TrainerComparison(
    metric="f1",
    entries=(
        TrainerEntry(name="single", score=0.78, seconds=10.0, samples=640, steps=10),
        TrainerEntry(name="easgd", score=0.75, seconds=8.0, exchanges=5),
    ),
)


def test_rows_have_what_the_notebook_compares():
    assert FOUND.rows[0] == {
        "trainer": "single", "f1": 0.78, "seconds": 10.0, "samples": 640, "steps": 10,
        "exchanges": None, "improvement_percent": 100.0,
    }  # fmt: skip
    assert FOUND.rows[1]["improvement_percent"] == 125.0
    assert FOUND.time_spent == {"single": 10.0, "easgd": 8.0}
    assert FOUND.table().row_count == 2


def test_both_charts_are_drawn(tmp_path: Path):
    path = FOUND.plot(tmp_path / "trainers.svg")
    assert "improvement" not in path.read_text()
    assert path.stat().st_size > 5000
    with pytest.raises(ConfigError, match="cannot be written"):
        FOUND.plot(tmp_path / "trainers.nothing")


def test_no_trainers_are_refused():
    with pytest.raises(ConfigError, match="Expected a dict from names"):
        compare(None, None, {})
