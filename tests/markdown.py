"""Finds the blocks of a Markdown page, and makes one script of its Python blocks.

Every block that begins with ```python runs, in the order of the page and in one
namespace, as a reader would type them. A block does not run when the line before
it says why: `<!-- not run: needs a cluster -->`. A block with a title is a file that
the reader saves, or what is typed in a terminal: `tests/support/tutorial.py` runs it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import final

_FENCE = re.compile(r"^( *)```(\w*)(?: +title=\"([^\"]+)\")?")
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->")


@final
@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page.

    Args:
        kind: Word after the fence, such as "python".
        title: Its title; "" for none.
        above: Last line above it that is not empty.
        start: Number of its first line; the page's first is 1.
        lines: Its lines, without indentation of the fence.
    """

    kind: str
    title: str
    above: str
    start: int
    lines: list[str]

    @property
    def is_run(self) -> bool:
        """Whether the line above does not exempt it."""
        return not _NOT_RUN.search(self.above)

    @property
    def text(self) -> str:
        """Its lines as one text."""
        return "\n".join(self.lines) + "\n"


def blocks_of(page: Path) -> list[Block]:
    """Returns all fenced blocks of a page."""
    blocks: list[Block] = []
    lines = page.read_text().splitlines()
    start, opened = 0, None
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            start, opened = number, fence
            continue
        above = next((x for x in reversed(lines[: start - 1]) if x.strip()), "")
        body, indent = lines[start : number - 1], len(opened[1])
        blocks.append(
            Block(
                kind=opened[2], title=opened[3] or "", above=above, start=start + 1,
                lines=[text[indent:] for text in body],
            )
        )  # fmt: skip
        opened = None
    return blocks


def blocks_to_run(page: Path) -> list[Block]:
    """Returns the Python blocks without a title that are not exempted."""
    found = (b for b in blocks_of(page) if b.kind == "python" and not b.title)
    return [block for block in found if block.is_run]


def script_of(page: Path) -> str:
    """Returns the blocks as one script in which each line keeps its number."""
    script: list[str] = []
    for block in blocks_to_run(page):
        script += [""] * (block.start - 1 - len(script))
        script += block.lines
    return "\n".join(script) + "\n"
