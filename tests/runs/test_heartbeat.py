"""Runs on object storage: a driver elsewhere is heard, and only one writes a run."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.errors import CheckpointError, ConfigError
from shoal.host import processes
from shoal.runs import heartbeat
from shoal.runs.catalogue import list_runs, read_summary, remove_run
from shoal.runs.checkpoints import Checkpoint, CheckpointStore
from shoal.runs.events import read_events, segment_numbers
from shoal.runs.folder import Folder
from shoal.runs.heartbeat import HEARTBEATS, LOST_S, heard_s
from shoal.runs.outlines import read_outline
from shoal.runs.store import StoredRun, create, open_run
from shoal.training.checkpoint_writer import CHECKPOINTS, CheckpointWriter
from shoal.training.resuming import Call, resume
from shoal.training.run_fit import follow
from shoal.training.stop_request import stoppable
from shoal.ui.live import RunView
from tests.other_stores import Store, fsspec_loop, other_stores
from tests.runs.test_writer import HAS_NAMESPACES, INSIDE, driver
from tests.s3 import Bucket

__all__ = ["fsspec_loop", "other_stores"]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process another machine; `back` undoes it for readers."""
    real = processes._machine
    monkeypatch.setattr(
        processes,
        "_machine",
        lambda: dataclasses.replace(real(), host="h2", boot="another", machine="m2"),
    )
    return lambda: monkeypatch.setattr(processes, "_machine", real)


@pytest.fixture(params=["s3", "gs", "abfs"])
def store(
    request: pytest.FixtureRequest, s3_endpoint: str, fsspec_loop: None
) -> Bucket | Store:
    """Storage that tells the age of its objects; its servers outlive the test."""
    if request.param == "s3":
        return request.getfixturevalue("s3")
    return request.getfixturevalue("other_stores")[request.param]


def begun(s3: Bucket | Store) -> StoredRun:
    run = create(f"{s3.url}/runs", "higgs")
    run.event("run_started", strategy="adag", workers=2)
    settle(run)
    return run


def settle(run: StoredRun) -> None:
    """Waits until the storage has what was recorded, and the first heartbeat."""
    run.flush()
    segments: Any = run._segments
    segments._uploader.submit(lambda: None).result(60)
    until = time.monotonic() + 60
    while run._heartbeat and not run.folder.exists(beat_of(run)):
        assert time.monotonic() < until


def beat_of(run: StoredRun) -> str:
    assert run._heartbeat is not None
    return f"{HEARTBEATS}/{run._heartbeat.name}.json"


def key_of(run: StoredRun) -> str:
    return f"runs/{run.id}/{beat_of(run)}"


def statuses(run: StoredRun) -> set[str]:
    """What all readers say."""
    view = RunView(run.folder)
    view.advance()
    [listed] = list_runs(f"{run.folder.url.rpartition('/')[0]}")
    found = read_summary(run.folder), read_outline(run.folder), view.summary()
    return {one.status for one in (*found, listed)}


def test_a_driver_elsewhere_is_lost_when_it_was_not_heard_for_long(
    store: Bucket | Store, elsewhere: Callable[[], None]
) -> None:
    with begun(store) as run:
        elsewhere()
        assert statuses(run) == {"running"}
        assert (read_summary(run.folder).heard_s or 0) < 60
        store.make_older(key_of(run), 250)
        assert statuses(run) == {"running"}  # suspended, or cut off, for a while
        text = "last heard 4 minutes ago, by the storage's clock, and it counts as lost"
        with pytest.raises(ConfigError, match=f"{text} after 10 minutes"):
            remove_run(run.id, f"{store.url}/runs", force=False)
        with pytest.raises(ConfigError, match=text):
            resume(Call(run=run.url))
        store.make_older(key_of(run), LOST_S)
        assert statuses(run) == {"lost"}
        run.folder.write(beat_of(run), b"{}")  # it is back
        assert statuses(run) == {"running"}
        store.make_older(key_of(run), 2 * LOST_S)
        remove_run(run.id, f"{store.url}/runs", force=False)


