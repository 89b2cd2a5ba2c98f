"""Whatever the cuts, a follower tells what `read_events` tells, each event once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import DataError
from shoal.runs.events import encode, read_events, segment_name
from shoal.runs.folder import Folder
from shoal.runs.following import Follow
from shoal.runs.store import create, open_run
from shoal.runs.summary import Fold, summarise
from shoal.runs.worker_status import WorkerFold, worker_statuses

TORN = b'{"kind": "x", "at"'
LINES = some.one_of(
    some.integers(0, 99).map(lambda at: encode({"kind": "x", "at": at})),
    some.just(TORN + b"\n"),
    some.just(b"\n"),
    some.just(b'["no object"]\n'),
)


def everything(follow: Follow) -> list[dict]:
    found: list[dict] = []
    while events := follow.poll():
        found += events
    return found


@given(
    some.lists(
        some.tuples(some.lists(LINES, max_size=4), some.sampled_from([b"", TORN])),
        min_size=1,
        max_size=4,
    ),
    some.lists(some.integers(1, 60), max_size=12),
    some.integers(1, 80),
)
def test_any_cuts_equal_the_whole(
    segments: list[tuple[list[bytes], bytes]], cuts: list[int], most: int
) -> None:
    """Segments grow by parts of any size, and the follower reads after each part."""
    with tempfile.TemporaryDirectory() as place:
        folder, found = Folder.at(place), list[dict]()
        (Path(place) / "events").mkdir()
        follow = Follow(folder, most_bytes=most)
        for number, (lines, rest) in enumerate(segments):
            path = Path(place) / segment_name(number)
            content = b"".join(lines) + rest
            path.touch()
            for size in [*cuts, len(content)]:
                with path.open("ab") as file:
                    file.write(content[:size])
                content = content[size:]
                found += everything(follow)
        assert found == list(read_events(folder))
        assert everything(follow) == []
        behind = Follow(folder)
        behind.segment, behind.offset = follow.segment, follow.offset
        assert everything(behind) == []


@given(some.integers(0, 200))
def test_a_sealed_segment_ends_with_a_whole_line_without_its_end(cut: int):
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.at(place)
        content = encode({"kind": "x", "text": "a" * 150})[:-1]
        folder.write(segment_name(0), content[:cut])
        follow = Follow(folder)
        found = everything(follow)
        folder.write(segment_name(0), content)
        folder.write(segment_name(1), encode({"kind": "y"}))
        found += everything(follow)
        assert found == list(read_events(folder))
        assert [event["kind"] for event in found] == ["x", "y"]


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    local = request.param == "local"
    return str(tmp_path / "runs") if local else f"memory://{tmp_path.name}"


def test_folds_follow_a_run_and_its_resumption(root: str):
    with create(root, "x") as run:
        follow, fold, workers = Follow(run.folder), Fold(url=run.url), WorkerFold()

        def take() -> None:
            for event in everything(follow):
                fold.add(event)
                workers.add(event)

        run.event("run_started", strategy="adag", workers=1, rows=64, epochs=2)
        run.event("worker_started", rank=0, pid=7, node="localhost")
        run.flush()
        take()
        run.exchanges([{"rank": 0, "epoch": 0, "samples": 64, "steps": 2, "t": 0.1}])
    take()
    assert fold.summary().samples_committed == 64
    with open_run(run.id, root) as again:
        again.event("run_resumed", workers=1)
        again.event("epoch_ended", epoch=0, samples=64, metrics={"loss": 1.0})
        again.finish("finished")
    take()
    assert fold.summary() == summarise(read_events(run.folder), url=run.url)
    assert workers.statuses() == worker_statuses(read_events(run.folder))
    assert not follow.is_removed
    run.folder.remove()
    assert follow.poll() == []
    assert follow.is_removed


def test_a_run_that_does_not_exist_yet(root: str):
    folder = Folder.at(root).child("later")
    follow = Follow(folder)
    assert follow.poll() == []
    assert not follow.is_removed
    folder.write(segment_name(0), encode({"kind": "x"}))
    assert follow.poll() == [{"kind": "x"}]


def test_it_continues_behind_damage(tmp_path: Path):
    folder = Folder.at(tmp_path)
    bad = encode({"kind": "run_started", "workers": []})
    folder.write(segment_name(0), encode({"kind": "x"}) + bad)
    follow = Follow(folder)
    with pytest.raises(DataError, match="line 2"):
        follow.poll()
    folder.write(segment_name(1), encode({"kind": "y"}))
    assert follow.poll() == [{"kind": "y"}]


def test_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = 0
    plain = Folder.read

    def counting(self: Folder, *arguments: object) -> bytes:
        nonlocal read
        content = plain(self, *arguments)  # type: ignore[arg-type]
        read += len(content)
        return content

    monkeypatch.setattr(Folder, "read", counting)
    folder = Folder.at(tmp_path)
    path = tmp_path / segment_name(0)
    path.parent.mkdir()
    follow = Follow(folder)
    for at in range(100):
        with path.open("ab") as file:
            file.write(encode({"kind": "x", "at": at}))
        assert [event["at"] for event in follow.poll()] == [at]
    assert read == path.stat().st_size
    shutil.rmtree(path.parent)
    follow.poll()
    assert follow.is_removed
