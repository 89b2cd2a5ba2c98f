from __future__ import annotations

import gzip
import json
import urllib.request
from typing import Any

import cloudpickle
import numpy as np
import pytest

from shoal.data.files import list_files, open_files
from shoal.errors import DataError
from tests.data.files.writing import (
    arrow_bytes,
    csv_bytes,
    image_bytes,
    npy_bytes,
    npz_bytes,
    parquet_bytes,
    tfrecord_bytes,
)
from tests.s3 import Bucket

X = np.arange(12, dtype="f4").reshape(6, 2)
Y = np.arange(6)
TABLE = {"a": X[:, 0], "b": X[:, 1], "y": Y}
RECORDS = [{"a": a, "b": b, "y": y} for (a, b), y in zip(X, Y, strict=True)]
CONTENTS: dict[str, bytes] = {
    "arrow": arrow_bytes(TABLE, rows=4),
    "parquet": parquet_bytes(TABLE, row_group_size=4),
    "csv": csv_bytes(TABLE),
    "csv.gz": gzip.compress(csv_bytes(TABLE)),
    "npz": npz_bytes(**TABLE),
    "tfrecord": tfrecord_bytes(RECORDS),
}


@pytest.mark.parametrize("ending", CONTENTS)
def test_a_table_in_a_bucket(s3: Bucket, ending: str):
    s3.put(f"data/part-0.{ending}", CONTENTS[ending])
    s3.put(f"data/part-1.{ending}", CONTENTS[ending])
    s3.put("data/_SUCCESS", b"x")
    s3.put(f"data/.hidden.{ending}", b"x")
    s3.put(f"data/part-2.{ending}", b"")
    s3.put("data/", b"")
    source = open_files(f"{s3.url}/data/", features=["a", "b"], label="y")
    assert len(source) == 12
    assert source.empty == (f"{s3.url}/data/part-2.{ending}",)
    assert source.files[0] == f"{s3.url}/data/part-0.{ending}"
    again = cloudpickle.loads(cloudpickle.dumps(source))
    x, y = again.take(slice(None))
    np.testing.assert_array_equal(x, np.concatenate([X, X]))
    np.testing.assert_array_equal(y, np.concatenate([Y, Y]))


def test_more_keys_than_a_listing_has(s3: Bucket):
    pixels = np.zeros((3, 3, 3), "u1")
    image = image_bytes(pixels)
    s3.put_quickly({f"train/{i % 3}/{i:04}.png": image for i in range(1200)})
    s3.put("train/note.txt", b"hello")
    files = list_files(f"{s3.url}/train")
    assert len(files) == 1201
    assert all(file.mark and file.size_bytes for file in files)
    source = open_files(f"{s3.url}/train")
    assert (len(source), source.kind) == (1200, "images")
    assert list(source.chunk_rows) == [256, 256, 256, 256, 176]
    assert source.skipped[0][0] == f"{s3.url}/train/note.txt"
    x, y = source.read(1, epoch=0).take(np.arange(256))
    assert x.shape == (256, 3, 3, 3)
    assert y[0] == 0
    assert y[-1] == 1


def test_globs_lists_and_fresh_listings(s3: Bucket):
    for name in "a", "b":
        s3.put(f"d/{name}.npy", npy_bytes(X))
    s3.put("e/c.npy", npy_bytes(X))
    assert len(list_files(f"{s3.url}/d/*.npy")) == 2
    assert (
        len(list_files([f"{s3.url}/d", f"{s3.url}/e/c.npy", f"{s3.url}/d/a.npy"])) == 3
    )
    s3.put("d/z.npy", npy_bytes(X))
    assert [file.name for file in list_files(f"{s3.url}/d/")] == [
        "a.npy",
        "b.npy",
        "z.npy",
    ]
    assert len(open_files(f"{s3.url}/*/*.npy")) == 24


def test_the_bucket_of_another_endpoint(s3: Bucket, monkeypatch: pytest.MonkeyPatch):
    s3.put("a.npy", npy_bytes(X))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    assert len(open_files(f"{s3.url}/a.npy")) == 6
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    options = {"client_kwargs": {"endpoint_url": s3.endpoint}}
    assert len(open_files(f"{s3.url}/a.npy", storage_options=options)) == 6


def test_nothing_there(s3: Bucket):
    s3.put("data/empty.csv", b"")
    for url, words in [
        (f"{s3.url}/none/", "there is nothing at"),
        (f"{s3.url}/none/*.csv", "there are no data files at"),
        (f"{s3.url}/data/", "1 empty ones"),
        ("s3://shoal-no-such-bucket/data/", "there is nothing at"),
    ]:
        with pytest.raises(DataError, match=words) as caught:
            open_files(url, label="y")
        assert url in str(caught.value)


@pytest.mark.parametrize("ending", CONTENTS)
def test_a_key_that_is_deleted_after_listing(s3: Bucket, ending: str):
    url = s3.put(f"one.{ending}", CONTENTS[ending])
    cases: list[tuple[Any, str]] = [
        ("raise", "is gone"),
        ("skip", "counted into the epochs"),
    ]
    for how, words in cases:
        s3.put(f"one.{ending}", CONTENTS[ending])
        source = open_files(url, features="a", label="y", on_bad_file=how)
        s3.delete(f"one.{ending}")
        with pytest.raises(DataError, match=words) as caught:
            source.read(0, epoch=0)
        assert url in str(caught.value)


def test_an_image_that_is_deleted_after_listing(s3: Bucket):
    urls = [
        s3.put(
            f"{'cat' if i < 4 else 'dog'}/{i}.png",
            image_bytes(np.zeros((2, 2, 3), "u1")),
        )
        for i in range(5)
    ]
    source = open_files(s3.url)
    s3.delete("cat/3.png")
    with pytest.raises(DataError, match="is gone") as caught:
        source.read(0, epoch=0)
    assert urls[3] in str(caught.value)


@pytest.fixture
def with_authorization(s3: Bucket) -> Any:
    """The server looks at keys and policies, from here on."""

    def allow(calls: str) -> None:
        request = urllib.request.Request(
            f"{s3.endpoint}/moto-api/reset-auth",
            data=calls.encode(),
            headers={"Content-Type": "text/plain"},  # or it is taken for a form
        )
        with urllib.request.urlopen(request) as answer:
            assert json.loads(answer.read())["status"] == "ok"

    yield allow
    allow("inf")


def test_access_denied(
    s3: Bucket, with_authorization: Any, monkeypatch: pytest.MonkeyPatch
):
    import boto3

    s3.put("data/a.npy", npy_bytes(X))
    source = open_files(f"{s3.url}/data/")
    iam = boto3.client("iam")
    iam.create_user(UserName="nobody")
    key = iam.create_access_key(UserName="nobody")["AccessKey"]
    iam.close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    with_authorization("0")
    with pytest.raises(DataError, match=f"access to {s3.url}/data/ is denied"):
        open_files(f"{s3.url}/data/")
    again = cloudpickle.loads(cloudpickle.dumps(source))
    with pytest.raises(DataError, match=f"access to {s3.url}/data/a.npy is denied"):
        again.read(0, epoch=0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    with pytest.raises(DataError, match=f"access to {s3.url}/data/ is denied"):
        open_files(f"{s3.url}/data/")


def test_no_credentials(s3: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(DataError, match="no usable credentials for s3://"):
        open_files(f"{s3.url}/data/")


def test_a_store_that_does_not_answer(s3: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    options = {"config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(DataError, match="does not answer"):
        open_files(f"{s3.url}/data/", storage_options=options)
