"""Files that are others when a run goes on than when it began."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.files import changes, open_files
from shoal.data.files.changes import FileChanges, changes_of
from shoal.data.sources import ArraySource
from shoal.data.weighted import ClassWeighted
from shoal.errors import DataError, StoreFailed
from shoal.models.pickling import dumps, loads
from shoal.training.same_files import check_files
from tests.data.files.writing import (
    arrow_bytes,
    csv_bytes,
    image_bytes,
    npz_bytes,
    parquet_bytes,
    tfrecord_bytes,
)

Table: TypeAlias = dict[str, npt.NDArray[np.int64]]


def tfrecord_of(columns: Table) -> bytes:
    rows = zip(*columns.values(), strict=True)
    return tfrecord_bytes([dict(zip(columns, row, strict=True)) for row in rows])


def image_of(columns: Table) -> bytes:
    """A bitmap, which is as long as its pixels are many."""
    pixels = np.repeat(columns["a"].astype("u1")[:, None], 3, axis=1)
    return image_bytes(np.stack([pixels] * 2), "BMP")


WRITE: dict[str, Any] = {
    "bmp": image_of,
    "csv": csv_bytes,
    "npz": lambda table: npz_bytes(**table),
    "arrow": arrow_bytes,
    "parquet": parquet_bytes,
    "tfrecord": tfrecord_of,
}


def table(seed: int, rows: int = 40) -> Table:
    draw = np.random.default_rng(seed)
    return {"a": draw.integers(10, 99, rows), "y": draw.integers(0, 2, rows)}


def place(folder: Path, kind: str, number: int) -> Path:
    """Images lie in folders of their classes, all else side by side."""
    inside = f"class{number}/" if kind == "bmp" else ""
    return folder / f"{inside}{number}.{kind}"


def write(folder: Path, kind: str, number: int, **more: Any) -> Path:
    path = place(folder, kind, number)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(WRITE[kind](table(number, **more)))
    return path


def opened(url: Any, kind: str, **more: Any) -> bytes:
    """A source as a run keeps it."""
    columns = {} if kind == "bmp" else {"features": "a", "label": "y"}
    return dumps(open_files(url, **columns, **more))


@pytest.fixture(params=sorted(WRITE))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, bytes]:
    """A source of two files as a run keeps it, and one of the files."""
    kind = request.param
    write(tmp_path, kind, 1)
    path = write(tmp_path, kind, 2)
    return kind, path, opened(tmp_path, kind)


def told(kept: bytes) -> list[str]:
    """What is warned of; refusals are raised."""
    said: list[str] = []
    check_files("the data", loads(kept), said.append)
    return said


def test_files_that_stay_are_not_mentioned(stored: tuple[str, Path, bytes]) -> None:
    assert told(stored[2]) == []


def test_other_values_of_the_same_size_are_warned_of(
    stored: tuple[str, Path, bytes],
) -> None:
    kind, path, kept = stored
    before = path.stat()
    path.write_bytes(WRITE[kind](table(7)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    if path.stat().st_size == before.st_size:
        assert "written to since the run began" in told(kept)[0]
        assert str(path) in told(kept)[0]
    else:
        with pytest.raises(DataError, match="changed since the run began"):
            told(kept)


@pytest.mark.parametrize("change", ["longer", "gone"])
def test_longer_and_missing_files_are_refused(
    stored: tuple[str, Path, bytes], change: str
) -> None:
    kind, path, kept = stored
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(WRITE[kind](table(2, rows=400)))
    how = "gone" if change == "gone" else "before"
    with pytest.raises(DataError, match=rf"{path.name}: .*{how}.*Put them back"):
        told(kept)


def test_changed_files_of_a_store_are_found() -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/changed/1.csv", csv_bytes(table(1)))
    source = open_files("memory://changed", features="a", label="y")
    assert changes_of(source) == FileChanges()
    assert changes_of(ClassWeighted(source, {1: 2.0})) == FileChanges()
    system.pipe("/changed/1.csv", csv_bytes(table(1, rows=41)))
    assert len(changes_of(ClassWeighted(source, {1: 2.0})).certain) == 1


def test_arrays_read_no_files() -> None:
    assert changes_of(ArraySource(np.ones((4, 1)))) == FileChanges()
    assert changes_of(None) == FileChanges()


def assert_told_of(path: Path, said: list[str]) -> None:
    [text] = said
    assert str(path) in text
    assert "goes on with the files that it began with" in text


@pytest.mark.parametrize("is_glob", [False, True])
@pytest.mark.parametrize("kind", sorted(WRITE))
def test_a_new_file_is_warned_of(kind: str, is_glob: bool, tmp_path: Path) -> None:
    """In the folder of the data, or where a pattern finds it."""
    for number in (1, 2):
        write(tmp_path, kind, number)
    pattern = f"class*/*.{kind}" if kind == "bmp" else f"*.{kind}"
    kept = opened(tmp_path / pattern if is_glob else tmp_path, kind)
    assert told(kept) == []
    assert_told_of(write(tmp_path, kind, 3), told(kept))


def test_a_new_file_is_warned_of_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("data", "elsewhere"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "data", "csv", 1)
    monkeypatch.chdir(tmp_path)
    kept = opened("data", "csv")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert told(kept) == []
    assert_told_of(write(tmp_path / "data", "csv", 2), told(kept))


def test_a_new_file_in_a_store_is_warned_of() -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/grown/1.csv", csv_bytes(table(1)))
    source = open_files("memory://grown/", features="a", label="y")
    system.pipe("/grown/deep/2.csv", csv_bytes(table(2)))
    for one in (source, ClassWeighted(source, {1: 2.0})):
        assert changes_of(one) == FileChanges(new=("memory:///grown/deep/2.csv: new",))


def test_new_files_without_data_are_not_warned_of(tmp_path: Path) -> None:
    """Hidden ones, empty ones, and what another program leaves beside the data."""
    for number in (1, 2):
        write(tmp_path, "csv", number)
    kept = opened(tmp_path, "csv")
    for name in (".3.csv", "_4.csv", "5.csv"):
        (tmp_path / name).write_bytes(b"" if name == "5.csv" else b"a,y\n1,2\n")
    (tmp_path / "shoal-runs").mkdir()
    (tmp_path / "shoal-runs" / "events.jsonl").write_text("{}")
    assert told(kept) == []


def test_files_that_were_named_one_by_one_have_no_new_ones(tmp_path: Path) -> None:
    paths = [write(tmp_path, "csv", number) for number in (1, 2)]
    kept = opened([str(path) for path in paths], "csv")
    write(tmp_path, "csv", 3)
    assert told(kept) == []


@pytest.mark.parametrize("before", [b"", b"a,y\n", b"a,b\nx,y\n"])
def test_a_left_out_file_that_has_rows_now_is_warned_of(
    before: bytes, tmp_path: Path
) -> None:
    """It was empty, without rows, or bad."""
    write(tmp_path, "csv", 1)
    path = tmp_path / "2.csv"
    path.write_bytes(before)
    kept = opened(tmp_path, "csv", on_bad_file="skip")
    assert told(kept) == []
    assert_told_of(write(tmp_path, "csv", 2), told(kept))
    path.unlink()  # it was no part of the run
    assert told(kept) == []


def test_a_new_file_for_preprocessing_is_warned_of(tmp_path: Path) -> None:
    def whole(keys: Any, objects: Any) -> Any:
        return np.ones((len(keys), 1)), np.ones(len(keys)), len(keys)

    path = tmp_path / "one"
    path.write_bytes(b"1")
    kept = dumps(open_files(tmp_path, preprocess=whole))
    assert told(kept) == []
    (tmp_path / "two").write_bytes(b"2")
    assert_told_of(tmp_path / "two", told(kept))


def test_a_folder_that_cannot_be_listed_says_so_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "csv", 1)
    kept = opened(tmp_path, "csv")

    def away(*_: Any) -> Any:
        raise StoreFailed("the store is away. Expected it there. Look.")

    monkeypatch.setattr(changes, "find_files", away)
    assert told(kept) == []
