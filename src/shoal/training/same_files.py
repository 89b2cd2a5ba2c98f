"""Checks that the files of a resumed run have not changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.data.files.changes import changes_of
from shoal.errors import DataError

SHOWN = 3


def check_files(name: str, source: Any, warn: Callable[[str], None]) -> None:
    """Refuses files that changed since the run began; warns of doubtful and new ones.

    Args:
        name: Their name for the user: "the data" or "the validation data".
        source: Source of the run; one that reads no files is not checked.
        warn: Reports a line to the user and the run.

    Raises:
        DataError: A file is gone, of another size, or of another version.
    """
    found = changes_of(source)
    if found.certain:
        raise DataError(
            f"files of {name} changed since the run began: {_listed(found.certain)}. "
            "Expected the files that it was trained on, as each sample counts once. "
            "Put them back, or call fit to train on the new ones."
        )
    if found.likely:
        warn(
            f"files of {name} were written to since the run began: "
            f"{_listed(found.likely)}. The run goes on; if their contents changed, "
            "stop it and call fit to train on the new ones"
        )
    if found.new:
        warn(
            f"there are files beside {name} of the run that it does not read: "
            f"{_listed(found.new)}. It goes on with the files that it began with; to "
            "train on the others as well, call fit"
        )


def _listed(changes: Sequence[str]) -> str:
    more = f" and {len(changes) - SHOWN:,} more" if len(changes) > SHOWN else ""
    return ", ".join(changes[:SHOWN]) + more
