"""What a task writes of its part of a DataFrame, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.data.files import open_files
from shoal.data.files.format import Part
from shoal.data.files.store import FileEntry
from shoal.data.frame_writing import Written, pack_part, write_part
from shoal.data.frames import portions_of
from shoal.errors import DataError

X = np.arange(6000, dtype="f4").reshape(2000, 3)
Y = np.arange(2000)


def batches(x: Any = X, y: Any = Y, rows: int = 300) -> Iterator[pa.RecordBatch]:
    """Batches as Spark gives them: lists without a fixed length."""
    for start in range(0, len(y), rows):
        part = slice(start, start + rows)
        lists = pa.array(list(x[part]), pa.list_(pa.float32()))
        yield pa.RecordBatch.from_pydict({"x": lists, "y": pa.array(y[part])})


def test_rows_are_written_in_groups_of_their_own(tmp_path: Path) -> None:
    told = write_part(batches(), f"{tmp_path}/a.arrow", partition=3)
    assert (told.error, told.rows, told.partition) == ("", (2000,), 3)
    assert told.shapes == {"x": (3,), "y": ()}
    assert told.size_bytes == (tmp_path / "a.arrow").stat().st_size
    x, y = open_files(tmp_path, features="x", label="y").take(slice(None))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


def test_large_batches_are_cut(tmp_path: Path) -> None:
    x = np.zeros((5000, 64), "f4")
    told = write_part(batches(x, np.arange(5000), rows=5000), f"{tmp_path}/a.arrow")
    assert told.rows == (1024, 1024, 1024, 1024, 904)


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    empty = pa.RecordBatch.from_pydict({"x": pa.array([], pa.float32())})
    told = write_part([empty], f"{tmp_path}/a.arrow")
    assert (told.url, told.rows, told.error) == ("", (), "")
    assert list(tmp_path.iterdir()) == []


def test_nested_lists_become_one_array(tmp_path: Path) -> None:
    grid = np.arange(24, dtype="f4").reshape(4, 2, 3)
    batch = pa.RecordBatch.from_pydict({"x": pa.array(grid.tolist())})
    assert write_part([batch], f"{tmp_path}/a.arrow").shapes == {"x": (2, 3)}
    found = open_files(tmp_path, features="x", label=()).take(slice(None))
    np.testing.assert_array_equal(found, grid)


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    x = X.copy()
    x[7, 1], x[1999, 0] = np.nan, np.inf
    told = write_part(batches(x), f"{tmp_path}/a.arrow")
    assert told.strange == {"x": 2}


ROWS = pa.array([[1.0, 2.0]] * 5)
BAD = {
    "a cell": (
        {"x": pa.array([1.0, None, 3.0, None])},
        "column 'x' of the DataFrame has 2 nulls, the first in row 11 of partition 2",
    ),
    "a list": (
        {"x": pa.array([[1.0], None])},
        "has 1 nulls, the first in row 11 of partition 2",
    ),
    "a value": (
        {"x": pa.array([[1.0, 2.0], [3.0, None]])},
        "lists in column 'x' of the DataFrame have 1 nulls, the first in row 11",
    ),
    "lengths": (
        {"x": pa.array([[1.0], [2.0, 3.0]])},
        "has rows of shapes (1,) and (2,), by row 10 of partition 2",
    ),
    "lengths of batches": ({"x": pa.array([[1.0]] * 4)}, "of shapes (2,) and (1,)"),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_that_cannot_be_used_are_an_error(tmp_path: Path, name: str) -> None:
    columns, expected = BAD[name]
    kind = columns["x"].type
    good = ROWS if pa.types.is_list(kind) else pa.array([1.0] * 5)
    if name == "lengths":
        good = pa.array([[1.0]] * 5)
    first = pa.RecordBatch.from_pydict({"x": pa.concat_arrays([good, good])})
    told = write_part(
        [first, pa.RecordBatch.from_pydict(columns)], f"{tmp_path}/a.arrow", 2
    )
    assert expected in told.error
    assert told.rows == ()
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(np.zeros((5000, 64), "f4"), np.arange(5000), rows=2500)
        raise RuntimeError("the shuffle is gone")

    with pytest.raises(RuntimeError, match="the shuffle is gone"):
        write_part(failing(), f"{tmp_path}/a.arrow")
    assert list(tmp_path.iterdir()) == []


def test_reports_of_tasks_survive_json() -> None:
    told = Written(url="a", rows=(1,), shapes={"x": (2, 3)}, strange={"x": 4})
    assert Written.from_text(told.to_text()) == told


@pytest.mark.parametrize(
    ("rows", "workers", "row_bytes", "expected"),
    [
        ([1024] * 16, 2, 120, [1024] * 16),
        ([1024] * 64, 1, 120, [8192] * 8),
        ([1024] * 64, 1, 1 << 14, [1024] * 64),
        ([500, 500, 500], 4, 4, [1500]),
        ([7], 1, 4, [7]),
    ],
)
def test_chunks_are_small_parts_of_a_share(
    rows: list[int], workers: int, row_bytes: int, expected: list[int]
) -> None:
    file = FileEntry(url="a.arrow", size_bytes=1)
    parts = [
        Part(file=file, rows=count, start=number, stop=number + 1)
        for number, count in enumerate(rows)
    ]
    found = portions_of(parts, workers, row_bytes)
    assert [portion.rows for portion in found] == expected
    assert [part for portion in found for part in portion.parts] == parts


def test_rows_for_the_driver_are_the_same_file_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.data.frame_writing.PIECE_BYTES", 1)
    monkeypatch.setattr("shoal.data.frame_writing.PART_BYTES", 1)
    *pieces, (end, text) = pack_part(batches(), partition=3)
    assert len(pieces) == 2
    assert {told for _, told in pieces} == {""}
    told = Written.from_text(text)
    assert (told.rows, told.partition, told.shapes["x"]) == ((1024, 976), 3, (3,))
    (tmp_path / "a.arrow").write_bytes(b"".join(p for p, _ in pieces) + end)
    x, _ = open_files(tmp_path, features="x", label="y").take(slice(None))
    np.testing.assert_array_equal(x, X)


def test_rows_that_cannot_be_used_are_reported_to_the_driver() -> None:
    ragged = pa.array([[1.0], [1.0, 2.0]], pa.list_(pa.float32()))
    [(piece, text)] = pack_part([pa.RecordBatch.from_pydict({"x": ragged})])
    assert piece == b""
    assert "rows of shapes (1,) and (2,)" in Written.from_text(text).error


def test_no_rows_are_reported_as_none() -> None:
    [(piece, text)] = pack_part([])
    assert (piece, Written.from_text(text).rows) == (b"", ())


# ------------------------------------------------------------ sizes of wide vectors


def test_the_width_of_vectors_is_known_from_their_column() -> None:
    pytest.importorskip("pyspark")
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import FloatType, StructField

    from shoal.data.spark_writing import width_of

    counted = {"ml_attr": {"num_attrs": 20000}}
    listed = {"ml_attr": {"attrs": {"numeric": [{"idx": 0}, {"idx": 1}]}}}
    kind = VectorUDT()
    assert width_of(StructField("x", kind, metadata=counted)) == 20000
    assert width_of(StructField("x", kind, metadata=listed)) == 2
    assert width_of(StructField("x", kind)) == 0
    assert width_of(StructField("x", FloatType(), metadata=counted)) == 0


def test_rows_without_room_are_refused() -> None:
    pytest.importorskip("pyspark")
    from shoal.data.spark_writing import refuse_size

    refuse_size("rows", 10, 10)
    refuse_size("rows", 10, None)
    with pytest.raises(DataError, match=r"take 80\.0 GB, and 1\.0 GB are free"):
        refuse_size("1,000,000 rows", 80 * 10**9, 10**9)
