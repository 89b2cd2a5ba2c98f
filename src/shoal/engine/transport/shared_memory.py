"""Bulk memory between processes of one host: a mapped file that has no name.

The server makes the file, the worker maps it through the server's open descriptor, and
so does a standby of this host. Where the system has no such files, they have a name
until the worker has said that it has mapped it; names of a server that dies before
carry the tag of their run, and whoever ends the run sweeps them. Python before 3.13
unlinks shared memory that a child merely attached, so files are mapped by hand.
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
_MARK_BYTES = 64
_SLOT = re.compile(rf"/proc/\d+/fd/\d+|(?:/(?!\.\.?/)[^/\0]+)*/{PREFIX}[\w-]+")


def slot_folders() -> list[Path]:
    """Where slots may lie: shared memory first, then the temporary directory."""
    shared = Path("/dev/shm")
    folders = [shared] if shared.is_dir() else []
    with contextlib.suppress(OSError):  # removed, and there is no other
        folders.append(temporary_folder())
    return folders


def tag_of(secret: bytes) -> str:
    """Names a run in the names of its slots, and tells nothing of its secret."""
    return hashlib.sha256(b"slots" + secret).hexdigest()[:12]


def sweep(tag: str) -> None:
    """Removes the names that a server of a run left when it was killed."""
    for folder in slot_folders():
        with contextlib.suppress(OSError):  # removed with all that was in it
            # No glob: each would leave its pattern, compiled, in Python's caches.
            for path in folder.iterdir():
                if path.name.startswith(f"{PREFIX}{tag}-"):
                    path.unlink(missing_ok=True)


def _files(tag: str) -> Iterator[tuple[int, Path, bool]]:
    """Opens empty files: descriptor, path, and whether the path outlives that."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with contextlib.suppress(OSError):
            handle = os.memfd_create(f"{PREFIX}{tag}")
            yield handle, Path(f"/proc/{os.getpid()}/fd/{handle}"), False
    for folder in slot_folders():
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(prefix=f"{PREFIX}{tag}-", dir=folder)
            yield handle, Path(name), True


class SlotOffer(NamedTuple):
    """What others of this host need to map a slot.

    Args:
        path: Of its file.
        mark: That its memory begins with.
    """

    path: str
    mark: str


class Slot:
    """A mapped file of `size` usable bytes behind a secret mark.

    Both sides hold a `Slot`; only the side that made it knows a path to unlink.

    Args:
        memory: All of the file.
        size: Bytes behind the mark.
        path: Under which others of this host may open it, a name until `unlink`.
        descriptor: Open as long as the path leads there; None for a file with a name.
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
        """Makes a slot and its mark; None where no folder has room for it.

        Args:
            size: Bytes.
            tag: Of the run.
        """
        mark = secrets.token_hex(_MARK_BYTES // 2)
        total = _MARK_BYTES + size
        for handle, path, has_name in _files(tag):
            try:
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
            if has_name:
                os.close(handle)
                handle = None
            return cls(memory, size, path, handle), mark
        return None

    @classmethod
    def attach(cls, path: str, size: int, mark: str) -> Slot | None:
        """Maps a slot the other side made; None when it is not on this host.

        The other side names a file here: nothing is opened but what a slot is called.
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
        if memory[:_MARK_BYTES] != mark.encode():
            memory.close()
            return None
        return cls(memory, size)

    @property
    def offer(self) -> SlotOffer | None:
        """What others of this host need to map it; None where they cannot any more."""
        if self.path is None or self._memory is None:
            return None
        mark = self._memory[:_MARK_BYTES].decode()
        return SlotOffer(str(self.path), mark)

    def unlink(self) -> None:
        """Ends a name; the memory lives as long as somebody maps it."""
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
        except BufferError:  # an array still views it; the mapping goes with it
            return
