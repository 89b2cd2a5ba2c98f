from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.crc32c import masked_crc32c
from shoal.data.files import open_files
from shoal.data.files.csv import Csv, last_record_end
from shoal.data.files.example import parse_example, varints
from shoal.data.files.numpy import Npy
from shoal.data.files.store import FileEntry, Store
from shoal.data.files.tfrecord import TfRecord
from shoal.errors import DataError
from tests.data.files.writing import (
    arrow_bytes,
    csv_bytes,
    example,
    image_bytes,
    npy_bytes,
    npz_bytes,
    parquet_bytes,
    record,
    tfrecord_bytes,
)

A = np.arange(10, dtype="f8") / 4
B = np.arange(10, dtype="i8") * 3
C = np.arange(10, dtype="i8") % 2
TABLE = {"a": A, "b": B, "c": C}
AB = np.stack([A, B], axis=1).astype("f4")


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        dict(zip(table, values, strict=True))
        for values in zip(*table.values(), strict=True)
    ]


FILES = {
    "parquet": lambda: parquet_bytes(TABLE, row_group_size=4),
    "arrow": lambda: arrow_bytes(TABLE, rows=4),
    "feather": lambda: arrow_bytes(TABLE, rows=4, compression="lz4"),
    "csv": lambda: csv_bytes(TABLE),
    "csv.gz": lambda: gzip.compress(csv_bytes(TABLE)),
    "tsv": lambda: csv_bytes(TABLE).replace(b",", b"\t"),
    "npz": lambda: npz_bytes(**TABLE),
    "npy": lambda: npy_bytes(
        np.rec.fromarrays([A, B, C], dtype=[("a", "f8"), ("b", "i8"), ("c", "i8")])
    ),
    "tfrecord": lambda: tfrecord_bytes(rows(TABLE)),
    "tfrecord-00000-of-00001.gz": lambda: gzip.compress(tfrecord_bytes(rows(TABLE))),
}


@pytest.mark.parametrize("ending", FILES)
def test_a_table_in_every_format(tmp_path: Path, ending: str):
    (tmp_path / f"one.{ending}").write_bytes(FILES[ending]())
    source = open_files(tmp_path, features=["a", "b"], label="c")
    assert len(source) == 10
    assert source.size_bytes == 10 * (2 * 4 + 8)
    x, y = source.take(np.array([9, 0, 5]))
    np.testing.assert_array_equal(x, AB[[9, 0, 5]])
    assert x.dtype == "float32"
    np.testing.assert_array_equal(y, C[[9, 0, 5]])
    assert y.dtype == "int64"
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again.take(slice(None))[0], AB)


LARGE = 2**24 + np.arange(1, 11)  # no float32 knows the odd ones


@pytest.mark.parametrize("ending", FILES)
def test_whole_numbers_stay_whole_in_one_array(tmp_path: Path, ending: str):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLE, "b", LARGE)
        patch.setitem(globals(), "B", LARGE)
        (tmp_path / f"one.{ending}").write_bytes(FILES[ending]())
    x, _ = open_files(tmp_path, features=["b", "c"], label="c").take(slice(None))
    assert x.dtype == "int64"
    np.testing.assert_array_equal(x[:, 0], LARGE)
    mixed, _ = open_files(tmp_path, features=["a", "b"], label="c").take(slice(0, 1))
    assert mixed.dtype == "float32"


def test_whole_numbers_of_unlike_files(tmp_path: Path):
    for number, kind in enumerate(("i2", "u4", "i4")):
        table = {"a": np.arange(3, dtype=kind), "y": np.arange(3)}
        (tmp_path / f"{number}.parquet").write_bytes(parquet_bytes(table))
    source = open_files(tmp_path, features=["a"], label="y")
    assert source.take(slice(None))[0].dtype == "int64"
    table = {"a": np.arange(3, dtype="f8"), "y": np.arange(3)}
    (tmp_path / "4.parquet").write_bytes(parquet_bytes(table))
    source = open_files(tmp_path, features=["a"], label="y")
    assert source.take(slice(None))[0].dtype == "float32"


