from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from shoal.errors import ConfigError, DataError
from shoal.runs import folder as runs_folder
from shoal.runs.checkpoint_files import write_part, write_whole
from shoal.runs.folder import Folder, is_place
from shoal.runs.profiles import note_profile, profile_of
from shoal.runs.segments import SegmentLimits, segments_for
from shoal.runs.tensorboard import ScalarWriter


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder.at(tmp_path / "place")
    return Folder.at(f"memory://{tmp_path.name}")


def test_a_written_file_is_read(folder: Folder):
    folder.write("a/b.txt", b"0123")
    folder.write("a/b.txt", b"4567")
    assert folder.read("a/b.txt") == b"4567"
    assert folder.read("a/b.txt", 2) == b"67"
    assert folder.read("a/b.txt", 4) == b""
    assert folder.names() == ["a"]
    assert folder.names("a") == ["b.txt"]
    assert folder.exists("a/b.txt")
    assert not folder.exists("a/c.txt")


def test_when_a_file_was_written(folder: Folder):
    folder.write("a/b.txt", b"hello")
    assert abs(folder.written_unix("a/b.txt") - time.time()) < 60
    with pytest.raises(FileNotFoundError):
        folder.written_unix("a/none.txt")


def test_a_missing_folder_is_empty(folder: Folder):
    assert folder.names() == []
    assert folder.child("x").names("y") == []


def test_names_outside_of_the_folder_are_refused(folder: Folder):
    for name in ("..", "../x", "a/../../x", "a/.."):
        with pytest.raises(DataError, match="leads out of"):
            folder.read(name)
        with pytest.raises(DataError, match="leads out of"):
            folder.child(name)


def test_create_does_not_overwrite(folder: Folder):
    folder.create("one", b"first")
    with pytest.raises(FileExistsError):
        folder.create("one", b"second")
    assert folder.read("one") == b"first"


def test_put_moves_a_file_in(folder: Folder, tmp_path: Path):
    source = tmp_path / "source.bin"
    source.write_bytes(b"x" * 10)
    folder.put(source, "deep/er/target.bin")
    assert folder.read("deep/er/target.bin") == b"x" * 10


def test_remove_takes_everything(folder: Folder):
    folder.write("a/b", b"")
    folder.remove()
    assert not folder.exists()


def test_url_opens_the_same_folder(folder: Folder):
    folder.write("a", b"1")
    assert Folder.at(folder.url).read("a") == b"1"


def test_a_failed_write_leaves_no_part(tmp_path: Path):
    folder = Folder.at(tmp_path)
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(OSError, match=r"plan\.json"):
        folder.write("plan.json", b"{}")
    assert folder.names() == ["plan.json"]


class WithoutExclusiveMode:
    """A file system that knows no mode "xb"."""

    protocol = ("odd",)

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def open(self, path: str, mode: str):
        raise ValueError(mode)

    def exists(self, path: str) -> bool:
        return path in self.files

    def pipe_file(self, path: str, content: bytes) -> None:
        self.files[path] = content


def test_create_without_an_exclusive_mode():
    folder = Folder(fs=WithoutExclusiveMode(), path="p")
    folder.create("one", b"first")
    with pytest.raises(FileExistsError):
        folder.create("one", b"second")
    assert folder.fs.files == {"p/one": b"first"}


def test_unknown_protocol():
    with pytest.raises(ConfigError, match="cannot be opened"):
        Folder.at("nonsense://x")


def test_host_that_does_not_answer():
    with pytest.raises(ConfigError, match=r"cannot be opened.*can be reached"):
        Folder.at("ftp://127.0.0.1:1/x")


@pytest.mark.parametrize(("text", "expected"), [("a", False), ("../a", True)])
def test_is_place(text: str, expected: bool):
    assert is_place(text) is expected


def test_a_file_is_read_in_parts(folder: Folder):
    folder.write("a/b", b"0123456789")
    assert folder.size("a/b") == 10
    assert folder.read("a/b", 3, 4) == b"3456"
    assert folder.read("a/b", 8, 4) == b"89"
    assert folder.read("a/b", 10, 4) == b""
    assert folder.read("a/b", 3) == b"3456789"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_pipe_is_refused_at_once(kind: str, tmp_path: Path):
    """Nobody writes into the pipe: to open it plainly would last for ever."""
    odd = tmp_path / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
    else:
        odd.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="Not a plain file"):
        Folder.at(tmp_path).read("odd")


def test_storage_is_opened_with_the_profile_of_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    def opened(url: str, **options: object) -> tuple[None, str]:
        asked.append((url, options))
        return None, url

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(runs_folder, "url_to_fs", opened)
    note_profile("lab", "research")
    note_profile("other", "vision")
    for url in ("s3://lab/runs", "s3a://other", "s3://nobodys/runs", "memory://lab"):
        Folder.at(url)
    assert [options.get("profile") for _, options in asked] == [
        "research", "vision", None, None,
    ]  # fmt: skip
    note_profile("lab", None)  # an `up` with the environment's credentials
    assert profile_of("s3://lab/runs") == ""
    (tmp_path / ".shoal" / "profiles.json").write_text("[")
    assert profile_of("s3://other/runs") == ""


@pytest.mark.parametrize("write", ["write", "create", "part", "whole", "segment", "tb"])
def test_no_file_is_open_to_others_for_a_moment(
    write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first mode counts: one that is set after `open` leaves a gap."""
    tmp_path.chmod(0o700)
    folder = Folder.at(tmp_path)
    monkeypatch.setattr(os, "chmod", lambda *_: None)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)
    before = os.umask(0)
    try:
        {
            "write": lambda: folder.write("file", b"x"),
            "create": lambda: folder.create("file", b"x"),
            "part": lambda: write_part(folder, "file", memoryview(b"x")),
            "whole": lambda: write_whole(folder, "file", b"x"),
            "segment": lambda: append_line(folder),
            "tb": lambda: ScalarWriter(folder).write_epoch(1e9, 0, {"loss": 1.0}),
        }[write]()
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600]


def append_line(folder: Folder) -> None:
    out = segments_for(
        folder, limits=SegmentLimits(), header=lambda _: b"{}\n", complain=pytest.fail
    )
    out.append(b"{}\n", 0.0)
    out.close()
