"""What can be downloaded of a run, and its plan, for a page that watches it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from shoal.errors import ShoalError
from shoal.runs.catalogue import EXPLAINED, PLAN, read_plan
from shoal.runs.folder import Folder
from shoal.runs.logs import LOG_NAME, log_name, ranks_with_logs
from shoal.runs.store import model_file
from shoal.terminal import plain, without_colours

LOOK_S = 15.0
"""Seconds between two looks at a storage: each costs some requests."""
MOST_PLAN = 100_000
"""Characters of a plan that are shown."""


@final
@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found in a run folder.

    Args:
        files: Name in an address -> the file.
        has_logs: Whether a worker has a log.
        told: The plan as it was explained, without control characters; "" without one.
        plan: The plan as JSON; "" without one.
    """

    files: Mapping[str, str]
    has_logs: bool
    told: str
    plan: str


@final
class RunFiles:
    """Looks into the folder of a run, no more often than it may have changed.

    Args:
        folder: The run folder.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, folder: Folder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._clock = folder, clock
        self._looked, self._status = float("-inf"), ""
        self._found = Found(files={}, has_logs=False, told="", plan="")

    def look(self, status: str) -> Found:
        """Returns what is there: the same object as long as nothing is different.

        Args:
            status: Status of the run; when it changes, files come or go.
        """
        has_turned, now = status != self._status, self._clock()
        if not (has_turned or self._folder.is_local or now - self._looked >= LOOK_S):
            return self._found
        self._looked, self._status = now, status
        files = files_of(self._folder)
        told, plan = self._found.told, self._found.plan
        if has_turned or not plan:  # it is written once, and again by a resume
            told, plan = _plan(self._folder)
        found = Found(
            files=files,
            has_logs=any(LOG_NAME.fullmatch(name) for name in files),
            told=told,
            plan=plan,
        )
        if found != self._found:
            self._found = found
        return self._found


def files_of(folder: Folder) -> dict[str, str]:
    """Returns what can be downloaded: the name in an address -> the file."""
    found: dict[str, str] = {}
    with suppress(OSError):
        if folder.exists(PLAN):
            found[PLAN] = PLAN
    for which in ("best", "last"):
        with suppress(OSError):
            path = model_file(folder, which)
            if folder.exists(path):
                found[path.rpartition("/")[2]] = path
    with suppress(ShoalError, OSError):
        for rank in ranks_with_logs(folder):
            found[f"worker-{rank}.log"] = log_name(rank)
    return found


def _plan(folder: Folder) -> tuple[str, str]:
    """Returns the plan of a run as it was explained, and as JSON; "" without one."""
    with suppress(ShoalError, OSError):
        found = read_plan(folder)
        told = str(found.pop(EXPLAINED, ""))[:MOST_PLAN]
        text = json.dumps(found, indent=2)[:MOST_PLAN] if found else ""
        return plain(without_colours(told)), plain(without_colours(text))
    return "", ""
