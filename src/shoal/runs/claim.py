"""Names of runs: date, name, random letters; claimed without overwriting any."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import date
from typing import Any

from shoal.errors import ConfigError
from shoal.runs.events import encode, segment_name
from shoal.runs.folder import Folder

TRIES = 64


def slug(name: str) -> str:
    """Returns a name in small letters, digits and dashes, "run" when none are left.

    Example:
        >>> slug("Higgs, 2 workers"), slug("...")
        ('higgs-2-workers', 'run')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"


def claim(root: Folder, name: str, *, first: Mapping[str, Any], today: date) -> Folder:
    """Makes a run folder that no other run has.

    The claim is the first event, written by an operation that fails if the file
    exists, so that two fits that begin together get two folders.

    Args:
        root: Folder of the runs.
        name: Middle part of the id.
        first: Event that makes the claim; the id is added to it.
        today: Date at the beginning of the id.

    Raises:
        ConfigError: The root cannot be written, or 64 ids in a row were taken.
    """
    start = f"{today.isoformat()}-{slug(name)}"
    for attempt in range(TRIES):
        # Three letters are easy to type; more are used when those are taken.
        letters = secrets.token_hex(8)[: 3 + attempt // 8]
        try:
            folder = root.claim(f"{start}-{letters}")
            folder.create(segment_name(0), encode({**first, "id": folder.name}))
        except FileExistsError:
            continue
        except Exception as error:
            raise ConfigError(
                f"the run folder cannot be written: run={root.url!r} "
                f"({type(error).__name__}: {error}). "
                "Expected a place where this process may create files. "
                "Choose another one with run= or $SHOAL_RUNS, or run=False to keep "
                "nothing."
            ) from error
        return folder
    raise ConfigError(
        f"no free run id was found: run={root.url!r}, {TRIES} ids like {start}-a3f "
        "are taken. Expected a folder that keeps runs only. "
        "Choose another one with run=."
    )
