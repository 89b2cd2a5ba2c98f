"""Finds the Python blocks of a Markdown page and makes one script of them.

Every block that begins with ```python runs, in the order of the page and in one
namespace, as a reader would type them. A block does not run when the line before
it says why: `<!-- not run: needs a cluster -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

_FENCE = re.compile(r"^( *)```(\w*)")
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->")


def blocks_to_run(page: Path) -> list[tuple[int, list[str]]]:
    """Returns (line number, lines) of each block, the first line being number 1."""
    blocks: list[tuple[int, list[str]]] = []
    lines = page.read_text().splitlines()
    start, kind, indent = 0, None, 0
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if kind is None:
            start, kind, indent = number, fence[2], len(fence[1])
            continue
        above = next((x for x in reversed(lines[: start - 1]) if x.strip()), "")
        if kind == "python" and not _NOT_RUN.search(above):
            body = lines[start : number - 1]
            blocks.append((start + 1, [text[indent:] for text in body]))
        kind = None
    return blocks


def script_of(page: Path) -> str:
    """Returns the blocks as one script in which each line keeps its number."""
    script: list[str] = []
    for start, lines in blocks_to_run(page):
        script += [""] * (start - 1 - len(script))
        script += lines
    return "\n".join(script) + "\n"
