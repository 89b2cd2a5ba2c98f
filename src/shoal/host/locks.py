"""Locks on files that end with the process that holds them, in any way it ends.

A lock is visible to every process of the machine that sees the file, in any process
namespace; on network storage with locks also from other machines. A forked child has
none of its parent's locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import weakref
from pathlib import Path
from typing import final

_HELD: weakref.WeakSet[HeldLock] = weakref.WeakSet()
_IS_WATCHING_FORKS: list[bool] = []


@final
class HeldLock:
    """A lock that this process holds, until `close` or its end. `take` makes it.

    Args:
        path: Path of the file.
        descriptor: Descriptor of the open, locked file.

    Attributes:
        mark: Distinguishes the file from earlier and later ones of this name.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.mark = _mark(descriptor)
        self._descriptor: int | None = descriptor
        _HELD.add(self)

    @classmethod
    def take(cls, path: Path) -> HeldLock | None:
        """Makes a locked file under a name; replaces an existing one.

        The file gets its name only when it is locked, so that a file without a lock
        never belongs to a live process.

        Returns:
            None if the file system has no locks; no file exists then.

        Raises:
            OSError: The file cannot be made.
        """
        _watch_forks()
        begun = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(begun, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            begun.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            return None
        try:
            begun.rename(path)
        except OSError:
            os.close(descriptor)
            begun.unlink(missing_ok=True)
            raise
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path) -> HeldLock | None:
        """Locks a file whose owner has ended; None if it is gone, or has an owner."""
        _watch_forks()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        found = None
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its former owner, or a sweep, may have removed it meanwhile.
            if _text(path.lstat()) == _mark(descriptor):
                found = cls(path, descriptor)
        if found is None:
            os.close(descriptor)
        return found

    def close(self) -> None:
        """Releases the lock; its file stays. Safe to repeat."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def remove(self) -> None:
        """Removes the file, unless the name has a new file by now, and releases it."""
        with contextlib.suppress(OSError):
            found = self.path.lstat()
            if self._descriptor is not None and _text(found) == self.mark:
                self.path.unlink()
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def is_held(path: Path, mark: str = "") -> bool | None:
    """Returns whether a live process holds the lock of a file.

    Args:
        path: Path of the file.
        mark: Mark of the expected file; default "" means any.

    Returns:
        None if that is unknown: there is no such file, or no locks.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        if mark and _mark(descriptor) != mark:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _mark(descriptor: int) -> str:
    return _text(os.fstat(descriptor))


def _text(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def _watch_forks() -> None:
    """Handles forks: a lock belongs to an open file, which a child has open as well."""
    if not _IS_WATCHING_FORKS:
        _IS_WATCHING_FORKS.append(True)
        os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    for lock in list(_HELD):
        with contextlib.suppress(OSError):
            lock.close()
