"""Slots: memory that two processes share, with a name for as short as possible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.engine.transport import shared_memory
from shoal.engine.transport.shared_memory import Slot, slot_folders, sweep, tag_of

CHILD = """
import sys
import numpy as np
from shoal.engine.transport.shared_memory import Slot
slot = Slot.attach(sys.argv[1], int(sys.argv[2]), sys.argv[3])
print("attached", flush=True)
sys.stdin.readline()
values = slot.array(0, 4, np.float32)
values *= 2
print("doubled", flush=True)
"""

DYING = """
import os, signal
from shoal.engine.transport.shared_memory import Slot, tag_of
tag = tag_of(os.urandom(8))
print(tag, Slot.make(64, tag)[0].path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts like a system without files that have no name."""
    monkeypatch.delattr(shared_memory.os, "memfd_create", raising=False)


both = pytest.mark.parametrize("has_name", [False, True])


def choose(monkeypatch: pytest.MonkeyPatch, *, has_name: bool) -> None:
    if has_name:
        monkeypatch.delattr(shared_memory.os, "memfd_create", raising=False)
    elif not hasattr(shared_memory.os, "memfd_create"):
        pytest.skip("this system has no files without a name")


def made(size: int = 64) -> tuple[Slot, str]:
    found = Slot.make(size)
    assert found is not None
    return found


@both
def test_both_ends_view_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, has_name: bool
) -> None:
    choose(monkeypatch, has_name=has_name)
    mine, mark = made()
    theirs = Slot.attach(str(mine.path), 64, mark)
    assert theirs is not None
    mine.array(0, 4, np.float32)[:] = [1, 2, 3, 4]
    assert theirs.array(0, 4, np.float32).tolist() == [1, 2, 3, 4]
    theirs.close()
    mine.close()


@both
@pytest.mark.process
def test_two_processes_share_memory_that_has_no_name_any_more(
    monkeypatch: pytest.MonkeyPatch, has_name: bool
) -> None:
    choose(monkeypatch, has_name=has_name)
    slot, mark = made()
    values = slot.array(0, 4, np.float32)
    values[:] = [1, 2, 3, 4]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(slot.path), "64", mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "attached\n"
        path = slot.path
        slot.unlink()
        assert path is not None
        # Without a name, only users who may inspect this process can reach it.
        assert path.exists() != has_name
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "doubled\n"
    assert values.tolist() == [2, 4, 6, 8]
    del values
    slot.close()
    assert not path.exists()


@both
def test_a_slot_of_another_host_is_not_mapped(
    monkeypatch: pytest.MonkeyPatch, has_name: bool
) -> None:
    choose(monkeypatch, has_name=has_name)
    slot, mark = made()
    path = str(slot.path)
    assert Slot.attach(path, 64, mark[::-1]) is None
    assert Slot.attach(path, 1 << 30, mark) is None
    assert Slot.attach(path + "-gone", 64, mark) is None
    slot.close()
    assert Slot.attach(path, 64, mark) is None


@pytest.mark.process
def test_a_server_that_is_killed_before_its_worker_answers_leaves_nothing() -> None:
    if not hasattr(shared_memory.os, "memfd_create"):
        pytest.skip("this system has no files without a name")
    child = subprocess.run(
        [sys.executable, "-c", DYING],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    tag, path = child.stdout.split()
    assert path.startswith("/proc/")
    for folder in slot_folders():
        assert [p for p in folder.iterdir() if tag in p.name] == []


def test_closing_twice_and_under_a_view() -> None:
    slot, _ = made()
    view = slot.array(0, 4, np.float32)
    slot.close()
    slot.close()
    assert view.tolist() == [0, 0, 0, 0]


@pytest.mark.usefixtures("named")
def test_no_room_in_shared_memory_means_the_next_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "gone", tmp_path]
    monkeypatch.setattr(shared_memory, "slot_folders", lambda: folders)
    slot, _ = made()
    assert slot.path is not None
    assert slot.path.parent == tmp_path
    slot.close()


@pytest.mark.usefixtures("named")
def test_no_room_anywhere_means_no_slot_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory, "slot_folders", lambda: [tmp_path])
    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full, raising=False)
    assert Slot.make(64) is None
    assert list(tmp_path.iterdir()) == []


def test_without_posix_fallocate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(shared_memory.os, "posix_fallocate", raising=False)
    slot, _ = made()
    assert len(slot.bytes) == 64
    slot.close()


def test_shared_memory_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory.Path, "is_dir", lambda _: True)
    assert slot_folders()[0] == Path("/dev/shm")
    monkeypatch.setattr(shared_memory.Path, "is_dir", lambda _: False)
    assert len(slot_folders()) == 1


@pytest.mark.usefixtures("named")
def test_only_slots_of_the_killed_server_are_removed() -> None:
    ours, theirs = tag_of(b"our secret"), tag_of(b"their secret")
    left, others = Slot.make(64, ours), Slot.make(64, theirs)
    assert left is not None
    assert others is not None
    [mine, foreign] = [left[0].path, others[0].path]
    assert mine is not None
    assert foreign is not None
    sweep(ours)
    assert not mine.exists()
    assert foreign.exists()
    left[0].close()
    others[0].close()


def test_a_tag_does_not_reveal_the_secret() -> None:
    assert tag_of(b"a") != tag_of(b"b")
    assert tag_of(b"a") == tag_of(b"a")
    assert b"a".hex() != tag_of(b"a")[:2]


@pytest.mark.parametrize("kind", ["file", "pipe", "parent", "relative"])
def test_a_path_from_the_other_side_opens_slots_only(kind: str, tmp_path: Path):
    """The mark fits: only name and kind of the file tell them apart."""
    path = tmp_path / ("shoal-slot-x" if kind != "file" else "authorized_keys")
    if kind == "pipe":
        os.mkfifo(path)  # nobody writes into it: to open it plainly would block
    else:
        path.write_bytes(b"m" * 128)
    (tmp_path / "a").mkdir()
    named = {"parent": f"{tmp_path}/a/../{path.name}", "relative": path.name}
    assert Slot.attach(named.get(kind, str(path)), 64, "m" * 64) is None
    if kind in ("parent", "relative"):
        found = Slot.attach(str(path), 64, "m" * 64)
        assert found is not None
        found.close()
