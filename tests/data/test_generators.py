"""Generators: read once, in the driver, and handed to workers through files."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from shoal.data import feeding, shards, spooled, unended
from shoal.data.adapting import source_of
from shoal.data.batches import Packing
from shoal.data.feeding import Feed
from shoal.data.generators import FedSource
from shoal.data.reading import Reading
from shoal.data.shards import ShardedSource
from shoal.data.spool import BatchKey, Spool
from shoal.errors import DataError
from tests.data.adapter_laws import check_laws, check_travels, reader

STEPS, BATCH = 5, 3
PACKING = Packing(kind="generator", floatx="float32")


def counting(stop: int | None = None) -> Iterator[Any]:
    numbers = itertools.count() if stop is None else iter(range(stop))
    for n in numbers:
        rows = np.arange(n * BATCH, (n + 1) * BATCH)
        yield {"a": rows[:, None] / 2}, [rows, -rows], [rows / 1.0, rows / 1.0]


def expected(epoch: int = 0) -> Any:
    rows = np.arange(STEPS * BATCH) + epoch * STEPS * BATCH
    floats = rows.astype("f4")
    return {"a": floats[:, None] / 2}, [rows, -rows], [floats, floats]


def fed(batches: Iterator[Any], epochs: range = range(3), **more: Any) -> FedSource:
    reading = Reading(steps_per_epoch=STEPS, epochs=epochs, **more)
    found = source_of(batches, reading=reading)
    assert isinstance(found, FedSource)
    return found


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files go where no test beside these puts some."""
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    monkeypatch.setattr(tempfile, "tempdir", str(own))


def spools() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("shoal-spool-*"))


def test_keeps_the_laws_in_every_epoch() -> None:
    source = fed(counting())
    assert (source.batch_size, source.mixing, source.is_exactly_once) == (
        3,
        "nothing",
        True,
    )
    with source.serving():
        for epoch in range(3):
            check_laws(source, expected(epoch), epoch)
    assert spools() == []


def test_another_process_reads_it(tmp_path: Path) -> None:
    source = fed(counting())
    with source.serving():
        check_travels(source, expected(1), tmp_path, epoch=1)


def test_before_it_is_served_the_driver_reads_the_first_epoch() -> None:
    source = fed(counting())
    assert source.take(np.array([4]))[1][0].tolist() == [4]
    with source.serving():
        check_laws(source, expected())


def test_after_it_was_served_the_first_batch_is_left() -> None:
    source = fed(counting(), epochs=range(2, 3))
    with source.serving():
        assert source.take(np.array([0, 4]))[1][0].tolist() == [0, 4]
    assert source.take(np.array([2]))[1][0].tolist() == [2]
    with pytest.raises(DataError, match="no longer open"):
        source.take(np.array([4]))


def test_a_later_first_epoch_has_the_first_batches() -> None:
    source = fed(counting(), epochs=range(4, 6))
    with source.serving():
        check_laws(source, expected(0), epoch=4)
        check_laws(source, expected(1), epoch=5)


def test_no_more_is_taken_than_the_epochs_need() -> None:
    batches = counting(2 * STEPS)
    source = fed(batches, epochs=range(2))
    with source.serving():
        check_laws(source, expected(1), epoch=1)


ROW = np.zeros(1, np.int64)


def test_a_generator_without_steps_is_read_to_its_end() -> None:
    given = (pair for n, pair in zip(range(5), counting(), strict=False))
    source = source_of(given, reading=Reading(epochs=range(1, 3)))
    assert source is not None
    assert len(source.chunk_rows) == 5
    assert source.later_rows == sum(source.chunk_rows[:2])
    again = pickle.loads(cloudpickle.dumps(source))
    for epoch in (1, 2):
        np.testing.assert_equal(
            again.read(4, epoch).take(ROW), source.read(4, 1).take(ROW)
        )
    assert "each of the others has the first 2 once more" in source.notes[0]
    with pytest.raises(DataError, match="has 0 batches"):
        source_of(given)


def test_a_plan_leaves_a_generator_to_fit() -> None:
    given = (pair for n, pair in zip(range(5), counting(), strict=False))
    planned = source_of(given, reading=Reading(is_plan=True))
    assert source_of(given, reading=Reading(is_plan=True)) is planned
    assert source_of(given) is planned
    with pytest.raises(DataError, match="has 0 batches"):
        source_of(given)


