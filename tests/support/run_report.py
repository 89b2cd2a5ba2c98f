"""What a failed test shows of its runs: the events that tell what happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.runs.events import read_events
from shoal.runs.folder import Folder

USUAL = (
    "checkpoint_written",
    "epoch_ended",
    "epoch_started",
    "exchanges",
    "leases",
    "node_used",
)
"""Kinds of events that any run has many of."""
MOST = 40
LONGEST = 300


def sections(folder: Path) -> Iterator[tuple[str, str]]:
    """Returns, for each run in a folder, a title and the last of its events.

    Args:
        folder: Temporary folder of the test.
    """
    for events in sorted(folder.rglob("events")):
        with suppress(Exception):  # a broken run is what some tests are about
            found = list(read_events(Folder.at(str(events.parent))))
            told = [event for event in found if event["kind"] not in USUAL]
            left = f"the last {MOST} of {len(told)}" if len(told) > MOST else "all"
            title = f"Events of {events.parent} ({left}; {len(found)} with usual ones)"
            yield title, "\n".join(map(_line, told[-MOST:]))


def _line(event: dict[str, Any]) -> str:
    rest = {name: event[name] for name in event if name not in ("kind", "time", "v")}
    return f"{event['kind']} {rest}"[:LONGEST]
