"""Checkpoints when the storage, the process or another writer gets in between."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import CheckpointError
from shoal.runs import checkpoints
from shoal.runs.checkpoint_files import Part
from shoal.runs.checkpoints import Checkpoint, CheckpointStore
from shoal.runs.folder import Folder
from tests.runs.checkpoint_faults import (
    Away,
    Faults,
    OwnMemory,
    When,
    faulty,
    faulty_disk,
    in_memory,
)
from tests.runs.test_checkpoints import (
    assert_only,
    assert_same,
    at,
    files,
    never,
    opened,
    taken,
)


def ignore(text: str) -> None: ...


def expect_whole(folder: Folder, is_saved: bool, is_torn: bool) -> int:
    """The storage must give checkpoint 3, or 2 when 3 was not acknowledged."""
    complain = ignore if is_torn else never
    found = CheckpointStore(folder).latest(complain)
    assert found is not None
    assert found.number in ({3} if is_saved else {2, 3})
    assert_same(found, taken(found.number))
    return found.number


def save_with(folder: Folder) -> tuple[CheckpointStore | None, bool]:
    """Opens and saves checkpoint 3 as far as the storage lets it."""
    store = None
    try:
        store = CheckpointStore(folder, complain=ignore).open()
        store.save(taken(3))
    except OSError:
        return store, False
    return store, True


CASES = pytest.mark.parametrize(
    ("when", "is_crash"),
    [*itertools.product(["before", "after", "half"], [False, True])],
)


@CASES
@pytest.mark.parametrize("error", [OSError, Away])
def test_a_failure_at_any_operation_of_an_object_store(
    error: type[Exception], when: When, is_crash: bool
):
    def is_reached(n: int) -> bool:
        folder = two_saved(in_memory())
        faults = Faults(n, when, is_crash=is_crash, error=lambda: error("away"))
        store, is_saved = save_with(faulty(folder, faults))
        if faults.count <= n:
            return False
        is_torn = is_crash and when == "half"
        expect_whole(folder, is_saved, is_torn)
        go_on(folder, None if is_crash else store, is_torn)
        return True

    assert next(n for n in itertools.count() if not is_reached(n)) > 30


@CASES
def test_a_failure_at_any_operation_of_a_disk(
    tmp_path: Path, when: When, is_crash: bool, monkeypatch: pytest.MonkeyPatch
):
    # For speed: what is tested are failures of calls, which need no real platter.
    monkeypatch.setattr(os, "fsync", lambda handle: None)

    def is_reached(n: int) -> bool:
        folder = two_saved(Folder.at(tmp_path / str(n)))
        faults = Faults(n, when, is_crash=is_crash)
        with faulty_disk(faults):
            store, is_saved = save_with(folder)
        if faults.count <= n:
            return False
        expect_whole(folder, is_saved, is_torn=False)
        if not is_crash and faults.names[n] != "unlink":
            assert not [name for name in files(folder) if name.endswith(".partial")]
        go_on(folder, None if is_crash else store, is_torn=False)
        return True

    assert next(n for n in itertools.count() if not is_reached(n)) > 40


def two_saved(folder: Folder) -> Folder:
    store = opened(folder)
    for number in (1, 2):
        store.save(taken(number))
    return folder


def go_on(folder: Folder, store: CheckpointStore | None, is_torn: bool) -> None:
    """Saves once more, in the same process or its successor; nothing else is left."""
    if store is None or store._owner is None:
        store = CheckpointStore(folder, complain=never).open()
    before = store.latest(ignore if is_torn else never)
    store._complain = never
    store.folder = folder
    store.save(taken(4))
    assert_same(store.latest(never), taken(4))
    assert before is not None
    left = store._places()
    assert left[0].number == 4
    assert before.number in {place.number for place in left}
    if not is_torn:
        assert len(left) == 2
        assert_only(folder, *left)


def test_a_full_disk_leaves_nothing_behind():
    folder = in_memory()
    opened(folder).save(taken(1))
    faults = Faults()
    store = CheckpointStore(faulty(folder, faults)).open()
    before = files(folder)
    faults.at, faults.count = 6, 0
    with pytest.raises(OSError, match="disk full"):
        store.save(taken(2))
    assert files(folder) == before
    store.save(taken(2))
    assert_same(store.latest(never), taken(2))


# --- two writers


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder.at(tmp_path / "checkpoints")
    return in_memory()


def test_the_second_writer_takes_over(folder: Folder):
    first = opened(folder)
    first.save(taken(1))
    second = opened(folder)
    assert_same(second.latest(never), taken(1))
    with pytest.raises(CheckpointError, match=f"generation=2.*pid={os.getpid()}"):
        first.save(taken(2))
    second.save(taken(2))
    with pytest.raises(CheckpointError, match="has taken over"):
        first.save(taken(3))
    assert_same(second.latest(never), taken(2))
    assert_only(folder, at(1, 1), at(2, 2))


def test_open_twice_is_one_claim(folder: Folder):
    first = opened(folder)
    opened(folder)
    with pytest.raises(CheckpointError, match="has taken over"):
        first.open().save(taken(1))


@pytest.mark.parametrize("moment", ["before the manifest", "after it"])
def test_taken_over_while_it_saves(
    folder: Folder, moment: str, monkeypatch: pytest.MonkeyPatch
):
    opened(folder).save(taken(1))
    first = opened(folder)
    write, others = checkpoints.write_whole, []

    def meanwhile(where: Folder, name: str, content: bytes) -> None:
        monkeypatch.setattr(checkpoints, "write_whole", write)
        if moment == "after it":
            write(where, name, content)
        others.append(opened(folder))
        others[0].save(taken(2))
        if moment != "after it":
            write(where, name, content)

    monkeypatch.setattr(checkpoints, "write_whole", meanwhile)
    with pytest.raises(CheckpointError, match="has taken over"):
        first.save(taken(9))
    # Whatever the first has left, the second's counts, although 2 < 9.
    assert_same(CheckpointStore(folder).latest(never), taken(2))
    others[0].save(taken(3))
    assert_only(folder, at(3, 2), at(3, 3))


def test_taken_over_before_the_manifest_it_is_never_written(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    first = opened(folder)
    write = checkpoints.write_part

    def meanwhile(where: Folder, name: str, content: memoryview) -> Part:
        opened(folder)
        return write(where, name, content)

    monkeypatch.setattr(checkpoints, "write_part", meanwhile)
    with pytest.raises(CheckpointError, match="has taken over"):
        first.save(taken(1))
    assert files(folder) == []


def test_parts_of_a_later_writer_stay(folder: Folder):
    theirs = at(9, 1).part("ab", 1, 0)
    first = opened(folder)
    folder.write(theirs, b"on its way")
    first.save(taken(1))
    assert folder.read(theirs) == b"on its way"


def test_a_put_that_arrives_although_it_failed_keeps_its_parts(
    monkeypatch: pytest.MonkeyPatch,
):
    folder = two_saved(in_memory())
    store, write, remove = opened(folder), checkpoints.write_whole, checkpoints.remove

    def arrives(where: Folder, name: str, content: bytes) -> None:
        write(where, name, content)
        raise TimeoutError("no answer")

    def away(where: Folder, name: str) -> None:
        if name.endswith(".manifest"):
            raise TimeoutError("no answer")
        remove(where, name)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_whole", arrives)
        patch.setattr(checkpoints, "remove", away)
        with pytest.raises(TimeoutError):
            store.save(taken(3))
    assert_same(store.latest(never), taken(3))
    store.save(taken(3))
    assert_only(folder, at(1, 2), at(2, 3))


def test_a_successor_that_removes_parts_is_reported(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    first = opened(folder)

    def gone(*_: object) -> None:
        opened(folder)
        raise FileNotFoundError("somebody removed the part")

    monkeypatch.setattr(checkpoints, "write_part", gone)
    with pytest.raises(CheckpointError, match="has taken over"):
        first.save(taken(1))


def test_many_writers_open_at_once(folder: Folder):
    barrier = threading.Barrier(8)
    stores: list[CheckpointStore] = []

    def open_one() -> None:
        store = CheckpointStore(folder)
        barrier.wait()
        stores.append(store.open())

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saved = []
    for number, store in enumerate(stores):
        try:
            store.save(taken(number))
            saved.append(store)
        except CheckpointError:
            pass
    assert len(stores) == 8
    assert len(saved) == 1


def test_a_copy_without_tokens_counts_on_from_its_manifests(folder: Folder):
    for number in (1, 2, 3):
        opened(folder).save(taken(number))
    folder.child("owners").remove()
    store = opened(folder)
    store.save(taken(2))
    assert_same(store.latest(never), taken(2))


def test_a_folder_that_went_away_is_no_other_writer(folder: Folder):
    store = opened(folder)
    folder.remove()
    with pytest.raises(FileNotFoundError):
        store.save(taken(1))


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_token_that_was_changed_refuses(folder: Folder, content: bytes):
    store = opened(folder)
    folder.write("owners/000001.json", content)
    with pytest.raises(CheckpointError, match="it does not say which"):
        store.save(taken(1))
    assert files(folder) == []


class CannotCreate(OwnMemory):
    """A storage without an exclusive mode; somebody else comes in between."""

    rivals = 1

    def open(self, path: str, mode: str = "rb", **options: object) -> object:
        if "x" in mode:
            raise ValueError(mode)
        return super().open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, **options: object) -> None:
        super().pipe_file(path, value)
        if "/owners/" in path and self.rivals:
            self.rivals -= 1
            super().pipe_file(path, b"of somebody else")


def test_two_writers_with_the_same_token_do_not_both_own_the_store():
    folder = Folder(fs=CannotCreate(skip_instance_cache=True), path="/run")
    store = opened(folder)
    store.save(taken(1))
    assert_only(folder, at(2, 1))


def test_a_token_that_others_always_take():
    folder = Folder(fs=CannotCreate(skip_instance_cache=True), path="/run")
    folder.fs.rivals = 1000
    with pytest.raises(CheckpointError, match="came first"):
        CheckpointStore(folder).open()


def test_a_claim_with_a_taken_number_takes_the_next_one(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    create = Folder.create

    def late(where: Folder, name: str, content: bytes) -> None:
        monkeypatch.setattr(Folder, "create", create)
        create(where, name, b"of somebody faster")
        create(where, name, content)

    monkeypatch.setattr(Folder, "create", late)
    store = opened(folder)
    store.save(taken(1))
    assert_only(folder, at(2, 1))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_disk_that_cannot_sync_folders(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
):
    store = opened(Folder.at(tmp_path))
    sync = os.fsync

    def only_files(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, "cannot sync")
        sync(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    if number == errno.EINVAL:
        store.save(taken(1))
        assert_same(store.latest(never), taken(1))
        return
    with pytest.raises(OSError, match="cannot sync"):
        store.save(taken(1))
    assert files(Folder.at(tmp_path)) == []


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "save", "save", "save"]),
        st.integers(0, 2),
        st.integers(-20, 60),
        st.sampled_from(["before", "after", "half"]),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=100)
@given(actions=ACTIONS)
def test_any_schedule_of_three_writers_and_failures(
    actions: list[tuple[str, int, int, When, bool]],
):
    folder = in_memory()
    stores: dict[int, tuple[CheckpointStore, Faults]] = {}
    tried: dict[tuple[int, int], Checkpoint] = {}
    acknowledged, is_torn = (0, 0), False
    for number, (verb, who, n, when, is_crash) in enumerate(actions):
        faults = stores[who][1] if who in stores else Faults()
        if verb == "open":
            faults = Faults()
            store = CheckpointStore(faulty(folder, faults), complain=ignore)
            stores[who] = (store.open(), faults)
        elif who in stores:
            store, faults = stores[who]
            faults.at, faults.count = max(n, -1), 0
            faults.when, faults.is_crash = when, is_crash
            assert store._owner is not None
            order = (store._owner.generation, number)
            tried[order] = taken(number)
            newest = max(s._owner.generation for s, _ in stores.values() if s._owner)
            try:
                store.save(taken(number))
                assert order[0] == newest
                acknowledged = max(acknowledged, order)
            except (OSError, CheckpointError):
                if is_crash and 0 <= faults.at < faults.count:
                    del stores[who]
        try:
            found = CheckpointStore(folder).latest(ignore)
        except CheckpointError:
            # The very first manifest, cut off by a storage that puts no whole files.
            assert acknowledged == (0, 0)
            assert when == "half" or is_torn
            found, is_torn = None, True
        if acknowledged != (0, 0):
            assert found is not None
        if found is not None:
            matching = [o for o in tried if o[1] == found.number and o >= acknowledged]
            assert matching
            assert_same(found, tried[matching[0]])


# --- a process that is really killed

WRITER = """
import sys
import numpy as np
from shoal.runs.checkpoint_files import Part
from shoal.runs.checkpoints import Checkpoint, CheckpointStore
from shoal.runs.folder import Folder
store = CheckpointStore(Folder.at(sys.argv[1])).open()
found = store.latest(lambda text: sys.exit(text))
first = found.number + 1 if found else 1
for number in range(first, 10**6):
    center = np.full(200_000, number, np.float32)
    blobs = {"w": str(number).encode() * 1000}
    store.save(Checkpoint(number=number, arrays={"center": center}, blobs=blobs))
    print(number, flush=True)
"""


@pytest.mark.process
def test_a_killed_process_loses_nothing_it_had_saved(tmp_path: Path):
    folder, last = Folder.at(tmp_path / uuid4().hex), 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, folder.path],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in itertools.islice(process.stdout, 5):
                last = int(line)
            process.send_signal(signal.SIGKILL)
            said = [int(line) for line in process.stdout if line.endswith("\n")]
        last = max([last, *said])
        found = CheckpointStore(folder).latest(never)
        assert found is not None
        assert found.number in (last, last + 1)
        assert (found.arrays["center"] == found.number).all()
        assert found.blobs["w"] == str(found.number).encode() * 1000
