"""A list of runs shows what a summary shows, and reads little for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.runs.catalogue import list_runs, outlines_in, read_summary
from shoal.runs.events import segment_name, segment_numbers
from shoal.runs.folder import Folder
from shoal.runs.outlines import END_BYTES, OUTLINE, OutlineCache, read_outline
from shoal.runs.segments import SegmentLimits
from shoal.runs.store import StoredRun, create, open_run
from shoal.runs.summary import LIST_FIELDS

SMALL = SegmentLimits(size_bytes=5000)
COUNTS = {"epochs", "epochs_planned", "samples_committed", "samples_expected"}


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    local = request.param == "local"
    return str(tmp_path / "runs") if local else f"memory://{tmp_path.name}"


def train(
    root: str, *, epochs: int = 9, end: str | None = "finished", each: int = 40
) -> StoredRun:
    """A run of many exchanges, in segments of a few kilobytes."""
    with create(root, "long") as claimed:
        pass
    run = StoredRun(claimed.folder, name="long", limits=SMALL)
    with run:
        run.event("run_started", strategy="adag", workers=2, rows=100, epochs=epochs)
        for epoch in range(epochs):
            record = {"rank": 0, "epoch": epoch, "samples": 10, "t": 1.0}
            for _ in range(each):
                run.exchanges([record] * 10)
            run.event(
                "epoch_ended",
                epoch=epoch,
                samples=100,
                metrics={"loss": abs(epoch - 4) + 1.0},
            )
        if end:
            run.finish(end)  # type: ignore[arg-type]
    return run


def test_an_outline_is_the_summary_without_long_fields(root: str):
    run = train(root)
    whole, [outline] = read_summary(run.folder), list_runs(root)
    fields = {"metrics", "epoch_ends", "use", "warnings"}
    assert outline.model_dump(exclude=fields) == whole.model_dump(exclude=fields)
    assert outline.report["best"] == {"metric": "loss", "value": 1.0, "epoch": 4}


def test_an_outline_of_a_version_without_settings_has_the_name(root: str):
    run = train(root)
    content = json.loads(run.folder.read(OUTLINE))
    assert content["summary"].pop("setting")
    run.folder.write(OUTLINE, json.dumps(content).encode())
    [outline] = list_runs(root)
    assert outline.setting == outline.strategy != ""


@pytest.mark.parametrize("end", ["finished", "failed", None])
@pytest.mark.parametrize("epochs", [1, 9])
def test_without_an_outline_the_ends_are_read(root: str, epochs: int, end: str | None):
    run = train(root, epochs=epochs, end=end, each=400)
    run.folder.fs.rm(run.folder.where(OUTLINE))
    whole, outline = read_summary(run.folder), read_outline(run.folder)
    fields = LIST_FIELDS | COUNTS
    assert outline.model_dump(include=fields) == whole.model_dump(include=fields)
    assert outline.report.get("best") in (None, whole.report["best"])


def test_no_more_than_the_ends_is_read(tmp_path: Path, monkeypatch: Any):
    run = train(str(tmp_path), each=800)
    (tmp_path / run.id / OUTLINE).unlink()
    size, plain = 0, Folder.read

    def counting(self: Folder, *arguments: Any) -> bytes:
        nonlocal size
        content = plain(self, *arguments)
        size += len(content)
        return content

    monkeypatch.setattr(Folder, "read", counting)
    assert list_runs(tmp_path)[0].status == "finished"
    assert 0 < size <= 4 * END_BYTES


def test_the_outline_of_a_resumed_run_is_not_used(root: str):
    run = train(root, epochs=2, end="interrupted")
    old = run.folder.read(OUTLINE)
    with open_run(run.id, root) as again:
        again.event("run_resumed", workers=5)
        assert read_outline(run.folder).status == "running"
        again.flush()
        run.folder.write(OUTLINE, old)  # as if it could not be written
    outline = read_outline(run.folder)
    assert (outline.status, outline.workers) == ("running", 5)
    assert outline.samples_committed == 200


def test_counts_are_those_of_the_last_epoch(root: str):
    with create(root, "x") as run:
        run.event("run_started", strategy="adag", workers=1, rows=100, epochs=9)
        for epoch in range(3):
            run.event("epoch_ended", epoch=epoch, samples=90, metrics={"loss": 1.0})
        run.exchanges([{"rank": 0, "epoch": 3, "samples": 10}])
        run.flush()
        outline = read_outline(run.folder)
        while outline.epochs < 3:  # storage is written to by a thread
            outline = read_outline(run.folder)
    assert (outline.status, outline.epochs) == ("running", 3)
    assert outline.samples_expected == 900


DAMAGE: list[bytes] = [
    b"", b"[]", b"{", b"\xff", b"[" * 200_000, b'{"summary": {}}', b'{"summary": 7}',
    b'{"segment": 99, "summary": {"status": "finished", "seconds": 1e999}}',
    b'{"segment": 99, "summary": {"status": "finished", "started": "soon"}}',
    b'{"segment": 99, "summary": {"status": "finished", "rows": 1e300}}',
    b'{"segment": 99, "summary": {"status": "finished", "report": {"best": []}}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_outline_is_not_believed(content: bytes, root: str):
    run = train(root, epochs=2)
    run.folder.write(OUTLINE, content)
    whole, outline = read_summary(run.folder), read_outline(run.folder)
    fields = LIST_FIELDS | COUNTS
    assert outline.model_dump(include=fields) == whole.model_dump(include=fields)


def test_unchanged_runs_are_not_read_again(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    train(root)
    train(root, end=None)
    first = list_runs(root, cache=tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", None)
        assert list_runs(root, cache=tmp_path / "cache") == first
    changed = Folder.at(root).child(first[0].id)
    changed.write(segment_name(max(segment_numbers(changed)) + 1), b'{"kind":"x"}\n')
    assert list_runs(root, cache=tmp_path / "cache") == first


def test_what_has_finished_is_known_once_it_was_read(root: str):
    ends = ("finished", "failed")
    runs = {end: train(root, epochs=1, each=1, end=end) for end in ends}
    outlines = OutlineCache(None, root)
    known = [outlines.has_finished(run.id) for run in runs.values()]
    list(outlines_in(Folder.at(root), outlines))
    read = [outlines.has_finished(run.id) for run in runs.values()]
    assert (known, read) == ([False, False], [True, False])


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"x": 7}'])
def test_a_broken_cache_is_dropped(content: bytes, root: str, tmp_path: Path):
    train(root, epochs=1)
    first = list_runs(root, cache=tmp_path / "cache")
    [file] = (tmp_path / "cache" / "outlines").iterdir()
    entry = json.loads(file.read_bytes())
    assert list(entry) == [first[0].id]
    file.write_bytes(content)
    assert list_runs(root, cache=tmp_path / "cache") == first
    assert json.loads(file.read_bytes()) == entry
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_cache_that_cannot_be_written_costs_time_only(root: str, tmp_path: Path):
    train(root, epochs=1)
    (tmp_path / "file").touch()
    [run] = list_runs(root, cache=tmp_path / "file")
    assert run.status == "finished"
