"""Blocks of pages about Spark, as readers type them, on a session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(
    r"<!-- not run: tests/spark/test_pages.py [^\n]*-->\n```python\n(.*?)```", re.S
)


def blocks_of(page: Path) -> list[str]:
    """The blocks of a page that say that they run here."""
    return BLOCK.findall(page.read_text())


def test_blocks_of_pages_run_one_after_the_other(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path / "runs"))
    names: dict[str, Any] = {}
    for page in ("spark.md", "from-dist-keras.md", "from-elephas.md"):
        blocks = blocks_of(DOCS / "how-to" / page)
        assert blocks, page
        for block in blocks:
            exec(block, names)
    assert names["spark"].sparkContext is spark.sparkContext
    assert names["scored"].count() == len(names["x"])
    assert names["history"].run.summary().samples_committed == 3 * len(names["x"])
    assert names["trainer"].num_updates > 0