@pytest.mark.parametrize("ending", FILES)
def test_inputs_by_name_and_weights(tmp_path: Path, ending: str):
    (tmp_path / f"one.{ending}").write_bytes(FILES[ending]())
    source = open_files(
        tmp_path, features={"left": "b", "right": ["a"]}, label="c", weight="a"
    )
    x, y, weight = source.take(slice(2, 4))
    assert x["left"].dtype == "int64"
    np.testing.assert_array_equal(x["left"], B[2:4])
    np.testing.assert_array_equal(x["right"], AB[2:4, :1])
    np.testing.assert_array_equal(y, C[2:4])
    np.testing.assert_array_equal(weight, A[2:4].astype("f4"))


def test_all_columns_but_the_label(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(TABLE))
    x, _ = open_files(tmp_path, label="c").take(slice(None))
    np.testing.assert_array_equal(x, AB)
    x = open_files(tmp_path, label=()).take(slice(None))
    assert x.shape == (10, 3)


def test_row_groups_are_chunks(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(TABLE, row_group_size=4))
    (tmp_path / "b.parquet").write_bytes(
        parquet_bytes({k: v[:3] for k, v in TABLE.items()})
    )
    source = open_files(tmp_path, label="c")
    assert list(source.chunk_rows) == [4, 4, 2, 3]
    assert source.kind == "Parquet files"
    together = open_files(tmp_path, label="c", files_per_chunk=3)
    assert list(together.chunk_rows) == [10, 3]
    np.testing.assert_array_equal(
        source.take(slice(None))[0], together.take(slice(None))[0]
    )


def test_record_batches_are_chunks(tmp_path: Path):
    (tmp_path / "a.arrow").write_bytes(arrow_bytes(TABLE, rows=4))
    source = open_files(tmp_path, label="c")
    assert list(source.chunk_rows) == [4, 4, 2]
    assert source.kind == "Arrow files"
    together = open_files(tmp_path, label="c", files_per_chunk=3)
    assert list(together.chunk_rows) == [10]
    np.testing.assert_array_equal(
        source.take(slice(None))[0], together.take(slice(None))[0]
    )


@pytest.mark.parametrize("write", [parquet_bytes, arrow_bytes])
def test_lists_and_tensors(tmp_path: Path, write: Callable[[Any], bytes]):
    import pyarrow as pa

    grid = np.arange(24, dtype="f4").reshape(4, 2, 3)
    ragged = [[1], [1, 2], [3], [4]]
    table = {
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(grid.ravel()), 6),
        "nested": pa.array(grid.tolist()),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(grid),
        "tokens": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32())),
        "ragged": pa.array(ragged),
        "y": pa.array([True, False, True, True]),
        "price": pa.array([1, 2, 3, 4], pa.decimal128(5, 2)),
    }
    ending = "parquet" if write is parquet_bytes else "arrow"
    (tmp_path / f"a.{ending}").write_bytes(write(table))

    def read(name: Any) -> Any:
        return open_files(tmp_path, features=name, label="y").take(slice(1, 4))

    np.testing.assert_array_equal(read("fixed")[0], grid.reshape(4, 6)[1:])
    np.testing.assert_array_equal(read("nested")[0], grid[1:])
    np.testing.assert_array_equal(read("tensor")[0], grid[1:])
    tokens, y = read("tokens")
    assert (tokens.dtype, tokens.shape, y.dtype) == ("int32", (3, 2), "bool")
    assert read(["fixed", "price", "tokens"])[0].shape == (3, 9)
    with pytest.raises(Exception, match=r"'ragged' of .*differ in length: 1, 2"):
        read("ragged")
    with pytest.raises(Exception, match=r"'nested' has rows of shape \(2, 3\)"):
        read(["nested", "price"])


def test_empty_cells(tmp_path: Path):
    (tmp_path / "a.csv").write_text("a,b,y\n1,2,0\n,3,1\n")
    (tmp_path / "b.csv").write_text("y,b,a\n1,2.5,7\n")
    x, y = open_files(tmp_path, features=["a", "b"], label="y").take(slice(None))
    np.testing.assert_array_equal(x, [[1, 2], [np.nan, 3], [7, 2.5]])
    assert y.dtype == "int64"
    b = open_files(tmp_path, features="b", label="y").take(slice(None))[0]
    assert b.dtype == "float32"


