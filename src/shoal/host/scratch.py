"""Folders where a process's children meet, and removal of those of killed processes.

A folder is locked as long as its owner runs. The lock ends with the process, in any
way it ends, and works across containers that share a temporary directory: a folder
without a lock has no owner, and the next owner of a folder removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import uuid
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import final

from shoal.forks import blank, gives_up
from shoal.host.limits import within_limits
from shoal.host.locks import HeldLock
from shoal.host.temporary import temporary_folder
from shoal.interruption import ends_hard

LOCK = "lock"


KINDS = ("frame", "logs", "model", "run", "send", "spool", "tensorboard")


def _prefix(kind: str) -> str:
    """Returns this machine's name prefix: locks of others may be invisible."""
    letters = [c if c.isalnum() else "-" for c in socket.gethostname()]
    return f"shoal-{kind}-{''.join(letters)[:40]}."


def planned_scratch(kind: str = "run") -> Path:
    """Chooses the path of a scratch folder without making it.

    Args:
        kind: One of `KINDS`.
    """
    return temporary_folder() / f"{_prefix(kind)}{uuid.uuid4().hex[:16]}"


@final
class Scratch:
    """A folder in the temporary directory, until `close` or the end of the process.

    Args:
        path: Path chosen by `planned_scratch`; default None: a new one.
        lock: Lock of a folder that exists; see `take_over`.

    Attributes:
        path: Path of the folder. `make_folder` changes it if it was removed.
    """

    def __init__(
        self, path: Path | None = None, *, lock: HeldLock | None = None
    ) -> None:
        if lock is None:
            sweep()
        self.path = planned_scratch() if path is None else path
        self._remove: Callable[[], object] = (
            self._make() if lock is None else self._own(lock)
        )
        gives_up(self)
        ends_hard(self)

    @classmethod
    def take_over(cls, path: Path) -> Scratch | None:
        """Takes over a folder whose owner has ended; None if it is gone, or has one.

        Args:
            path: Path of the folder.
        """
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                return None
            lock = HeldLock.take_over(path / LOCK)
            return None if lock is None else cls(path, lock=lock)
        return None

    def _make(self) -> Callable[[], object]:
        with within_limits("make a temporary folder of the run"):
            self.path.mkdir(mode=0o700)
            try:
                return self._own(None)
            except BaseException:
                shutil.rmtree(self.path, ignore_errors=True)
                raise

    def _own(self, lock: HeldLock | None) -> Callable[[], object]:
        """Locks the folder; returns what removes it."""
        # systemd-tmpfiles skips folders that a process has locked.
        folder = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:  # None: a folder without a lock is not swept
            lock = lock or HeldLock.take(self.path / LOCK)
        except BaseException:
            os.close(folder)
            raise
        self._folder = folder
        return weakref.finalize(self, _remove, self.path, lock, folder, os.getpid())

    def make_folder(self) -> Path:
        """Makes an empty folder inside; makes the scratch folder again if removed."""
        if not self.path.is_dir():
            self._remove()
            self.path = planned_scratch()
            self._remove = self._make()
        with within_limits("make a temporary folder of the run"):
            return Path(tempfile.mkdtemp(dir=self.path))

    def close(self) -> None:
        """Removes the folder; safe to repeat."""
        self._remove()
        self._folder = -1

    def end_hard(self) -> None:
        """Removes the folder when all processes end; see `interruption.ends_hard`."""
        self.close()

    def give_up(self) -> None:
        """Releases the folder's lock in a fork; `HeldLock` releases the other."""
        self._remove = lambda: None
        blank(self._folder)


@contextlib.contextmanager
def scratch_folder(kind: str) -> Generator[Path]:
    """Yields a folder that is removed afterwards, by another process if need be.

    Args:
        kind: One of `KINDS`.

    Raises:
        OSError: It cannot be made.
    """
    scratch = Scratch(planned_scratch(kind))
    try:
        yield scratch.make_folder()
    finally:
        scratch.close()


def _remove(path: Path, lock: HeldLock | None, folder: int, owner: int) -> None:
    if os.getpid() != owner:  # a fork, which inherited it
        return
    _empty(path)
    os.close(folder)
    if lock is not None:
        lock.close()


def _empty(path: Path) -> None:
    """Removes a folder, its lock last: if this is killed, the next owner continues."""
    with contextlib.suppress(OSError):
        for inner in path.iterdir():
            if inner.is_dir() and not inner.is_symlink():
                shutil.rmtree(inner, ignore_errors=True)
            elif inner.name != LOCK:
                inner.unlink()
    shutil.rmtree(path, ignore_errors=True)


def sweep() -> list[Path]:
    """Removes folders whose owners have ended; returns their paths."""
    return [path for path in _candidates() if _sweep_one(path)]


def _candidates() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for kind in KINDS:
            yield from Path(tempfile.gettempdir()).glob(f"{_prefix(kind)}*")


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
