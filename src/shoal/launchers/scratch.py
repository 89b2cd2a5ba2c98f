"""Folders of a process that its children meet in, and what killed processes left.

A folder is locked as long as its owner lives. The lock goes with the process, however
that ended, and holds across containers that share a temporary directory: a folder
without one belongs to nobody, and the next owner removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import final

LOCK = "lock"


def _prefix() -> str:
    """Begins the names of this machine's: elsewhere locks of it may not be seen."""
    letters = [c if c.isalnum() else "-" for c in socket.gethostname()]
    return f"shoal-run-{''.join(letters)[:40]}."


@final
class Scratch:
    """A folder in the temporary directory, until `close` or the end of the process.

    Attributes:
        path: Of the folder.
    """

    def __init__(self) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=_prefix()))
        # It has its name only when it is locked: who sees it can tell by the lock.
        begun = self.path / f"{LOCK}-begun"
        lock = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks is not swept
            fcntl.flock(lock, fcntl.LOCK_EX)
            begun.rename(self.path / LOCK)
        self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def make_folder(self) -> Path:
        """Makes an empty folder in here."""
        return Path(tempfile.mkdtemp(dir=self.path))

    def close(self) -> None:
        """Removes the folder; safe to repeat."""
        self._remove()


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:  # a fork, which has it from its parent
        return
    _empty(path)
    os.close(lock)


def _empty(path: Path) -> None:
    """Removes a folder, its lock last: should this be killed, the next one goes on."""
    with contextlib.suppress(OSError):
        for inner in path.iterdir():
            if inner.is_dir() and not inner.is_symlink():
                shutil.rmtree(inner, ignore_errors=True)
            elif inner.name != LOCK:
                inner.unlink()
    shutil.rmtree(path, ignore_errors=True)


def sweep() -> list[Path]:
    """Removes folders whose owners are gone; returns what they were."""
    return [path for path in _candidates() if _sweep_one(path)]


def _candidates() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from Path(tempfile.gettempdir()).glob(f"{_prefix()}*")


def _sweep_one(path: Path) -> bool:
    try:
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            return False
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _empty(path)
    except OSError:  # it is locked
        return False
    finally:
        os.close(lock)
    return True
