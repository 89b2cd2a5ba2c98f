from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from shoal.data.files import open_files
from shoal.errors import ConfigError, DataError
from tests.data.files.writing import npy_bytes
from tests.s3 import Bucket


def double(keys: list[str], objects: list[Any]) -> Any:
    arrays = [np.load(stream) for stream in objects]
    x = np.concatenate(arrays)
    names = np.concatenate(
        [[int(Path(k).stem)] * len(a) for k, a in zip(keys, arrays, strict=True)]
    )
    return {"x": x * 2, "file": names}, x[:, 0], len(x)


class Doubler:
    def preprocess(self, keys: list[str], objects: list[Any]) -> Any:
        return double(keys, objects)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(5):
        np.save(tmp_path / f"{i}.npy", np.full((i + 1, 2), i, "f8"))
    return tmp_path


@pytest.mark.parametrize("preprocess", [double, Doubler, Doubler()])
@pytest.mark.parametrize("files", [1, 2, None])
def test_files_read_by_the_user(folder: Path, preprocess: Any, files: int | None):
    source = open_files(folder, preprocess=preprocess, files_per_chunk=files)
    sizes = {1: [1, 2, 3, 4, 5], 2: [3, 7, 5], None: [15]}
    assert list(source.chunk_rows) == sizes[files]
    source = cloudpickle.loads(cloudpickle.dumps(source))
    x, y = source.take(slice(None))
    expected = np.repeat(np.arange(5), np.arange(1, 6))
    np.testing.assert_array_equal(x["file"], expected)
    np.testing.assert_array_equal(x["x"][:, 1], 2 * expected)
    assert (x["x"].dtype, y.dtype) == ("float32", "float32")


def test_keys_are_those_of_the_bucket(s3: Bucket):
    for i in range(3):
        s3.put(f"data/{i}.npy", npy_bytes(np.full((2, 2), i)))
    seen: list[str] = []

    def look(keys: list[str], objects: list[Any]) -> Any:
        seen.extend(keys)
        return double(keys, objects)

    source = open_files(f"{s3.url}/data", preprocess=look)
    assert seen == ["data/0.npy", "data/1.npy", "data/2.npy"]
    assert list(source.take(np.array([5, 0]))[1]) == [2, 0]


def test_preprocessing_is_called_by_one_thread_at_a_time(folder: Path):
    inside: list[int] = []
    lock = threading.Lock()

    def alone(keys: list[str], objects: list[Any]) -> Any:
        assert lock.acquire(blocking=False)
        inside.append(len(keys))
        lock.release()
        return double(keys, objects)

    open_files(folder, preprocess=alone, files_per_chunk=1)
    assert inside == [1] * 5


def test_reading_first_rows_runs_preprocessing_once(folder: Path):
    runs: list[int] = []

    def counted(keys: list[str], objects: list[Any]) -> Any:
        runs.append(len(keys))
        return double(keys, objects)

    source = open_files(folder, preprocess=counted)
    looked = source.take(slice(0, 4))
    again = source.take(np.array([3, 0]))
    assert runs == [5]
    whole = source.take(slice(None))
    assert runs == [5, 5]
    np.testing.assert_array_equal(looked[0]["x"], whole[0]["x"][:4])
    np.testing.assert_array_equal(again[1], whole[1][[3, 0]])
    assert cloudpickle.loads(cloudpickle.dumps(source)).head is None


def test_the_first_rows_are_those_of_the_first_good_files(folder: Path):
    def bad_first(keys: list[str], objects: list[Any]) -> Any:
        if keys[0].endswith("0.npy"):
            raise ValueError("bad")
        return double(keys, objects)

    told: dict[str, Any] = {"files_per_chunk": 1, "on_bad_file": "skip"}
    source = open_files(folder, preprocess=bad_first, **told)
    assert source.take(slice(0, 2))[0]["file"].tolist() == [1, 1]


ONES = np.ones((3, 2))
BROKEN: dict[str, tuple[Any, str]] = {
    "no tuple": (ONES, "returned a ndarray"),
    "two values": ((ONES, 3), "returned a tuple of 2"),
    "a list": ([ONES, ONES, 3], "returned a list of 3"),
    "wrong count": ((ONES, ONES, 4), r"inputs of preprocess has 3 rows .*train_size=4"),
    "outputs too short": ((ONES, ONES[:2], 3), "outputs of preprocess has 2 rows"),
    "inputs too short": (
        ({"a": ONES, "b": ONES[:1]}, ONES, 3),
        r"inputs\['b'\] of pre",
    ),
    "a float": ((ONES, ONES, 3.0), r"train_size=3\.0 of type float"),
    "a bool": ((ONES[:1], ONES[:1], True), "train_size=True"),
    "text": ((np.array(["a"] * 3), ONES, 3), "inputs has text, dtype <U1"),
    "no inputs": ((None, ONES, 3), "returned no inputs"),
    "no array": (("hello", ONES, 3), "inputs is a str"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_contract(folder: Path, case: str):
    result, words = BROKEN[case]
    with pytest.raises(DataError, match=words) as caught:
        open_files(folder, preprocess=lambda keys, objects: result)
    assert "0.npy" in str(caught.value)
    assert "4.npy" in str(caught.value)


def test_code_that_fails(folder: Path):
    def fails(keys: list[str], objects: list[Any]) -> Any:
        if keys[0].endswith("2.npy"):
            raise KeyError("label")
        return double(keys, objects)

    with pytest.raises(DataError, match=r"preprocess failed on .*2\.npy \(KeyError"):
        open_files(folder, preprocess=fails, files_per_chunk=1)
    source = open_files(folder, preprocess=fails, files_per_chunk=1, on_bad_file="skip")
    assert list(source.chunk_rows) == [1, 2, 4, 5]
    assert source.skipped[0][0].endswith("2.npy")


def test_rows_that_differ_from_time_to_time(folder: Path):
    calls: list[int] = []

    def moody(keys: list[str], objects: list[Any]) -> Any:
        calls.append(0)
        return ONES[: len(calls)], None, len(calls)

    source = open_files(folder, preprocess=moody)
    with pytest.raises(DataError, match="gave 2 rows where 1 were counted"):
        source.read(0, epoch=0)


@pytest.mark.parametrize("wrong", [object(), dict, 3])
def test_nothing_to_call(folder: Path, wrong: Any):
    with pytest.raises(ConfigError, match=r"no method preprocess\(keys, objects\)"):
        open_files(folder, preprocess=wrong)


SCRIPT = """
import sys, cloudpickle, numpy as np
from shoal.data.files import open_files

class Mine:
    def preprocess(self, keys, objects):
        x = np.concatenate([np.load(stream) for stream in objects])
        return x, x, len(x)

source = open_files(sys.argv[1], preprocess=Mine)
sys.stdout.buffer.write(cloudpickle.dumps(source))
"""


@pytest.mark.process
def test_a_class_of_a_script_travels(folder: Path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, check=True
    )
    assert len(cloudpickle.loads(done.stdout).take(slice(None))[0]) == 15


def test_a_class_that_needs_arguments_is_refused(tmp_path: Path) -> None:
    class Needy(Doubler):
        def __init__(self, width: int) -> None:
            self.width = width

    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(ConfigError, match=r"without arguments: .*'width'"):
        open_files(tmp_path, preprocess=Needy)