@pytest.mark.parametrize(
    ("free", "given", "why"),
    [
        (90_000, 1.0, "more than half of what is free in .* set TMPDIR"),
        (10**9, 5e-5, "the limit is 0.0 GB, .* set SHOAL_GENERATOR_GB to more"),
    ],
)
def test_a_generator_without_an_end_does_not_fill_the_disk(
    free: int,
    given: float,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    disk = SimpleNamespace(free=free)
    monkeypatch.setattr(spooled.shutil, "disk_usage", lambda _: disk)
    monkeypatch.setattr(unended, "TOLD_S", 0.0)
    steps = "pass validation_steps=N, the number of batches to take"
    reading = Reading(steps_name="validation_steps", generator_gb=given)
    with pytest.raises(DataError, match=rf"not ended after [34] .*{why}") as caught:
        source_of(counting(), reading=reading)
    assert steps in str(caught.value)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    said = capsys.readouterr().err
    assert "the generator is read to its end, as validation_steps is not given" in said
    assert f"has not ended. If it has no end, press Ctrl-C and {steps}. Reading" in said


def test_an_endless_generator_is_warned_of_once_and_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unended, "TOLD_S", float("inf"))
    monkeypatch.setattr(unended, "TOLD_BYTES", 1000)
    told = unended.Unended(PACKING)
    for _ in range(9):
        told.note(400)
    assert capsys.readouterr().err.count("it has given 3 batches (0.0 GB)") == 1


class Stop(Exception):
    """Stands for Ctrl-C."""


def until_told(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Batches without an end, until something was said of them."""
    for batch in counting():
        yield batch
        if capsys.readouterr().err:
            raise Stop


def count_passes(capsys: pytest.CaptureFixture[str]) -> None:
    FedSource.of_passes(
        lambda: until_told(capsys), packing=PACKING, steps_per_epoch=None,
        epochs=range(1),
    )  # fmt: skip


def count_shards(capsys: pytest.CaptureFixture[str]) -> None:
    ShardedSource(lambda _: until_told(capsys), shards=2, packing=PACKING)


@pytest.mark.parametrize("count", [count_passes, count_shards])
def test_counting_an_endless_generator_is_warned_of(
    count: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches are not stored, so that no full disk would end it."""
    monkeypatch.setattr(unended, "TOLD_S", 0.0)
    monkeypatch.setattr(shards, "check_travels", lambda *_: None)
    with pytest.raises(Stop):
        count(capsys)


def test_an_iterator_is_accepted() -> None:
    source = fed(iter([(np.ones((2, 1)), np.ones(2))] * STEPS), epochs=range(1))
    assert (source.kind, len(source)) == ("iterator", 2 * STEPS)


def test_an_empty_generator_is_refused() -> None:
    with pytest.raises(DataError, match="has 0 batches"):
        fed(iter(()))


def test_error_of_a_generator_that_ends_early_names_the_batch() -> None:
    source = fed(counting(STEPS + 2))
    with (
        pytest.raises(DataError, match="ended after 2 batches of epoch 1"),
        source.serving(),
    ):
        source.read(3, epoch=1)
    assert spools() == []


def test_a_batch_of_another_size_is_named() -> None:
    batches = (np.ones((2 if n == 3 else 4, 1)) for n in itertools.count())
    source = fed(batches)
    with (
        pytest.raises(DataError, match="batch 3 of epoch 0 of the generator has 2"),
        source.serving(),
    ):
        source.read(4, epoch=0)


def test_an_error_of_the_users_comes_with_its_traceback(tmp_path: Path) -> None:
    def broken() -> Iterator[Any]:
        yield from counting(2)
        raise KeyError("no such column")

    source = fed(broken())

    def read_elsewhere() -> None:
        indices = np.arange(STEPS * BATCH)
        with reader(source, indices, tmp_path) as process:
            _, errors = process.communicate(timeout=60)
        assert "DataError" in errors
        assert "in broken" in errors
        assert "no such column" in errors
        raise RuntimeError("a worker failed")

    with (
        pytest.raises(DataError, match="failed in the driver") as caught,
        source.serving(),
    ):
        read_elsewhere()
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in broken" in str(caught.value)


def fail(error: type[BaseException]) -> None:
    assert spools()
    raise error


def test_errors_of_others_go_through_and_nothing_stays() -> None:
    for error in (RuntimeError, KeyboardInterrupt):
        source = fed(counting())
        with pytest.raises(error), source.serving():
            fail(error)
    assert spools() == []


def test_a_generator_is_not_read_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def noted() -> Iterator[Any]:
        for n in itertools.count():
            taken.append(n)
            yield np.full((1000, 10), n)

    source = source_of(noted(), reading=Reading(steps_per_epoch=1000))
    assert isinstance(source, FedSource)
    source.ahead_bytes = 5 * 40_000
    with source.serving():
        time.sleep(0.3)
        assert len(taken) <= 7
        source.read(20, epoch=0)
        time.sleep(0.3)
        assert 21 <= len(taken) <= 28


def test_a_worker_far_ahead_gets_its_batch() -> None:
    source = fed(counting())
    source.ahead_bytes = 1
    with source.serving():
        assert source.read(3, epoch=2).rows[1][0][0] == (2 * STEPS + 3) * BATCH


def test_epochs_that_are_over_are_deleted() -> None:
    source = fed(counting(), epochs=range(4))
    with source.serving():
        for epoch in range(4):
            for chunk in range(STEPS):
                source.read(chunk, epoch)
        (folder,) = spools()
        deadline = time.monotonic() + 60
        epochs = set(range(4))
        while epochs != {2, 3} and time.monotonic() < deadline:
            names = [p.name for p in folder.iterdir() if "-" in p.name]
            epochs = {int(name.split("-")[0]) for name in names}
            time.sleep(0.01)
        assert epochs == {2, 3}


def test_of_batches_that_were_read_only_some_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "KEPT_BATCHES", 2)
    spool = Spool.planned("generator", wait_s=5.0)
    batches = (np.ones((100, 10)) for _ in itertools.count())
    feed = Feed(
        spool,
        lambda epoch: batches,
        [100] * 50,
        packing=PACKING,
        epochs=range(1),
        kept_bytes=5 * 4000,
    )
    with spool.open(), feed:
        for chunk in range(50):
            spool.read(BatchKey(0, chunk))
        deadline = time.monotonic() + 5
        while (spool.folder / "0-0").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert spool.read(BatchKey(0, 49)).rows.shape == (100, 10)
        with pytest.raises(DataError, match="read long ago and then deleted"):
            spool.read(BatchKey(0, 0))


