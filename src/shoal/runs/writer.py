"""The process that writes a run: it locks the folder, so that others see it live."""

from __future__ import annotations

import contextlib
from pathlib import Path

from shoal.host.locks import HeldLock
from shoal.host.processes import Process, may_live
from shoal.runs.folder import Folder

LOCK = "writer.lock"


def lock_writer(folder: Folder) -> HeldLock | None:
    """Locks a local run folder for as long as this process writes in it.

    Processes of other containers, which cannot see this one, see the lock. The last
    one to lock it is the writer.

    Returns:
        None on other storage, and where there are no locks.
    """
    if not folder.is_local:
        return None
    with contextlib.suppress(OSError):  # the disk is full, or the folder is gone
        return HeldLock.take(Path(folder.where(LOCK)))
    return None


def writer_may_live(folder: Folder, writer: Process) -> bool:
    """Tells whether the process that writes a run may still live.

    Args:
        folder: Of the run.
        writer: As its events tell.
    """
    has_lock = folder.is_local and writer.lock
    return may_live(writer, Path(folder.where(LOCK)) if has_lock else None)