def test_a_driver_that_can_be_seen_is_looked_up(s3: Bucket) -> None:
    """It is stopped for an hour, and lives."""
    with begun(s3) as run:
        s3.make_older(key_of(run), 3600)
        assert statuses(run) == {"running"}
        assert read_summary(run.folder).heard_s is None


@pytest.mark.skipif(not HAS_NAMESPACES, reason="needs a process namespace of its own")
def test_a_driver_of_another_container_that_is_killed(s3: Bucket) -> None:
    root = f"{s3.url}/runs"
    with driver(root, *INSIDE) as (process, name):
        folder = Folder.at(f"{root}/{name}")
        until = time.monotonic() + 60
        while not folder.names(HEARTBEATS):
            assert time.monotonic() < until
        [beat] = folder.names(HEARTBEATS)
        process.kill()
        process.wait()
        assert read_summary(folder).status == "running"  # nobody can know
        s3.make_older(f"runs/{name}/{HEARTBEATS}/{beat}", LOST_S + 60)
        found = read_summary(folder)
        assert found.status == "lost"
        assert found.heard_s is not None
        assert found.heard_s > LOST_S
        with open_run(name, root) as again:
            again.event("run_resumed", workers=2)
            settle(again)
            assert read_summary(folder).status == "running"


def test_storage_that_does_not_answer_calls_no_run_lost(
    s3: Bucket, elsewhere: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(s3) as run:
        elsewhere()
        s3.make_older(key_of(run), 2 * LOST_S)
        name = beat_of(run).removeprefix(f"{HEARTBEATS}/").removesuffix(".json")
        assert (heard_s(run.folder, name) or 0) > LOST_S
        for bad in ("", "../x", "0" * 16):
            assert heard_s(run.folder, bad) is None

        def away(*_: Any, **__: Any) -> None:
            raise ConnectionError("away")

        with monkeypatch.context() as patch:
            patch.setattr(type(run.folder.fs), "call_s3", away)
            assert heard_s(run.folder, name) is None
            assert read_summary(run.folder).status == "running"
        run.folder.fs.rm_file(run.folder.where(beat_of(run)))
        assert read_summary(run.folder).status == "running"


def test_it_is_renewed_also_after_the_storage_was_away(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.005)
    real, failures = Folder.write, list[str]()

    def write(folder: Folder, name: str, content: bytes) -> None:
        if name.startswith(HEARTBEATS) and len(failures) < 3:
            failures.append(name)
            raise ConnectionError("away")
        real(folder, name, content)

    monkeypatch.setattr(Folder, "write", write)
    with begun(s3) as run:
        until = time.monotonic() + 60
        while number_of(run) < 9:
            assert time.monotonic() < until
        assert len(failures) == 3
        place, folder = beat_of(run), run.folder
        run.finish("finished")
    assert not folder.exists(place)


def number_of(run: StoredRun) -> int:
    return int(json.loads(run.folder.read(beat_of(run)))["number"])


def test_one_without_a_final_event_stays(s3: Bucket) -> None:
    """So that the run is lost some time later, not running for ever."""
    with begun(s3) as run:
        place = beat_of(run)
    assert run.folder.exists(place)
    run.close()


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_other_storage_has_none(tmp_path: Path, kind: str) -> None:
    root = tmp_path if kind == "local" else f"memory://{tmp_path.name}"
    with create(root, "higgs") as run:
        run.event("run_started", strategy="adag", workers=2)
        assert "shoal-heartbeat" not in {t.name for t in threading.enumerate()}
        run.finish("finished")
    assert not run.folder.names(HEARTBEATS)
    assert all("beat" not in event for event in read_events(run.folder))


# ---------------------------------------------------------- two drivers, one run


def test_a_driver_that_comes_back_late_writes_no_more(
    store: Bucket | Store,
) -> None:
    with begun(store) as late:
        late.event("epoch_ended", epoch=0, metrics={"loss": 1.0})
        settle(late)
        with open_run(late.id, f"{store.url}/runs") as again:
            again.event("run_resumed", workers=2, epoch=1)
            settle(again)
            late.check()  # it knows nothing yet
            late.event("epoch_ended", epoch=1, metrics={"loss": 9.0})
            settle(late)
            with pytest.raises(CheckpointError, match="another process has resumed"):
                late.check()
            with (
                stoppable(late) as look,
                pytest.raises(CheckpointError, match="writes it now"),
            ):
                look()
            assert late.save_model(None, "last") is None
            late.finish("failed")
            again.event("epoch_ended", epoch=1, metrics={"loss": 0.5})
            settle(again)
            late.close()
            assert late.is_taken
            assert late.lost_events == 2
            again.finish("finished")
    found = read_summary(late.folder)
    assert (found.status, found.metrics) == ("finished", ({"loss": 1.0}, {"loss": 0.5}))
    assert segment_numbers(late.folder) == list(
        range(len(segment_numbers(late.folder)))
    )


def test_an_answer_that_was_lost_is_no_other_driver(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment was stored, and the next try finds it."""
    real, failures = Folder.create, list[str]()

    def write(folder: Folder, name: str, content: bytes) -> None:
        real(folder, name, content)
        if not failures:
            failures.append(name)
            raise TimeoutError("no answer")

    with begun(s3) as run:
        monkeypatch.setattr(Folder, "create", write)
        for epoch in range(3):
            run.event("epoch_ended", epoch=epoch, metrics={"loss": 1.0})
        settle(run)
        assert failures
        assert not run.is_taken
        run.finish("finished")
    assert run.lost_events == 0
    assert read_summary(run.folder).epochs == 3


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(number=number, arrays={"center": np.zeros(3, np.float32)})


@pytest.mark.parametrize("has_saved", [False, True])
def test_a_run_that_ends_late_keeps_the_checkpoints_of_its_successor(
    tmp_path: Path, has_saved: bool
) -> None:
    """Before, the end of one that was stopped for a while removed them."""
    folder, warnings = Folder.at(tmp_path), list[str]()
    writer = CheckpointWriter(folder, warnings.append)
    try:
        if has_saved:
            writer.keep(checkpoint(0))
            until = time.monotonic() + 60
            while not writer.has_saved:
                assert time.monotonic() < until
        writer.check()
        store = CheckpointStore(folder.child(CHECKPOINTS)).open()
        store.save(checkpoint(7))
        with pytest.raises(CheckpointError, match="another process writes"):
            writer.check()
    finally:
        writer.discard()
    assert any("another process writes" in text for text in warnings)
    found = store.latest(warnings.append)
    assert found is not None
    assert found.number == 7


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_a_driver_that_ends_late_leaves_model_and_end_to_its_successor(
    tmp_path: Path, error: type[BaseException] | None
) -> None:
    saved = list[Path]()
    model: Any = SimpleNamespace(save=saved.append)

    def work() -> Any:
        if error is not None:
            raise error

    with create(tmp_path, "higgs") as late:
        late.event("run_started", strategy="adag", workers=2)
        writer = CheckpointWriter(late.folder, lambda _: None)
        CheckpointStore(late.folder.child(CHECKPOINTS)).open()
        with pytest.raises(error or CheckpointError):
            follow(late, model, 0.0, work, writer)
        writer.close()
        assert not saved
        assert read_summary(late.folder).status == "running"


def test_a_run_that_nobody_took_removes_its_checkpoints(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    writer = CheckpointWriter(folder, pytest.fail)
    writer.keep(checkpoint(0))
    writer.close()
    writer.check()
    writer.discard()
    assert not folder.exists(CHECKPOINTS)