def test_waiting_for_a_batch_has_a_limit() -> None:
    spool = Spool.planned("generator", wait_s=0.1)
    with spool.open(), pytest.raises(DataError, match=r"nothing came for 0\.1 s"):
        spool.read(BatchKey(0, 0))
    with pytest.raises(DataError, match="its folder is not there"):
        spool.read(BatchKey(0, 0))


GONE = """
import pickle, sys
from pathlib import Path
from shoal.data.spool import Spool
spool = Spool.planned("generator", wait_s=60.0)
opened = spool.open()
opened.__enter__()
Path(sys.argv[1]).write_bytes(pickle.dumps(spool))
sys.stdin.read()
"""
"""A driver that makes a spool, writes where it is, and waits to be killed."""


def test_waiting_ends_with_the_driver(tmp_path: Path) -> None:
    with driver(tmp_path) as (process, spool):
        process.kill()
        process.wait()
        with pytest.raises(DataError, match="has ended"):
            spool.read(BatchKey(0, 0))
        assert spools() == [spool.folder]
        with Spool.planned("generator").open():  # the next one sweeps
            assert not spool.folder.exists()


def test_a_driver_of_another_namespace_keeps_its_batches(tmp_path: Path) -> None:
    """As a container that shares the temporary folder, and has numbers of its own."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a process namespace")
    with driver(tmp_path, *inside) as (process, spool):
        assert spool.driver.pid < 10  # a number of its own
        with Spool.planned("generator").open():
            assert spool.folder.is_dir()
        spool = dataclasses.replace(spool, wait_s=0.1)
        with pytest.raises(DataError, match="nothing came for"):  # it is not gone
            spool.read(BatchKey(0, 0))
        process.kill()
        process.wait()
        with pytest.raises(DataError, match="has ended"):
            dataclasses.replace(spool, wait_s=60.0).read(BatchKey(0, 0))
        with Spool.planned("generator").open():
            assert not spool.folder.exists()


@contextmanager
def driver(
    tmp_path: Path, *inside: str
) -> Iterator[tuple[subprocess.Popen[bytes], Spool]]:
    """Another process that has a spool open, and the spool."""
    told = tmp_path / "spool"
    words = [*inside, sys.executable, "-c", GONE, str(told)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 60
            while not told.exists() or not told.stat().st_size:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield process, pickle.loads(told.read_bytes())
        finally:
            process.kill()


def test_what_is_left_of_a_removed_folder_is_told() -> None:
    """The driver goes on writing, a worker reading: both say what happened."""
    spool = Spool.planned("generator", wait_s=5.0)
    with spool.open():
        shutil.rmtree(spool.folder)
        with pytest.raises(DataError, match=r"its folder is not there.* Set TMPDIR"):
            spool.read(BatchKey(0, 0))
        with pytest.raises(DataError, match=r"its folder is not there.* Set TMPDIR"):
            spool.write(BatchKey(0, 0), PACKING.chunk(np.ones(3), "batch 0", 3))
        with pytest.raises(DataError, match="its folder is not there"):
            spool.marks()
        spool.fail("why")


def test_a_generator_that_hangs_does_not_hang_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "_JOIN_S", 0.1)
    go_on = threading.Event()

    def hanging() -> Iterator[Any]:
        yield from counting(2)
        go_on.wait()
        yield from counting(2)

    source = fed(hanging())
    with source.serving():
        source.read(1, epoch=0)
    go_on.set()
    assert spools() == []
