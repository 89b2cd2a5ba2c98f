"""File systems of this machine: which of them tell of changes by other processes.

Network file systems tell nothing of what another machine writes, and those of
containers not always what the host writes.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

TELLING = frozenset({
    "apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs",
    "overlay", "ramfs", "reiserfs", "tmpfs", "ufs", "xfs", "zfs",
})  # fmt: skip
"""Types of file systems whose changes are all made through this machine's kernel."""


def tells_changes(path: str | os.PathLike[str]) -> bool:
    """Returns whether all changes below a path can be told by this machine.

    Example:
        >>> tells_changes("/proc")
        False
    """
    place = os.path.realpath(path)
    found = ("", "")
    with suppress(OSError, psutil.Error):
        for one in psutil.disk_partitions(all=True):
            point = one.mountpoint.rstrip("/")
            is_above = place == point or place.startswith(f"{point}/")
            # Of two mounts at one place the later one covers the other.
            if is_above and len(point) >= len(found[0]):
                found = point, one.fstype
    return found[1].lower() in TELLING