def test_images(tmp_path: Path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (6, 5, 4, 3), dtype="u1")
    for i, image in enumerate(pixels):
        folder = tmp_path / ("dog" if i % 2 else "cat")
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.png").write_bytes(image_bytes(image))
    source = open_files(tmp_path)
    assert (source.classes, source.chunk_rows) == (("cat", "dog"), (6,))
    x, y = source.take(slice(None))
    np.testing.assert_array_equal(x, pixels[[0, 2, 4, 1, 3, 5]])
    np.testing.assert_array_equal(y, [0, 0, 0, 1, 1, 1])
    small = open_files(tmp_path, image_size=(3, 2), files_per_chunk=4)
    assert list(small.chunk_rows) == [4, 2]
    assert small.take(slice(None))[0].shape == (6, 3, 2, 3)
    (tmp_path / "cat" / "8.png").write_bytes(image_bytes(pixels[0, :, :, 0]))
    assert open_files(tmp_path).take(slice(3, 4))[0].shape == (1, 5, 4, 3)


@given(some.lists(some.integers(-(2**63), 2**63 - 1), max_size=20))
def test_whole_numbers_of_any_length(numbers: list[int]):
    data = example({"n": np.array(numbers, "i8")})
    assert parse_example(data)["n"][1].tolist() == numbers


def test_numbers_that_are_cut_short():
    with pytest.raises(ValueError, match="cut short"):
        varints(b"\x01\x80", 0, 2)


def crc_by_bits(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(some.binary(max_size=600))
@settings(max_examples=100)
def test_checksums_equal_those_of_the_definition(piece: bytes):
    turned = (masked_crc32c(piece) - 0xA282EAD8) & 0xFFFFFFFF
    assert ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF == crc_by_bits(piece)


def read_in_parts(form: Any, path: Path, columns: list[str]) -> tuple[int, Any]:
    file = FileEntry(url=str(path), size_bytes=path.stat().st_size)
    parts = form.count(file, Store(), columns)
    form = form.settle([part.types for part in parts])
    found = [form.read(part, Store(), columns) for part in parts]
    assert [len(f[columns[0]]) for f in found] == [part.rows for part in parts]
    return len(parts), {n: np.concatenate([f[n] for f in found]) for n in columns}


@given(
    some.lists(some.tuples(some.integers(), some.text('a\n",b', max_size=9))),
    some.integers(64, 200),
    some.booleans(),
)
@settings(max_examples=60)
def test_parts_of_a_csv_file_have_every_row_once(
    tmp_path_factory: pytest.TempPathFactory,
    table: list[tuple[int, str]],
    part_bytes: int,
    ends: bool,
):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    quoted = [
        (i, '"' + text.replace('"', '""') + '"') for i, (_, text) in enumerate(table)
    ]
    text = "number,text\n" + "".join(f"{i},{t}\n" for i, t in quoted)
    path.write_bytes((text if ends else text.rstrip("\n")).encode())
    form = Csv(part_bytes=part_bytes)
    if not table:
        file = FileEntry(url=str(path), size_bytes=path.stat().st_size)
        assert form.count(file, Store(), ["number"]) == ()
        return
    count, found = read_in_parts(form, path, ["number"])
    assert found["number"].tolist() == list(range(len(table)))
    assert count >= 1


def test_a_large_csv_file_is_split(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(csv_bytes({"a": range(5000)}))
    count, found = read_in_parts(Csv(part_bytes=4096), path, ["a"])
    assert count > 4
    assert found["a"].tolist() == list(range(5000))


def test_line_ends_inside_quotes_end_no_row():
    assert last_record_end(b'1,"a\n') == 0
    assert last_record_end(b'1,"a\n"\n2') == 7


@given(some.integers(1, 40), some.integers(1, 300))
@settings(max_examples=30)
def test_parts_of_an_npy_file_have_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, part_bytes: int
):
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    array = np.arange(count * 6, dtype=">i4").reshape(count, 2, 3)
    np.save(path, array)
    _, found = read_in_parts(Npy(part_bytes=part_bytes), path, ["x"])
    np.testing.assert_array_equal(found["x"], array)


@given(some.lists(some.binary(max_size=80), min_size=1), some.integers(16, 300))
@settings(max_examples=60)
def test_parts_of_a_tfrecord_file_have_every_record_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], part_bytes: int
):
    path = tmp_path_factory.mktemp("tfr") / "a.tfrecord"
    examples = [
        example({"n": np.array([i]), "text": text, "f": np.array([0.5, i], "f4")})
        for i, text in enumerate(texts)
    ]
    path.write_bytes(b"".join(map(record, examples)))
    _, found = read_in_parts(TfRecord(part_bytes=part_bytes), path, ["n", "f"])
    assert found["n"].tolist() == list(range(len(texts)))
    assert found["f"].shape == (len(texts), 2)


