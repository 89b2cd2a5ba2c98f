from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.data.blob import ALIGNMENT
from shoal.data.sources import ArraySource
from shoal.errors import DataError

X = np.arange(40, dtype="float64").reshape(20, 2)


def source() -> ArraySource:
    return ArraySource(
        {"wide": X, "flat": X[:, 0].astype("float32")}, np.arange(20), floatx="float32"
    )


@given(some.lists(some.integers(0, 19), max_size=40))
def test_rows_come_in_the_order_they_are_asked_for(rows: list[int]):
    x, y = source().take(np.array(rows, np.int64))
    assert list(y) == rows
    np.testing.assert_array_equal(x["wide"], X[rows].astype("float32"))
    np.testing.assert_array_equal(x["flat"], X[rows, 0].astype("float32"))


@pytest.mark.parametrize("rows", [np.array([3, 1, 1]), slice(4, 7)])
def test_rows_into_given_arrays(rows: Any):
    data = source()
    expected = data.take(rows)
    out = data.take(np.array([0, 0, 0]))
    kept = [out[0]["wide"], out[0]["flat"], out[1]]
    assert data.take(rows, out=out) is out
    for array, other in zip(
        kept, [expected[0]["wide"], expected[0]["flat"], expected[1]], strict=True
    ):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("row", [20, -21])
def test_rows_outside_the_data(row: int):
    with pytest.raises(IndexError):
        source().take(np.array([row]))
    for data in source(), ArraySource(np.arange(20), floatx="float32"):
        out = data.take(np.array([0]))
        with pytest.raises(IndexError):
            data.take(np.array([row]), out=out)


def test_no_rows_into_given_arrays():
    out = source().take(np.array([], np.int64))
    assert source().take(np.array([], np.int64), out=out)[1].shape == (0,)


def test_slices_without_a_cast_cost_no_copy():
    data = ArraySource(X.astype("float32"), floatx="float32")
    part = data.take(slice(2, 5))
    assert np.shares_memory(part, data.take(slice(0, 20)))


def test_float64_is_not_held_twice():
    data = ArraySource(X, floatx="float32")
    assert data._columns[0].values is X
    assert data.size_bytes == X.nbytes // 2


# ---------------------------------------------------------------------- blobs


def test_a_blob_is_mapped_from_a_file(tmp_path: Path):
    data, path = source(), tmp_path / "data"
    with path.open("w+b") as file:
        file.truncate(data.blob_size())
        data.write_blob(mmap.mmap(file.fileno(), 0))
    with path.open("rb") as file:
        mapped = ArraySource.from_blob(
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        )
    x, y = mapped.take(slice(0, 20))
    np.testing.assert_array_equal(x["wide"], X)
    assert x["wide"].dtype == "float32"
    assert list(y) == list(range(20))


def test_arrays_of_a_blob_are_views_aligned_and_read_only():
    # An mmap begins at a page, as shared data does; a bytearray may begin anywhere.
    blob = mmap.mmap(-1, source().blob_size())
    source().write_blob(blob)
    for column in ArraySource.from_blob(blob)._columns:
        assert column.values.ctypes.data % ALIGNMENT == 0
        assert not column.values.flags.writeable
        assert column.values.base is not None


def test_a_blob_may_lie_in_a_longer_buffer():
    data = source()
    blob = bytearray(data.blob_size() + 1000)
    data.write_blob(blob)
    assert len(ArraySource.from_blob(blob)) == 20


def test_writing_a_blob_makes_no_second_copy():
    import tracemalloc

    big = ArraySource(np.ones((200_000, 8)).T.copy().T, floatx="float32")
    blob = bytearray(big.blob_size())
    tracemalloc.start()
    big.write_blob(blob)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < big.size_bytes / 10


def test_small_floats_travel():
    data = ArraySource(np.ones((4, 2), ml_dtypes.bfloat16), floatx="bfloat16")
    again = ArraySource.from_blob(data.to_blob()).take(slice(0, 4))
    assert again.dtype == ml_dtypes.bfloat16


def test_rows_without_features():
    data = ArraySource(np.zeros((5, 0)), np.arange(5), floatx="float32")
    x, _ = ArraySource.from_blob(data.to_blob()).take(slice(0, 5))
    assert x.shape == (5, 0)


@pytest.mark.parametrize("size", [0, 10, 100, 500])
def test_a_truncated_blob_is_refused(size: int):
    with pytest.raises(DataError, match=f"{size} bytes of shared data"):
        ArraySource.from_blob(bytes(source().to_blob()[:size]))


def test_a_file_that_is_no_blob_is_refused():
    with pytest.raises(DataError, match="shared data cannot be read"):
        ArraySource.from_blob(b"PK" + bytes(5000))
