"""Bulk memory between processes of one host: a mapped file that has no name.

The server makes the file, the worker maps it through the server's open descriptor, and
so does a standby of this host. On systems without such files, they have a name until
the worker has mapped it; the names contain the tag of their run, and the end of the run
removes those of a server that died. Python before 3.13 unlinks shared memory that a
child merely attached, so files are mapped by hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.host.temporary import temporary_folder

PREFIX = "shoal-slot-"
_MARK_BYTES = 64  # hex digits; the vectors behind them keep their alignment
_SLOT = re.compile(rf"/proc/\d+/fd/\d+|(?:/(?!\.\.?/)[^/\0]+)*/{PREFIX}[\w-]+")


def slot_folders() -> list[Path]:
    """Folders for slots: shared memory first, then the temporary directory."""
    shared = Path("/dev/shm")
    folders = [shared] if shared.is_dir() else []
    with contextlib.suppress(OSError):  # removed, and there is no other
        folders.append(temporary_folder())
    return folders


def tag_of(secret: bytes) -> str:
    """Tag of a run in the names of its slots; it does not reveal the secret."""
    return hashlib.sha256(b"slots" + secret).hexdigest()[:12]


def sweep(tag: str) -> None:
    """Removes the names that a killed server of a run left."""
    for folder in slot_folders():
        with contextlib.suppress(OSError):  # the folder was removed
            # No glob: each one would leave its compiled pattern in Python's caches.
            for path in folder.iterdir():
                if path.name.startswith(f"{PREFIX}{tag}-"):
                    path.unlink(missing_ok=True)


def _files(tag: str) -> Iterator[tuple[int, Path, bool]]:
    """Opens empty files: descriptor, path, whether the path outlives the descriptor."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with contextlib.suppress(OSError):
            handle = os.memfd_create(f"{PREFIX}{tag}")
            yield handle, Path(f"/proc/{os.getpid()}/fd/{handle}"), False
    for folder in slot_folders():
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(prefix=f"{PREFIX}{tag}-", dir=folder)
            yield handle, Path(name), True


class SlotOffer(NamedTuple):
    """Data for other processes of this host to map a slot.

    Args:
        path: Path of its file.
        mark: Mark at the start of its memory.
    """

    path: str
    mark: str


class Slot:
    """A mapped file of `size` usable bytes behind a secret mark.

    Both sides hold a `Slot`; only the side that made it knows a path to unlink.

    Args:
        memory: The whole file.
        size: Bytes behind the mark.
        path: Path under which others of this host may open it; a name until `unlink`.
        descriptor: Descriptor, open as long as the path needs it; None for a named
            file.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        size: int,
        path: Path | None = None,
        descriptor: int | None = None,
    ) -> None:
        self._memory: mmap.mmap | None = memory
        self._descriptor = descriptor
        self.path = path
        self.size = size
        self.bytes = memoryview(memory)[_MARK_BYTES : _MARK_BYTES + size]

    @classmethod
    def make(cls, size: int, tag: str = "") -> tuple[Slot, str] | None:
        """Makes a slot and its mark; returns None if no folder has room for it.

        Args:
            size: Bytes.
            tag: Tag of the run.
        """
        mark = secrets.token_hex(_MARK_BYTES // 2)
        total = _MARK_BYTES + size
        for handle, path, has_name in _files(tag):
            try:
                # Takes the memory now. In a file that merely has the length, a write
                # to a page that does not fit would end the process with SIGBUS.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(handle, 0, total)
                else:
                    os.ftruncate(handle, total)
                memory = mmap.mmap(handle, total)
            except OSError:
                os.close(handle)
                if has_name:
                    path.unlink(missing_ok=True)
                continue
            memory[:_MARK_BYTES] = mark.encode()
            # A file without a name is reached through its descriptor, which therefore
            # stays open.
            if has_name:
                os.close(handle)
                handle = None
            return cls(memory, size, path, handle), mark
        return None

    @classmethod
    def attach(cls, path: str, size: int, mark: str) -> Slot | None:
        """Maps a slot of the other side; returns None if it is not on this host.

        The other side names a file here: only names of slots are opened.
        """
        if not _SLOT.fullmatch(path):
            return None
        try:
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would block
            handle = os.open(path, flags)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    return None
                memory = mmap.mmap(handle, _MARK_BYTES + size)
            finally:
                os.close(handle)
        except (OSError, ValueError):
            return None
        # On another host, or in another container, the same path can be another file.
        if memory[:_MARK_BYTES] != mark.encode():
            memory.close()
            return None
        return cls(memory, size)

    @property
    def offer(self) -> SlotOffer | None:
        """Data for others of this host to map it; None if they no longer can."""
        if self.path is None or self._memory is None:
            return None
        mark = self._memory[:_MARK_BYTES].decode()
        return SlotOffer(str(self.path), mark)

    def unlink(self) -> None:
        """Removes the name; the memory lives while a process maps it."""
        if self._descriptor is None and self.path is not None:
            self.path.unlink(missing_ok=True)
            self.path = None

    def array(self, offset: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
        """A view of part of the slot. Release all views before `close`."""
        return np.frombuffer(self.bytes, dtype, count, offset)

    def close(self) -> None:
        """Unlinks and unmaps; views that are still held keep the memory alive."""
        self.unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = self.path = None
        if self._memory is None:
            return
        memory, self._memory = self._memory, None
        try:
            self.bytes.release()
            memory.close()
        except BufferError:  # an array still views it; the mapping ends with the array
            return