def test_fortran_arrays_are_read_whole(tmp_path: Path):
    array = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(open_files(tmp_path).take(slice(None)), array)


@pytest.fixture(scope="session")
def tf() -> Any:
    """Imported before a test begins, since it sets variables of the environment."""
    return pytest.importorskip("tensorflow")


def test_records_as_tensorflow_writes_them(tf: Any, tmp_path: Path):
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(300):
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i, 0.5])),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[-i])),
                "z": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[b"q" * i * 7])
                ),
            }
            features = tf.train.Features(feature=feature)
            writer.write(tf.train.Example(features=features).SerializeToString())
    x, y = open_files(path, features="x", label="y").take(slice(None))
    np.testing.assert_array_equal(y, -np.arange(300))
    np.testing.assert_array_equal(x[:, 0], np.arange(300))


@pytest.mark.data
def test_photographs_of_ten_classes(tmp_path: Path):
    path = Path(os.environ.get("SHOAL_DATA", ""), "cifar10_20k_jpg.zip")
    if not path.is_file():
        if os.environ.get("SHOAL_REQUIRE_DATA") == "1":
            pytest.fail(f"needs {path}, and SHOAL_REQUIRE_DATA=1 forbids to skip")
        pytest.skip(f"needs {path}")
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if "test/" in n and n.endswith(".jpg")]
        archive.extractall(tmp_path, names[::10])
    [folder] = {path.parent.parent for path in tmp_path.rglob("*.jpg")}
    source = open_files(folder)
    assert (len(source), len(source.classes)) == (400, 10)
    x, y = source.take(slice(None))
    assert (x.shape, x.dtype) == ((400, 32, 32, 3), "uint8")
    assert np.bincount(y, minlength=10).min() > 0


@given(
    some.lists(
        some.tuples(
            some.integers(-3, 300), some.integers(0, 2), some.binary(max_size=2)
        ),
        min_size=1,
        max_size=60,
    ),
    some.booleans(),
)
@settings(max_examples=60)
def test_records_of_equal_and_of_different_shapes(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Any], has_order: bool
):
    path = tmp_path_factory.mktemp("tfr") / "a.tfrecord"
    texts: list[bytes] = []
    for number, kind, text in drawn:
        numbers = np.array([number, 5, number])
        features = {"text": text, "n": numbers, "f": np.array([number], "f4")}
        if kind == 1:
            features = dict(reversed(features.items()))
        if kind == 2 and not has_order:
            features = {**features, "more": np.array([1.5, 2.5], "f4")}
        texts.append(example(features))
    path.write_bytes(b"".join(map(record, texts)))
    _, found = read_in_parts(TfRecord(), path, ["n", "f"])
    assert found["n"][:, 0].tolist() == [number for number, _, _ in drawn]
    assert found["n"][:, 1].tolist() == [5] * len(drawn)
    assert found["f"].tolist() == [number for number, _, _ in drawn]


def test_records_of_other_widths_and_kinds(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    ones, twos = {"a": np.ones(1, "f4")}, {"a": np.ones(2, "f4")}
    path.write_bytes(tfrecord_bytes([ones] * 20 + [twos]))
    with pytest.raises(DataError, match="1 values in one record and 2"):
        open_files(path, label=())
    path.write_bytes(tfrecord_bytes([ones] * 20 + [{"a": np.ones(4, "i8")}] * 20))
    with pytest.raises(DataError, match="is int64 in one record and float"):
        open_files(path, label=())
    path.write_bytes(tfrecord_bytes([ones] * 20 + [{"b": np.ones(1, "f4")}] * 20))
    with pytest.raises(DataError, match="no column 'a'; it has 'b'"):
        open_files(path, label=())
