from __future__ import annotations

import builtins
import threading
from pathlib import Path

import pytest

from shoal.runs.events import read_events, segment_numbers
from shoal.runs.folder import Folder
from shoal.runs.segments import SegmentLimits, Segments, segments_for

LINE = b'{"kind":"x"}\n'
HEADER = b'{"kind":"segment"}\n'


def segments(folder: Folder, said: list[str], **limits: float) -> Segments:
    return segments_for(
        folder,
        limits=SegmentLimits(**limits),  # type: ignore[arg-type]
        header=lambda number: HEADER,
        complain=said.append,
    )


def kinds(folder: Folder) -> list[str]:
    return [event["kind"] for event in read_events(folder)]


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder.at(tmp_path / "run")
    return Folder.at(f"memory://{tmp_path.name}")


def test_segments_are_numbered_on_and_headed(folder: Folder):
    for _ in range(2):
        out = segments(folder, [], size_bytes=40)
        for _ in range(5):
            out.append(LINE, 0.0)
        out.close()
    assert segment_numbers(folder) == list(range(segment_numbers(folder)[-1] + 1))
    assert len(segment_numbers(folder)) > 2
    assert kinds(folder).count("x") == 10
    assert kinds(folder).count("segment") == len(segment_numbers(folder))


def test_local_lines_can_be_read_while_running(tmp_path: Path):
    folder = Folder.at(tmp_path)
    out = segments(folder, [])
    out.append(LINE, 0.0)
    assert kinds(folder) == ["segment", "x"]
    out.close()


def test_remote_lines_appear_when_sealed_by_age(tmp_path: Path):
    folder = Folder.at(f"memory://{tmp_path.name}")
    out = segments(folder, [], age_s=5.0)
    out.append(LINE, 10.0)
    out.append(LINE, 14.9)
    assert kinds(folder) == []
    out.append(LINE, 15.0)
    out.append(LINE, 15.1)
    out.close()
    assert segment_numbers(folder) == [0, 1]
    assert kinds(folder) == ["segment", "x", "x", "x", "segment", "x"]


def test_a_local_failure_is_reported_once_and_counted(tmp_path: Path):
    folder, said = Folder.at(tmp_path / "run"), []
    out = segments(folder, said)
    blocker = tmp_path / "run"
    blocker.write_bytes(b"")  # a file where the folder should be
    out.append(LINE, 0.0)
    out.append(LINE, 0.0)
    assert out.lost == 2
    assert len(said) == 1
    assert "Training goes on" in said[0]
    blocker.unlink()
    out.append(LINE, 0.0)
    out.close()
    assert out.lost == 2
    assert kinds(folder) == ["segment", "x"]


def test_a_half_line_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = Folder.at(tmp_path)
    out = segments(folder, [])
    out.append(LINE, 0.0)
    plain_open = open

    class FullDisk:
        def __init__(self, file) -> None:
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            self.file.close()

        def write(self, content: bytes) -> int:
            return self.file.write(content[:5])

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda *a, **k: FullDisk(plain_open(*a, **k)))
        out.append(LINE, 0.0)
    out.append(LINE, 0.0)
    assert out.lost == 1
    assert kinds(folder) == ["segment", "x", "x"]


class Flaky:
    """A storage that is away for its first few writes."""

    protocol = ("flaky",)

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.written: list[str] = []
        self.tried = threading.Event()

    def invalidate_cache(self, path: str) -> None: ...

    def unstrip_protocol(self, path: str) -> str:
        return f"flaky://{path}"

    def ls(self, path: str, detail: bool) -> list[str]:
        return []

    def open(self, path: str, mode: str) -> None:
        raise NotImplementedError("no exclusive mode")

    def exists(self, path: str) -> bool:
        return path in self.written

    def pipe_file(self, path: str, content: bytes) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("away")
        self.written.append(path)


def test_remote_segments_are_kept_for_another_try():
    fs, said = Flaky(failures=2), []
    out = segments(Folder(fs=fs, path="run"), said, size_bytes=1)
    out.append(LINE, 0.0)
    out.append(LINE, 0.0)
    out.close()
    assert fs.written == ["run/events/000000.jsonl", "run/events/000001.jsonl"]
    assert (out.lost, len(said)) == (0, 1)


def test_remote_segments_that_cannot_be_kept_are_counted():
    fs, said = Flaky(failures=1000), []
    out = segments(Folder(fs=fs, path="run"), said, size_bytes=1, pending_bytes=40)
    for _ in range(7):
        out.append(LINE, 0.0)
    out.close()
    assert (out.lost, len(said), fs.written) == (7, 1, [])
