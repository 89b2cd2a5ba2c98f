from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.errors import CheckpointError, ConfigError
from shoal.runs import checkpoint_manifest
from shoal.runs.checkpoints import PARTS, Checkpoint, CheckpointNumber, CheckpointStore
from shoal.runs.folder import Folder
from tests.runs.checkpoint_faults import Faults, faulty, in_memory


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder.at(tmp_path / "checkpoints")
    return in_memory()


def taken(number: int, size: int = 5) -> Checkpoint:
    """A small checkpoint of which every part tells its number."""
    return Checkpoint(
        number=number,
        document={"epoch": number, "history": {"loss": [0.5] * number}},
        arrays={
            "center": np.full(size, number, np.float32),
            "counts": np.full((2, 1), number, np.int64),
        },
        blobs={"optimizer/0": bytes([number % 256]) * 7, "nothing": b""},
    )


def assert_same(found: Checkpoint | None, expected: Checkpoint) -> None:
    assert found is not None
    assert found.number == expected.number
    assert found.document == expected.document
    assert dict(found.blobs) == dict(expected.blobs)
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()


def never(text: str) -> None:
    raise AssertionError(text)


def opened(folder: Folder, **options: Any) -> CheckpointStore:
    return CheckpointStore(folder, complain=never, **options).open()


def files(folder: Folder) -> list[str]:
    top = [name for name in folder.names() if name not in (PARTS, "owners")]
    return top + [f"{PARTS}/{name}" for name in folder.names(PARTS)]


def files_of(folder: Folder, place: CheckpointNumber) -> list[str]:
    manifest = checkpoint_manifest.decode(folder.read(place.manifest), place)
    return [place.manifest, *(part.name for part in manifest.parts)]


def assert_only(folder: Folder, *expected: CheckpointNumber) -> None:
    """Nothing else is there: no file too many, none too few."""
    needed = [name for place in expected for name in files_of(folder, place)]
    assert sorted(files(folder)) == sorted(needed)


def at(generation: int, number: int) -> CheckpointNumber:
    return CheckpointNumber(generation=generation, number=number)


# --- round trip

NUMBERS = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
)
ARRAYS = hnp.arrays(NUMBERS, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
CHECKPOINTS = st.builds(
    Checkpoint,
    number=st.integers(0, 10**13),
    document=st.dictionaries(st.text(), JSON, max_size=3),
    arrays=st.dictionaries(st.text(), ARRAYS, max_size=3),
    blobs=st.dictionaries(st.text(), st.binary(), max_size=3),
)


@given(checkpoint=CHECKPOINTS)
def test_a_saved_checkpoint_is_loaded_from_memory(checkpoint: Checkpoint):
    folder = in_memory()
    opened(folder).save(checkpoint)
    assert_same(CheckpointStore(folder).latest(never), checkpoint)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(checkpoint=CHECKPOINTS)
def test_a_saved_checkpoint_is_loaded_from_disk(tmp_path: Path, checkpoint: Checkpoint):
    folder = Folder.at(tmp_path / uuid4().hex)
    opened(folder).save(checkpoint)
    assert_same(CheckpointStore(folder).latest(never), checkpoint)


@pytest.mark.parametrize("order", ["fortran", "strided", "column", "backwards"])
def test_arrays_of_any_memory_layout(folder: Folder, order: str):
    plain = np.arange(24, dtype=">f8").reshape(4, 6)
    array = {
        "fortran": np.asfortranarray(plain),
        "strided": plain[::2, 1::3],
        "column": plain[:, 0],
        "backwards": plain[::-1],
    }[order]
    opened(folder).save(Checkpoint(number=0, arrays={"a": array}))
    found = CheckpointStore(folder).latest(never)
    assert found is not None
    np.testing.assert_array_equal(found.arrays["a"], array)
    found.arrays["a"].flat[0] = 7.0  # a run goes on with it, so it must be writable


def test_history_keeps_nan_and_infinity(folder: Folder):
    opened(folder).save(
        Checkpoint(number=0, document={"loss": [float("nan"), float("inf")]})
    )
    found = CheckpointStore(folder).latest(never)
    assert found is not None
    assert repr(found.document) == "{'loss': [nan, inf]}"


def test_many_chunks(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shoal.runs.checkpoint_files.CHUNK_BYTES", 7)
    opened(folder).save(taken(1, size=1000))
    assert_same(CheckpointStore(folder).latest(never), taken(1, size=1000))


def test_size_bytes():
    assert taken(1).size_bytes == 5 * 4 + 2 * 8 + 7


def test_a_large_array_is_not_copied_to_save_it_and_once_to_load_it(tmp_path: Path):
    size_bytes = 32 << 20
    checkpoint = Checkpoint(
        number=0, arrays={"center": np.ones(size_bytes // 4, np.float32)}
    )
    store = opened(Folder.at(tmp_path))
    tracemalloc.start()
    try:
        store.save(checkpoint)
        assert tracemalloc.get_traced_memory()[1] < size_bytes / 4
        found = store.latest(never)
        assert found is not None
        assert tracemalloc.get_traced_memory()[1] < size_bytes * 1.25
    finally:
        tracemalloc.stop()


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"number": -1}, "number is negative"),
        ({"arrays": {"a": np.array([None])}}, r"arrays\['a'\] has dtype='object'"),
        ({"arrays": {"a": np.array(["x"])}}, "dtype="),
        ({"document": {"ranks": [{1: 2}]}}, r"the key 1 in document\['ranks'\]\[\]"),
        ({"document": {"fit": print}}, "not JSON"),
    ],
)
def test_values_that_cannot_be_restored_are_refused(
    folder: Folder, fields: dict[str, Any], reason: str
):
    store = opened(folder)
    with pytest.raises(CheckpointError, match=reason):
        store.save(replace(Checkpoint(number=1), **fields))
    assert files(folder) == []


