"""Pages for users have none of the phrases that CONTRIBUTING replaces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    *(
        page
        for folder in ("tutorial", "how-to", "concepts", "reference")
        for page in sorted((ROOT / "docs" / folder).rglob("*.md"))
    ),
]
REPLACED = (
    "alike, not the same", "bearable", "broken off", "feed a run",
    "has waited for two", "is looked at", "it arrives later", "knows all that",
    "meet by chance", "more of that", "more rarely", "no wish to", "not asked for",
    "old news", "tells all about", "train nothing twice", "waits for anybody",
    "what computes", "where an epoch ends", "whoever", "why so",
)  # fmt: skip
"""Phrases that stood on pages and made readers stop; each has a plain one now."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_phrase_that_was_replaced(page: Path):
    text = " ".join(page.read_text().lower().split())
    assert [p for p in REPLACED if re.search(rf"\b{re.escape(p)}\b", text)] == []
