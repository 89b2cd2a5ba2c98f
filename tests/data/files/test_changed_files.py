"""Files that are others when a run goes on than when it began."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.files import open_files
from shoal.data.files.changes import changes_of
from shoal.data.sources import ArraySource
from shoal.data.weighted import ClassWeighted
from shoal.errors import DataError
from shoal.models.pickling import dumps, loads
from shoal.training.same_files import check_files
from tests.data.files.writing import csv_bytes, npz_bytes, parquet_bytes

WRITE: dict[str, Any] = {
    "csv": csv_bytes,
    "npz": lambda table: npz_bytes(**table),
    "parquet": parquet_bytes,
}


def table(seed: int, rows: int = 40) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {"a": draw.integers(10, 99, rows), "y": draw.integers(0, 2, rows)}


@pytest.fixture(params=sorted(WRITE))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, bytes]:
    """A source of two files as a run keeps it, and one of the files."""
    for number in (1, 2):
        path = tmp_path / f"{number}.{request.param}"
        path.write_bytes(WRITE[request.param](table(number)))
    kept = dumps(open_files(tmp_path, features="a", label="y"))
    return request.param, tmp_path / f"2.{request.param}", kept


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


def test_a_version_of_a_store_is_certain() -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/changed/1.csv", csv_bytes(table(1)))
    source = open_files("memory://changed", features="a", label="y")
    assert changes_of(source) == ((), ())
    assert changes_of(ClassWeighted(source, {1: 2.0})) == ((), ())
    system.pipe("/changed/1.csv", csv_bytes(table(1, rows=41)))
    assert len(changes_of(ClassWeighted(source, {1: 2.0})).certain) == 1


def test_arrays_read_no_files() -> None:
    assert changes_of(ArraySource(np.ones((4, 1)))) == ((), ())
    assert changes_of(None) == ((), ())
