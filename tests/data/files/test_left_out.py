"""Left out rows are reported by every reader; errors of the store are not."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

import shoal
from shoal.data.files import open_files
from shoal.errors import DataError, ShoalWarning
from tests.data.files.writing import (
    csv_bytes,
    image_bytes,
    npz_bytes,
    parquet_bytes,
    tfrecord_bytes,
)

TABLE = {"a": np.arange(8, dtype="f4"), "y": np.arange(8) % 2}


def csv_with_text(folder: Path) -> str:
    (folder / "0.csv").write_bytes(csv_bytes(TABLE))
    (folder / "1.csv").write_bytes(csv_bytes({**TABLE, "a": ["no number"] * 8}))
    return f"{folder}/"


def model() -> Any:
    found = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, "softmax")])
    found.compile("sgd", "sparse_categorical_crossentropy")
    return found


SAYS = r"1 file\(s\) are left out\. .*1\.csv: .*'no number' in line 2"


class TestSkippedFilesAreNamed:
    def test_by_predict_and_evaluate(self, tmp_path: Path) -> None:
        url = csv_with_text(tmp_path)
        files: dict[str, Any] = {"label": "y", "on_bad_file": "skip", "verbose": 0}
        with pytest.warns(ShoalWarning, match=rf"data of predict: {SAYS}"):
            assert shoal.predict(model(), url, workers=1, **files).shape == (8, 2)
        with pytest.warns(ShoalWarning, match=rf"data of evaluate: {SAYS}"):
            shoal.evaluate(model(), url, workers=1, **files)

    def test_by_adapt(self, tmp_path: Path) -> None:
        layer = keras.layers.Normalization()
        with pytest.warns(ShoalWarning, match=SAYS):
            shoal.data.adapt(
                layer, csv_with_text(tmp_path), label="y", on_bad_file="skip"
            )

    def test_of_a_validation(self, tmp_path: Path) -> None:
        url = csv_with_text(tmp_path)
        good = f"{url}0.csv"
        with pytest.warns(ShoalWarning, match=SAYS):
            shoal.plan(
                model(), good, label="y", validation_data=url, on_bad_file="skip"
            )


@pytest.mark.parametrize("name", ["parquet", "npz", "csv.gz"])
def test_files_of_0_bytes_are_named(name: str, tmp_path: Path) -> None:
    data = {
        "parquet": parquet_bytes(TABLE),
        "npz": npz_bytes(**TABLE),
        "csv.gz": gzip.compress(csv_bytes(TABLE)),
    }
    (tmp_path / f"0.{name}").write_bytes(data[name])
    (tmp_path / f"1.{name}").touch()
    source = open_files(tmp_path, label="y")
    assert len(source) == 8
    assert "1 file(s) are left out" in source.left_out
    assert f"1.{name}: it has 0 bytes" in source.left_out


@pytest.mark.parametrize("name", ["csv", "tfrecord"])
def test_an_empty_file_may_be_a_whole_one(name: str, tmp_path: Path) -> None:
    records: list[Any] = [{"a": np.float32(1), "y": np.array([1])}]
    data = csv_bytes(TABLE) if name == "csv" else tfrecord_bytes(records)
    (tmp_path / f"0.{name}").write_bytes(data)
    (tmp_path / f"1.{name}").touch()
    assert open_files(tmp_path, label="y").left_out == ""


def test_a_compressed_file_of_no_records(tmp_path: Path) -> None:
    records: list[Any] = [{"a": np.float32(1), "y": np.array([1])}]
    (tmp_path / "0.tfrecord.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "1.tfrecord.gz").write_bytes(gzip.compress(tfrecord_bytes(records)))
    source = open_files(tmp_path, label="y")
    assert len(source) == 1
    assert source.empty == (str(tmp_path / "0.tfrecord.gz"),)


class TestImagesBesideTheClasses:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        data = image_bytes(np.zeros((4, 4, 3), "u1"))
        for place in ("ant/0.png", "bee/0.png", "stray.png"):
            (tmp_path / place).parent.mkdir(exist_ok=True)
            (tmp_path / place).write_bytes(data)
        return tmp_path

    def test_are_no_class(self, folder: Path) -> None:
        with pytest.raises(DataError, match=r"stray\.png lies beside folders"):
            open_files(folder)

    def test_are_left_out(self, folder: Path) -> None:
        source = open_files(folder, on_bad_file="skip")
        assert source.classes == ("ant", "bee")
        assert "stray.png" in source.left_out

    def test_are_images_as_good_as_others_without_classes(self, folder: Path) -> None:
        assert len(open_files(folder, label=())) == 3


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_odd_one_is_left_out_wherever_it_stands(odd: int, tmp_path: Path) -> None:
    for number in range(3):
        width = 5 if number == odd else 4
        data = npz_bytes(x=np.ones((6, width), "f4"), y=np.zeros(6, "i4"))
        (tmp_path / f"{number}.npz").write_bytes(data)
    source = open_files(tmp_path, on_bad_file="skip")
    assert [Path(url).name for url, _ in source.skipped] == [f"{odd}.npz"]
    assert "of shape (5,)" in source.left_out
    assert len(source) == 12


class TestEmptyCells:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        (tmp_path / "0.csv").write_text("a,y\n1,0\n2,\n,1\n")
        return f"{tmp_path}/0.csv"

    def test_are_no_targets(self, url: str) -> None:
        with pytest.raises(DataError, match=r"column 'y' of .* has empty cells"):
            open_files(url, label="y")

    def test_are_numbers_that_are_none(self, url: str) -> None:
        [x] = open_files(url, features=["a"], label=()).take(slice(0, 3)).T
        np.testing.assert_array_equal(x, [1, 2, np.nan])


class TestAStoreThatFails:
    @pytest.fixture
    def url(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        for number in range(2):
            (tmp_path / f"{number}.csv").write_bytes(csv_bytes(TABLE))
        cat_file = LocalFileSystem.cat_file

        def failing(self: Any, path: str, *given: Any, **more: Any) -> bytes:
            if path.endswith("1.csv"):
                raise self.error
            return cat_file(self, path, *given, **more)

        monkeypatch.setattr(LocalFileSystem, "cat_file", failing)
        return f"{tmp_path}/"

    @pytest.mark.parametrize(
        ("error", "says"),
        [(OSError(121, "InternalError!"), r"the storage failed while .*1\.csv"),
         (PermissionError("The provided token has expired."), "have expired")],
    )  # fmt: skip
    def test_leaves_no_good_file_out(
        self, url: str, error: OSError, says: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LocalFileSystem, "error", error, raising=False)
        with pytest.raises(DataError, match=says):
            open_files(url, label="y", on_bad_file="skip")


def test_to_predict_takes_no_label(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n1,2\n3,4\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ShoalWarning)
        found = shoal.predict(model(), f"{tmp_path}/", features=["a"], workers=1)
    assert found.shape == (2, 2)
