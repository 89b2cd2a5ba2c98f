"""Writes the figures of the concept pages, or says which are out of date.

Run: `python docs/figures [--check]`; `make generate` and `make generated` do.
"""

from __future__ import annotations

import sys
from pathlib import Path

# `python docs/figures` puts this folder on the path, and not the one above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from figures.folder import FOLDER, figures


def main() -> int:
    """Writes the figures; with `--check` writes nothing, and returns 1 for old ones."""
    drawn = figures()
    old = [
        name
        for name, text in drawn.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        for name in old:
            print(f"{FOLDER / name} is out of date: run 'make generate' and commit.")
        return 1 if old else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in old:
        (FOLDER / name).write_text(drawn[name])
        print(f"wrote {FOLDER / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
