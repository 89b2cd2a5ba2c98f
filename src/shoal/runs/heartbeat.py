"""Heartbeats of drivers whose runs are on object storage.

No process can look at a process of another machine. So the driver writes a small object
again and again, and a reader asks the storage for its age, which the storage tells by
its own clock: the clocks of two machines are never compared. This file decides how old
it may be.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from contextlib import suppress
from typing import final

from shoal.host.processes import Process
from shoal.runs.folder import Folder
from shoal.runs.storage_clock import age_s, has_clock

HEARTBEATS = "heartbeats"
BEAT_S = 20.0
LOST_S = 600.0
"""Age at which a driver counts as lost: it may have been suspended, or cut off from
the storage, for a while."""
LATE_S = 3 * BEAT_S
"""Age that is worth a word."""
CLOSE_S = 5.0

_NAME = re.compile(r"[0-9a-f]{16}")


@final
class Heartbeat:
    """The heartbeat of this process for one run, until it is closed.

    A fork of this process has no thread, and so no heartbeat.

    Args:
        folder: The run folder.

    Attributes:
        name: Its name for readers; random, so that no process renews another's.
    """

    def __init__(self, folder: Folder) -> None:
        self.name = secrets.token_hex(8)
        self._folder, self._end = folder, threading.Event()
        self._thread = threading.Thread(
            target=self._beat, name="shoal-heartbeat", daemon=True
        )
        self._thread.start()

    def close(self, *, remove: bool) -> None:
        """Ends it, with a limit. Safe to repeat.

        Args:
            remove: The run has a final event, and nobody will ask: removes this one,
                and those of drivers that were lost.
        """
        self._end.set()
        self._thread.join(CLOSE_S)
        if remove:
            with suppress(Exception):  # small objects stay
                for name in self._folder.names(HEARTBEATS):
                    file = f"{HEARTBEATS}/{name}"
                    self._folder.fs.rm_file(self._folder.where(file))

    def _beat(self) -> None:
        here, number = Process.here().fields, 0
        while True:
            content = json.dumps({**here, "number": number}).encode() + b"\n"
            # Storage that cannot be reached now may be reached by the next one.
            with suppress(Exception):
                self._folder.write(_file(self.name), content)
            number += 1
            if self._end.wait(BEAT_S):
                return


def start_heartbeat(folder: Folder) -> Heartbeat | None:
    """Begins a heartbeat where a reader can ask for its age.

    Returns:
        None on local disks, which have locks, and on storage whose clock is not known.
    """
    return Heartbeat(folder) if has_clock(folder) else None


def heard_s(folder: Folder, name: str) -> float | None:
    """Returns the seconds since a heartbeat, by the clock of the storage.

    Args:
        folder: The run folder.
        name: Name of the heartbeat, from an event.

    Returns:
        None if that is unknown: there is none, or the storage cannot be reached.
    """
    if not _NAME.fullmatch(name) or not has_clock(folder):
        return None
    try:
        return age_s(folder, _file(name))
    except Exception:  # a file system of fsspec may raise anything
        return None


def last_heard(seconds: float) -> str:
    """Returns in words when a driver was last heard.

    Example:
        >>> last_heard(250.0)
        "its driver was last heard 4 minutes ago, by the storage's clock"
    """
    return f"its driver was last heard {_ago(seconds)} ago, by the storage's clock"


def unless_heard(seconds: float) -> str:
    """Adds when a driver that may be alive counts as lost.

    Example:
        >>> unless_heard(250.0)
        "its driver was last heard 4 minutes ago, ... counts as lost after 10 minutes"
    """
    return f"{last_heard(seconds)}, and it counts as lost after {_ago(LOST_S)}"


def _ago(seconds: float) -> str:
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {name}s"
    return f"{seconds:.0f} seconds"


def _file(name: str) -> str:
    return f"{HEARTBEATS}/{name}.json"
