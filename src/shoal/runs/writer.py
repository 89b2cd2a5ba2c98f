"""The process that writes a run: how it shows that it is alive."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

from shoal.host.locks import HeldLock
from shoal.host.processes import Process, may_live
from shoal.runs.folder import Folder
from shoal.runs.heartbeat import LOST_S, heard_s
from shoal.runs.summary import WriterState

LOCK = "writer.lock"


def lock_writer(folder: Folder) -> HeldLock | None:
    """Locks a local run folder while this process writes in it.

    Processes of other containers, which cannot see this process, see the lock. The last
    one to lock it is the writer.

    Returns:
        None on other storage, and on file systems without locks.
    """
    if not folder.is_local:
        return None
    with contextlib.suppress(OSError):  # the disk is full, or the folder is gone
        return HeldLock.take(Path(folder.where(LOCK)))
    return None


def look_at_writer(folder: Folder, writer: Process) -> WriterState:
    """Returns what is known of the process that writes a run.

    A process that can be seen from here is looked up. Where that is impossible, its
    lock decides, or on object storage the age of its heartbeat.

    Args:
        folder: Folder of the run.
        writer: Writer, from its events.
    """
    has_lock = folder.is_local and writer.lock

    @cache
    def age_s() -> float | None:  # asked at most once
        return heard_s(folder, writer.beat) if writer.beat else None

    def is_heard() -> bool | None:
        age = age_s()
        return None if age is None else age <= LOST_S

    lives = may_live(writer, Path(folder.where(LOCK)) if has_lock else None, is_heard)
    return WriterState(lives, age_s() if age_s.cache_info().currsize else None)
