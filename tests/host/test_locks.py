"""Locks of files: of this process, until it ends; no forked child keeps them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.host.locks import HeldLock, is_held


def take(path: Path) -> HeldLock:
    found = HeldLock.take(path)
    assert found is not None
    return found


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_held(path) is None
    lock = take(path)
    assert is_held(path) is True
    assert is_held(path, lock.mark) is True
    assert is_held(path, "1:1") is None  # another file
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["lock"]
    lock.close()
    lock.close()
    assert is_held(path, lock.mark) is False


def test_the_last_process_to_take_a_lock_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = take(path), take(path)
    assert is_held(path, first.mark) is None
    first.remove()
    assert is_held(path, second.mark) is True
    second.remove()
    assert os.listdir(tmp_path) == []


FORK = """
import os, signal, sys
from pathlib import Path
from shoal.host.locks import HeldLock, is_held
lock = HeldLock.take(Path(sys.argv[1]))
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, b"x")
    signal.pause()
os.read(read, 1)
found = [is_held(lock.path)]
lock.close()
found.append(is_held(lock.path))  # though the child lives
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(found)
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    words = [sys.executable, "-c", FORK, str(tmp_path / "lock")]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout == "[True, False]\n"


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is left that would look like that of a process which has ended."""
    (tmp_path / "lock").touch()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert HeldLock.take(tmp_path / "lock") is None
    assert os.listdir(tmp_path) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    dear = tmp_path / "dear"
    dear.write_text("x")
    (tmp_path / "lock").symlink_to(dear)
    assert is_held(tmp_path / "lock") is None
    lock = take(tmp_path / "lock")
    assert dear.read_text() == "x"
    assert is_held(dear) is False
    lock.remove()


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        HeldLock.take(tmp_path / "none" / "lock")
