"""The process that writes a run: it locks the folder, to show that it is alive."""

from __future__ import annotations

import contextlib
from pathlib import Path

from shoal.host.locks import HeldLock
from shoal.host.processes import Process, may_live
from shoal.runs.folder import Folder

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


def writer_may_live(folder: Folder, writer: Process) -> bool:
    """Returns whether the process that writes a run may be alive.

    Args:
        folder: Folder of the run.
        writer: Writer, from its events.
    """
    has_lock = folder.is_local and writer.lock
    return may_live(writer, Path(folder.where(LOCK)) if has_lock else None)
