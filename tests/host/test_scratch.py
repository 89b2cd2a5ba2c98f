"""Folders that end with their owner, or with the next one's beginning."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shoal.host import scratch as scratch_module
from shoal.host.scratch import LOCK, Scratch, sweep

OWNER = """
from shoal.host.scratch import Scratch
scratch = Scratch()
(scratch.make_folder() / "offer").write_text("x")
print(scratch.path, flush=True)
input()
"""

FORK = """
import os
from shoal.host.scratch import Scratch
scratch = Scratch()
child = os.fork()
if child == 0:
    scratch.close()
    os._exit(0)
os.waitpid(child, 0)
assert scratch.path.is_dir()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def owner() -> tuple[subprocess.Popen[str], Path]:
    """Another process with a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_ends_with_its_owner(temporary: Path) -> None:
    scratch = Scratch()
    one, other = scratch.make_folder(), scratch.make_folder()
    assert one.is_dir()
    assert one.parent == other.parent == scratch.path
    assert scratch.path.stat().st_mode & 0o077 == 0
    scratch.close()
    scratch.close()
    assert list(temporary.iterdir()) == []


def test_a_folder_ends_with_a_process_that_ends_well(temporary: Path) -> None:
    process, path = owner()
    with process:
        assert path.is_dir()
        process.communicate("\n")
    assert process.returncode == 0
    assert list(temporary.iterdir()) == []


def test_the_next_owner_removes_folders_of_killed_owners(temporary: Path) -> None:
    (killed, left), (living, kept) = owner(), owner()
    with killed, living:
        killed.send_signal(signal.SIGKILL)
        killed.wait(20)
        assert left.is_dir()
        mine = Scratch()
        assert set(temporary.iterdir()) == {kept, mine.path}
        assert sweep() == []
        mine.close()
        living.communicate("\n")


def test_a_fork_leaves_its_parents_folder() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True)


def test_a_folder_whose_owner_may_live_is_kept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody is making the first; the second is a trap: a link to what is dear."""
    (temporary / f"{scratch_module._prefix('run')}new").mkdir()
    dear = temporary / "dear"
    dear.mkdir()
    (dear / LOCK).touch()
    (temporary / f"{scratch_module._prefix('run')}link").symlink_to(dear)
    with monkeypatch.context() as patch:  # its locks may not be seen from here
        patch.setattr(socket, "gethostname", lambda: "elsewhere")
        far = temporary / f"{scratch_module._prefix('run')}far"
    far.mkdir()
    (far / LOCK).touch()
    file = temporary / f"{scratch_module._prefix('run')}file"
    file.touch()
    assert sweep() == []
    assert (dear / LOCK).exists()
    assert far.is_dir()
    assert file.exists()


def test_a_folder_of_another_owner_stays(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = temporary / f"{scratch_module._prefix('run')}left"
    left.mkdir()
    (left / LOCK).touch()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert sweep() == []
    monkeypatch.undo()
    assert left.is_dir()


def test_an_owner_killed_during_removal_leaves_the_lock(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = Scratch()
    folder = scratch.make_folder()
    (folder / "offer").touch()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            scratch_module._empty(scratch.path)
    assert (scratch.path / LOCK).exists()
    scratch.close()
    assert list(temporary.iterdir()) == []
