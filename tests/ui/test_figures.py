"""Figures of the docs in a real browser: text that can be read, and no overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parents[2] / "docs" / "assets" / "concepts"
FIGURES = sorted(FOLDER.glob("*.svg"))
SPACE_ON_A_PHONE = 328  # of 360 pixels, without the page's margins
SMALLEST_TEXT = 10.5  # pixels

PAGE = """<!doctype html><html><body data-md-color-scheme="{scheme}"
style="margin:0;font-family:{family};width:{width}px"><figure style="margin:0">{svg}
</figure></body></html>"""

BOXES = """() => {
  const inside = document.querySelector("svg").getBoundingClientRect();
  return {
    inside: [inside.left, inside.top, inside.right, inside.bottom],
    texts: [...document.querySelectorAll("svg text")].map(text => {
      const box = text.getBoundingClientRect();
      const scale = text.getScreenCTM().a;
      return {
        words: text.textContent,
        size: parseFloat(getComputedStyle(text).fontSize) * scale,
        box: [box.left, box.top, box.right, box.bottom],
      };
    }),
  };
}"""

Box = list[float]


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    found = browser.new_page()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """In place of the check of all tests: a browser starts processes as it needs them.

    They end with the browser, and it with this file.
    """


def share(one: Box, other: Box) -> float:
    """Returns the pixels by which two boxes overlap in their smaller direction."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return min(across, down)


# DejaVu is the widest of the fonts that a system may take for sans-serif.
@pytest.mark.parametrize("family", ["sans-serif", "DejaVu Sans"])
@pytest.mark.parametrize("width", [SPACE_ON_A_PHONE, 690])
@pytest.mark.parametrize("figure", FIGURES, ids=[f.stem for f in FIGURES])
def test_text_can_be_read_and_does_not_overlap(
    page: Any, figure: Path, width: int, family: str
):
    page.set_content(
        PAGE.format(scheme="slate", family=family, width=width, svg=figure.read_text())
    )
    found = page.evaluate(BOXES)
    left, top, right, bottom = found["inside"]
    for text in found["texts"]:
        box = text["box"]
        assert text["size"] >= SMALLEST_TEXT, text
        assert box[0] >= left - 0.5, text
        assert box[2] <= right + 0.5, text
        assert box[1] >= top - 1, text
        assert box[3] <= bottom + 1, text
    texts = found["texts"]
    # Boxes of lines have room above and below their letters.
    overlaps = [
        (one["words"], other["words"])
        for place, one in enumerate(texts)
        for other in texts[place + 1 :]
        if share(one["box"], other["box"]) > 2
    ]
    assert overlaps == []