def test_numbers_must_grow(folder: Folder):
    store = opened(folder)
    store.save(taken(4))
    with pytest.raises(CheckpointError, match="number=4"):
        store.save(taken(4))
    assert_same(store.latest(never), taken(4))


def test_a_store_that_was_not_opened_only_reads(folder: Folder):
    store = CheckpointStore(folder)
    assert store.latest(never) is None
    with pytest.raises(CheckpointError, match="Call open"):
        store.save(taken(1))
    assert not folder.exists()


def test_keep_must_be_positive():
    with pytest.raises(ConfigError, match="keep=0"):
        CheckpointStore(in_memory(), keep=0)


# --- retention


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_ones_are_kept(folder: Folder, keep: int):
    store = opened(folder, keep=keep)
    for number in range(1, 6):
        store.save(taken(number))
        stay = [at(1, n) for n in range(1, number + 1)][-keep:]
        assert_only(folder, *stay)


def test_a_file_of_another_program_stays(folder: Folder):
    folder.write(f"{PARTS}/notes.txt", b"mine")
    store = opened(folder)
    for number in range(4):
        store.save(taken(number))
    assert folder.read(f"{PARTS}/notes.txt") == b"mine"


def damage_unseen(folder: Folder, place: CheckpointNumber) -> None:
    """Changes a part without changing its length, which no listing shows."""
    name = files_of(folder, place)[1]
    folder.write(name, bytes(len(folder.read(name))))


def test_a_checkpoint_found_damaged_does_not_count_as_kept(folder: Folder):
    store = opened(folder)
    for number in (1, 2, 3):
        store.save(taken(number))
    damage_unseen(folder, at(1, 3))
    said: list[str] = []
    after = opened(folder)
    assert_same(after.latest(said.append), taken(2))
    after.save(taken(3))
    assert_only(folder, at(1, 2), at(1, 3), at(2, 3))
    after.save(taken(4))
    assert_only(folder, at(2, 3), at(2, 4))


def test_one_that_lacks_a_part_does_not_count_as_kept(folder: Folder):
    store = opened(folder)
    for number in (1, 2):
        store.save(taken(number))
    folder.fs.rm_file(folder.where(files_of(folder, at(1, 2))[1]))
    store.save(taken(3))
    assert_same(store.latest(never), taken(3))
    assert folder.exists(at(1, 1).manifest)


def test_files_that_cannot_be_removed_are_reported_and_removed_later():
    folder, said = in_memory(), []
    faults = Faults(error=lambda: PermissionError("read only"))
    store = CheckpointStore(faulty(folder, faults), complain=said.append).open()
    for number in (1, 2, 3):
        faults.names.clear()
        faults.count = 0
        store.save(taken(number))
    # The first removal of the third save: let the fourth save fail there.
    faults.at, faults.count = faults.names.index("rm_file"), 0
    store.save(taken(4))
    assert "cannot be removed" in said[0]
    assert_same(store.latest(never), taken(4))
    assert len(files(folder)) > 12
    store.save(taken(5))
    assert_only(folder, at(1, 4), at(1, 5))


# --- damage


