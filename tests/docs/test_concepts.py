"""Concept pages and their figures: up to date, complete, and in one form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shoal import strategies

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIGURES = sorted((DOCS / "assets" / "concepts").glob("*.svg"))
PAGES = [p for p in sorted((DOCS / "concepts").glob("*.md")) if p.stem != "index"]
SVG = "{http://www.w3.org/2000/svg}"


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def test_figures_are_those_that_their_source_draws():
    done = subprocess.run(
        [sys.executable, str(DOCS / "figures"), "--check"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("figure", FIGURES, ids=names(FIGURES))
def test_a_figure_says_in_words_what_it_shows(figure: Path):
    """For screen readers: the SVG is one image with a title and a description."""
    root = ElementTree.parse(figure).getroot()
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    found = {root.find(f"{SVG}title"), root.find(f"{SVG}desc")}
    assert {part.get("id") for part in found if part is not None} == set(labels)
    assert all(part is not None and part.text for part in found)


@pytest.mark.parametrize("figure", FIGURES, ids=names(FIGURES))
def test_a_figure_follows_the_theme_and_loads_nothing(figure: Path):
    text = figure.read_text()
    style = text.partition("<style>")[2].partition("</style>")[0]
    shapes = text.replace(style, "")
    assert "url(" not in text
    assert "href" not in text
    # All colours are those of the style, which has a value for each theme.
    assert not re.search(r"#[0-9a-f]{3,6}\b|\b(fill|stroke)=", shapes)
    assert "slate" in style


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_a_concept_begins_with_its_question_and_has_one_figure(page: Path):
    text = page.read_text()
    assert re.search(r"^---\n\n# .+\n\n\*\*[^*]+\?\*\*", text, re.MULTILINE)
    included = re.findall(r'--8<-- "(.+)"', text)
    assert len(included) == 1
    assert (DOCS / included[0]).is_file()
    assert "<figcaption>" in text


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_a_concept_leads_on_to_how_to_and_reference(page: Path):
    end = page.read_text().rpartition("\n## ")[2]
    assert "(../how-to/" in end
    assert "(../reference/" in end


def test_every_figure_is_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    assert [f.name for f in FIGURES if f.name not in text] == []


def test_default_periods_are_those_of_the_strategies():
    text = (DOCS / "concepts" / "synchronous-and-asynchronous.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.+) \|$", text, re.MULTILINE)
    shown = {
        name: 0 if "epoch" in period else int(period)
        for names, period in rows
        for name in re.findall(r"\w+", names)
    }
    exchanging = [n for n in strategies.registry.names() if n in shown]
    assert len(exchanging) == 11
    assert shown == {name: strategies.get(name).period for name in exchanging}


def test_the_glossary_is_in_order():
    words = re.findall(
        r"^## (.+)$", (DOCS / "concepts" / "glossary.md").read_text(), re.M
    )
    assert words == sorted(words, key=str.casefold)
