from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fsspec.registry import _registry

from shoal.data.files import open_files
from shoal.errors import ConfigError, DataError
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

TABLE = {"a": np.arange(50, dtype="f4"), "y": np.arange(50)}
RECORDS: list[Any] = [{"a": np.float32(i), "y": np.array([i])} for i in range(50)]
TEXT = ["s"] * 50
FLOATS = {**TABLE, "y": TABLE["y"] / 2}
GOOD: dict[str, bytes] = {
    "arrow": arrow_bytes(TABLE),
    "parquet": parquet_bytes(TABLE),
    "csv": csv_bytes(TABLE),
    "csv.gz": gzip.compress(csv_bytes(TABLE)),
    "npz": npz_bytes(**TABLE),
    "npy": npy_bytes(
        np.rec.fromarrays(list(TABLE.values()), dtype=[("a", "f4"), ("y", "i8")])
    ),
    "tfrecord": tfrecord_bytes(RECORDS),
    "tfrecord.gz": gzip.compress(tfrecord_bytes(RECORDS)),
}


def half(ending: str) -> bytes:
    return GOOD[ending][: len(GOOD[ending]) // 2]


def damaged(ending: str, place: int) -> bytes:
    data = bytearray(GOOD[ending])
    data[place] ^= 0xFF
    return bytes(data)


BAD: dict[str, tuple[str, bytes, str]] = {
    "Parquet cut short": ("parquet", half("parquet"), "not a readable Parquet file"),
    "no Parquet at all": ("parquet", b"hello" * 99, "not a readable Parquet file"),
    "Arrow cut short": ("arrow", half("arrow"), "not a readable Arrow file"),
    "no Arrow at all": ("arrow", b"hello" * 99, "not a readable Arrow file"),
    "text in Arrow": (
        "arrow",
        arrow_bytes({**TABLE, "a": TEXT}),
        r"column 'a' of .* holds text \(string\)",
    ),
    "no such column": ("parquet", parquet_bytes({"a": [1]}), "no column 'y'; it has"),
    "text in Parquet": (
        "parquet",
        parquet_bytes({**TABLE, "a": TEXT}),
        r"column 'a' of .* holds text \(string\)",
    ),
    "dates in Parquet": (
        "parquet",
        parquet_bytes({**TABLE, "a": np.arange(50).astype("M8[s]")}),
        r"column 'a' of .* holds dates or times",
    ),
    "floats for whole numbers": ("parquet", parquet_bytes(FLOATS), "holds float, but"),
    "a text cell": (
        "csv",
        csv_bytes({**TABLE, "a": ["1", "2", "three"] + ["4"] * 47}),
        "column 'a' of .* has the text 'three' in line 4",
    ),
    "a text cell far down": (
        "csv",
        csv_bytes({"y": range(3_000_000), "a": ["1"] * 2_999_999 + ["x"]}),
        "column 'a' of .* has the text 'x' in line 3,000,001",
    ),
    "a row too short": ("csv", b"a,y\n1,2\n3\n", "Expected 2 columns, got 1"),
    "semicolons": ("csv", b"a;b;y\n1;2;3\n", "separates its columns by ';': 'a', 'b'"),
    "bars": ("csv", b"a|y\n1|2\n", r"separates its columns by '\|'"),
    "tabs in CSV": ("csv", b"a\ty\n1\t2\n", r"by '\\t': 'a', 'y'"),
    "no header": ("csv", b"1,2\n3,4\n", "begins with numbers"),
    "a column twice": ("csv", b"a,y,a\n1,2,3\n", "has 2 columns 'a'"),
    "CSV without a column": ("csv", b"a,b\n1,2\n", "no column 'y'; it has 'a', 'b'"),
    "gzip cut short": ("csv.gz", half("csv.gz"), "not a readable CSV file"),
    "NPZ cut short": ("npz", half("npz"), "not a readable NPZ file"),
    "NPZ without a key": ("npz", npz_bytes(a=[1]), "no column 'y'"),
    "NPZ with ragged rows": ("npz", npz_bytes(a=[1], y=[1, 2]), "'a' 1, 'y' 2"),
    "NPZ with a number": ("npz", npz_bytes(a=1, y=[1, 2]), "single value"),
    "NPZ with text": ("npz", npz_bytes(a=TEXT, y=TABLE["y"]), "holds text or objects"),
    "NPY cut short": ("npy", GOOD["npy"][:-5], "is cut short"),
    "no NPY at all": ("npy", b"hello" * 30, "not a readable NumPy file"),
    "records cut short": ("tfrecord", GOOD["tfrecord"][:-5], "cut short in record 50"),
    "gzip records cut short": (
        "tfrecord.gz",
        half("tfrecord.gz"),
        "not a readable TFR",
    ),
    "a length that is wrong": (
        "tfrecord",
        damaged("tfrecord", len(record(example(RECORDS[0]))) + 3),
        "checksum of the length of record 2",
    ),
    "bytes as a feature": (
        "tfrecord",
        tfrecord_bytes([{"a": b"text", "y": np.array([1])}]),
        "'a' of .* holds bytes or text",
    ),
    "no Example": ("tfrecord", record(b"\xff\xff\xff"), "not a readable TFRecord"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named_or_skipped(tmp_path: Path, case: str):
    ending, data, words = BAD[case]
    (tmp_path / f"1.{ending}").write_bytes(GOOD[ending])
    bad = tmp_path / f"2.{ending}"
    bad.write_bytes(data)
    (tmp_path / f"3.{ending}").write_bytes(GOOD[ending])
    with pytest.raises(DataError, match=words) as caught:
        open_files(tmp_path, features="a", label="y")
    assert str(bad) in str(caught.value)
    assert len(re.findall(r"[.:] [A-Z]", str(caught.value))) >= 2, "three sentences"
    source = open_files(tmp_path, features="a", label="y", on_bad_file="skip")
    assert len(source) == 100
    [(url, reason)] = source.skipped
    assert url == str(bad)
    assert re.search(words, reason)


@pytest.mark.parametrize(
    "case", ["Parquet cut short", "NPZ cut short", "no NPY at all"]
)
def test_the_first_file_may_be_bad(tmp_path: Path, case: str):
    ending, data, words = BAD[case]
    (tmp_path / f"1.{ending}").write_bytes(data)
    with pytest.raises(DataError, match=words):
        open_files(tmp_path, features="a", label="y")
    with pytest.raises(DataError, match=f"none of 1 files has rows .*{words}"):
        open_files(tmp_path, features="a", label="y", on_bad_file="skip")
    (tmp_path / f"2.{ending}").write_bytes(GOOD[ending])
    source = open_files(tmp_path, features="a", label="y", on_bad_file="skip")
    assert (len(source), len(source.skipped)) == (50, 1)


LATER: dict[str, tuple[str, bytes, str]] = {
    "other rows": ("csv", csv_bytes({"a": [1] * 49 + [33], "y": [1] * 50}), "changed"),
    "cut short": ("parquet", half("parquet"), "has changed|not a readable"),
    "damaged data": ("tfrecord", damaged("tfrecord", 30), "checksum of the data"),
    "other shape": ("npz", npz_bytes(a=np.ones((50, 2)), y=TABLE["y"]), "."),
}


@pytest.mark.parametrize("case", LATER)
@pytest.mark.parametrize("how", ["raise", "skip"])
def test_a_file_that_changes_during_the_run_is_an_error(
    tmp_path: Path, case: str, how: Any
):
    ending, data, words = LATER[case]
    path = tmp_path / f"1.{ending}"
    path.write_bytes(GOOD[ending])
    source = open_files(path, features="a", label="y", on_bad_file=how)
    path.write_bytes(data)
    with pytest.raises(DataError, match=words) as caught:
        source.read(0, epoch=0)
    assert str(path) in str(caught.value)
    assert ("counted into the epochs" in str(caught.value)) == (how == "skip")


def test_whole_numbers_with_empty_cells(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(parquet_bytes({"a": [1, None], "y": [1, 2]}))
    with pytest.raises(DataError, match=r"'a' of .* has 1 empty cells"):
        open_files(tmp_path, features="a", label="y")


def test_files_of_other_shapes(tmp_path: Path):
    np.save(tmp_path / "1.npy", np.ones((2, 3)))
    np.save(tmp_path / "2.npy", np.ones((2, 4)))
    with pytest.raises(DataError, match=r"2\.npy holds .*\(4,\), but that of .*1\.npy"):
        open_files(tmp_path)


def write_images(folder: Path, bad: bytes) -> Path:
    for name in "ant", "bee":
        (folder / name).mkdir()
        for i in range(3):
            data = image_bytes(np.zeros((4, 4, 3), "u1"), "JPEG")
            (folder / name / f"{i}.jpg").write_bytes(data)
    path = folder / "bee" / "1.jpg"
    path.write_bytes(bad)
    return path


IMAGES = {
    "no image": (b"hello", "not a readable image"),
    "cut short": (
        image_bytes(np.random.default_rng(0).integers(0, 255, (64, 64, 3), "u1"))[:900],
        "not a readable image",
    ),
    "other size": (image_bytes(np.zeros((5, 4, 3), "u1")), "image_size"),
    "16 bits": (image_bytes(np.zeros((4, 4), "u2")), "mode 'I"),
}


@pytest.mark.parametrize("case", IMAGES)
def test_a_bad_image(tmp_path: Path, case: str):
    data, words = IMAGES[case]
    bad = write_images(tmp_path, data)
    source = open_files(tmp_path)
    with pytest.raises(DataError, match=words) as caught:
        source.read(0, epoch=0)
    assert str(bad) in str(caught.value)
    source = open_files(tmp_path, on_bad_file="skip")
    assert len(source) == 5
    assert source.skipped[0][0] == str(bad)
    assert source.take(slice(None))[0].shape == (5, 4, 4, 3)


def test_classes_in_two_places(tmp_path: Path):
    for part in "train", "test":
        (tmp_path / part).mkdir()
        write_images(tmp_path / part, image_bytes(np.zeros((4, 4, 3), "u1")))
    with pytest.raises(DataError, match="class 'ant' has several folders"):
        open_files(tmp_path)
    assert len(open_files(tmp_path / "train")) == 6


def test_images_without_classes(tmp_path: Path):
    write_images(tmp_path, image_bytes(np.zeros((4, 4, 3), "u1")))
    with pytest.raises(DataError, match="all images lie in one folder"):
        open_files(tmp_path / "ant")
    source = open_files(tmp_path / "ant", label=())
    assert source.take(slice(None)).shape == (3, 4, 4, 3)


def test_arguments_that_are_wrong(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(csv_bytes(TABLE))
    for error, words, arguments in [
        (DataError, "no label is named .*'a', 'y'", {}),
        (DataError, "Did you mean 'a'", {"features": "aa", "label": "y"}),
        (DataError, "label='z'", {"label": "z"}),
        (DataError, "no columns left", {"label": ["a", "y"]}),
        (ConfigError, "Did you mean 'csv'", {"format": "cvs"}),
        (ConfigError, "image_size", {"label": "y", "image_size": (2, 2)}),
        (ConfigError, "on_bad_file='no'", {"on_bad_file": "no"}),
        (ConfigError, "files_per_chunk=0", {"files_per_chunk": 0}),
        (ConfigError, "label= was passed", {"preprocess": print, "label": "y"}),
        (ConfigError, "unfindable:", {"url": "unfindable://a/b"}),
        (ConfigError, "empty list", {"url": []}),
    ]:
        with pytest.raises(error, match=words):
            open_files(**cast("dict[str, Any]", {"url": tmp_path, **arguments}))


def test_mixed_formats_are_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(GOOD["csv"])
    (tmp_path / "README").write_text("hello")
    source = open_files(tmp_path, label="y")
    assert source.skipped[0][0].endswith("README")
    (tmp_path / "a.npz").write_bytes(GOOD["npz"])
    with pytest.raises(DataError, match=r"2 formats .*a\.csv \(csv\), .*a\.npz"):
        open_files(tmp_path, label="y")
    assert len(open_files(f"{tmp_path}/*.csv", label="y")) == 50
    with pytest.raises(DataError, match="no ending that is known"):
        open_files(tmp_path / "README")
    assert len(open_files(tmp_path / "a.csv", label="y", format="csv")) == 50


@pytest.mark.parametrize(
    ("module", "ending"),
    [
        ("pyarrow.csv", "csv"),
        ("pyarrow.parquet", "parquet"),
        ("pyarrow.ipc", "arrow"),
    ],
)
def test_a_library_that_is_not_installed(
    tmp_path: Path, module: str, ending: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / f"a.{ending}").write_bytes(GOOD[ending])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[files\]'"):
        open_files(tmp_path, label="y")


def test_s3_without_its_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    # fsspec remembers what an earlier test has used.
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[aws\]'"):
        open_files("s3://bucket/data/")


def test_no_files(tmp_path: Path):
    for url in tmp_path / "none", tmp_path, f"{tmp_path}/*.csv":
        with pytest.raises(DataError, match=re.escape(str(url))):
            open_files(url)
    (tmp_path / "a.csv").write_text("a,y\n")
    with pytest.raises(DataError, match="there are none in them"):
        open_files(tmp_path, label="y")
    (tmp_path / "b.csv").write_text("a,y\n1,2\n")
    assert open_files(tmp_path, label="y").empty == (str(tmp_path / "a.csv"),)