def each_harm(content: bytes) -> list[bytes]:
    """A file cut short, grown, emptied, and with a bit turned here and there."""
    step = 1 + len(content) // 100
    cut = [content[:n] for n in {0, 1, len(content) // 2, max(0, len(content) - 1)}]
    turned = [
        content[:n] + bytes([content[n] ^ 1 << n % 8]) + content[n + 1 :]
        for n in range(0, len(content), step)
    ]
    return [c for c in [*cut, content + b"\0", *turned] if c != content]


def test_damage_to_any_file_is_found(folder: Folder):
    store = opened(folder)
    store.save(taken(1))
    store.save(taken(2))
    tried = 0
    for name in files_of(folder, at(1, 2)):
        whole = folder.read(name)
        for content in each_harm(whole):
            said: list[str] = []
            folder.fs.pipe_file(folder.where(name), content)
            assert_same(CheckpointStore(folder).latest(said.append), taken(1))
            assert len(said) == 1
            assert "checkpoint 2" in said[0]
            assert name in said[0]
            tried += 1
        folder.write(name, whole)
    assert tried > 150
    assert_same(CheckpointStore(folder).latest(never), taken(2))


def test_a_missing_file_is_found(folder: Folder):
    store = opened(folder)
    store.save(taken(1))
    store.save(taken(2))
    for name in files_of(folder, at(1, 2))[1:]:
        whole, said = folder.read(name), []
        folder.fs.rm_file(folder.where(name))
        assert_same(CheckpointStore(folder).latest(said.append), taken(1))
        assert f"{name} is missing" in said[0]
        folder.write(name, whole)


def test_when_all_are_damaged_the_error_says_what_to_do(folder: Folder):
    store = opened(folder)
    for number in (1, 2):
        store.save(taken(number))
        folder.write(at(1, number).manifest, b"")
    said: list[str] = []
    with pytest.raises(CheckpointError, match="Restore the folder from a copy"):
        CheckpointStore(folder).latest(said.append)
    assert len(said) == 2


def test_a_manifest_under_another_name_is_damage(folder: Folder):
    store = opened(folder)
    store.save(taken(1))
    folder.write(at(1, 9).manifest, folder.read(at(1, 1).manifest))
    said: list[str] = []
    assert_same(store.latest(said.append), taken(1))
    assert "copy of another" in said[0]


def forge(folder: Folder, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes a manifest with a right checksum and whatever content."""
    fields = json.loads(folder.read(at(1, 2).manifest).splitlines()[1])
    change(fields)
    folder.write(
        at(1, 2).manifest, checkpoint_manifest._seal(json.dumps(fields).encode())
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["document"].update(name="../../secret"),
        lambda m: m["arrays"]["counts"].update(dtype="|O"),
        lambda m: m["arrays"]["center"].update(shape=[1 << 40]),
        lambda m: m["arrays"]["counts"].update(shape=[-2, -1]),
        lambda m: m["arrays"]["center"].update(dtype="nonsense"),
        lambda m: m.pop("blobs"),
    ],
)
def test_a_forged_manifest_leads_nowhere(
    folder: Folder, change: Callable[[dict[str, Any]], None]
):
    store = opened(folder)
    store.save(taken(1))
    store.save(taken(2))
    forge(folder, change)
    said: list[str] = []
    assert_same(store.latest(said.append), taken(1))
    assert len(said) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"[" * 200_000],
    ids=["empty", "cut", "no UTF-8", "list", "deep"],
)
def test_a_document_that_is_no_object_is_damage(folder: Folder, content: bytes):
    """Its size and its checksum are right."""
    store = opened(folder)
    store.save(taken(1))
    store.save(taken(2))

    def other(fields: dict[str, Any]) -> None:
        document = fields["document"]
        folder.write(document["name"], content)
        checksum = hashlib.sha256(content).hexdigest()
        document.update(size_bytes=len(content), sha256=checksum)

    forge(folder, other)
    said: list[str] = []
    assert_same(store.latest(said.append), taken(1))
    assert "document" in said[0]


def test_another_format_is_no_damage(folder: Folder):
    store = opened(folder)
    store.save(taken(1))
    store.save(taken(2))
    forge(folder, lambda m: m.update(format=99))
    with pytest.raises(CheckpointError, match="format=99"):
        store.latest(never)


def test_a_reader_that_is_overtaken_reads_the_newer_one(folder: Folder):
    writer, reader = opened(folder, keep=1), CheckpointStore(folder)
    writer.save(taken(1))
    read = reader._manifest

    def overtaken(place: CheckpointNumber) -> checkpoint_manifest.Manifest:
        manifest = read(place)
        if place.number == 1:
            writer.save(taken(2))
        return manifest

    reader._manifest = overtaken  # type: ignore[method-assign]
    assert_same(reader.latest(never), taken(2))


# --- a storage that is away says nothing about its files


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError])
def test_a_storage_that_is_away_is_no_damage(error: type[Exception]):
    folder = in_memory()
    store = opened(folder)
    store.save(taken(1))
    store.save(taken(2))
    counted = Faults()
    CheckpointStore(faulty(folder, counted)).latest(never)
    assert counted.count > 10
    for n in range(counted.count):
        faults = Faults(n, error=lambda: error("away"))
        with pytest.raises(OSError, match="away"):
            CheckpointStore(faulty(folder, faults)).latest(never)


def test_a_disk_that_cannot_read_a_file_is_damage():
    folder = in_memory()
    store = opened(folder)
    store.save(taken(1))
    store.save(taken(2))
    counted = Faults()
    CheckpointStore(faulty(folder, counted)).latest(never)
    rotten = Faults(
        counted.names.index("readinto"), error=lambda: OSError(5, "Input/output error")
    )
    said: list[str] = []
    found = CheckpointStore(faulty(folder, rotten)).latest(said.append)
    assert_same(found, taken(1))
    assert "cannot be read from its disk" in said[0]
