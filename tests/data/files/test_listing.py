from __future__ import annotations

import functools
import http.server
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

from shoal.data.files import list_files, listing, open_files
from shoal.data.files.format import extension
from shoal.data.files.store import Store, s3_options
from tests.data.files.writing import csv_bytes, npy_bytes

X = np.arange(8.0).reshape(4, 2)


def names(folder: Path, url: object) -> list[str]:
    return [str(Path(f.url).relative_to(folder)) for f in list_files(url)]  # pyright: ignore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in [
        "b.csv",
        "a.csv",
        "deep/er/c.csv",
        "deep/_temporary/d.csv",
        ".git/e.csv",
        "_SUCCESS",
        ".a.csv.crc",
        "we[i]rd/f.csv",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a,y\n1,2\n")
    return tmp_path


def test_listed_files_and_their_order(folder: Path):
    shown = ["a.csv", "b.csv", "deep/er/c.csv", "we[i]rd/f.csv"]
    assert names(folder, folder) == shown
    assert names(folder, f"{folder}/") == shown
    assert names(folder, f"file://{folder}") == shown
    assert names(folder, f"{folder}/*.csv") == shown[:2]
    assert names(folder, f"{folder}/**/*.csv") == shown
    assert names(folder, [folder / "b.csv", folder / "a.csv", folder]) == shown
    assert names(folder, f"{folder}/we[i]rd") == shown[3:]
    # What is named is meant.
    assert names(folder, folder / "_SUCCESS") == ["_SUCCESS"]
    assert names(folder, folder / "deep" / "_temporary") == ["deep/_temporary/d.csv"]
    assert names(folder, f"{folder}/deep/_temporary/*.csv") == ["deep/_temporary/d.csv"]


def test_relative_paths_stay_findable(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    source = open_files("*.csv", label="y")
    monkeypatch.chdir("/")
    assert len(source.take(slice(None))[0]) == 2


def test_files_of_a_store_in_memory(tmp_path: Path):
    np.save(tmp_path / "b.npy", X)
    system = fsspec.filesystem("memory")
    system.pipe("/shoal-test/a.npy", npy_bytes(X))
    try:
        source = open_files("memory://shoal-test")
        np.testing.assert_array_equal(source.take(slice(None)), X)
        both = open_files(["memory://shoal-test", tmp_path], files_per_chunk=2)
        assert list(both.chunk_rows) == [8]
        assert len(both.take(slice(None))) == 8
    finally:
        system.rm("/shoal-test", recursive=True)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A server that knows no ranges."""
    answer = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_of_a_web_server(tmp_path: Path, web: str):
    pytest.importorskip("aiohttp")
    (tmp_path / "a.csv").write_bytes(csv_bytes({"a": X[:, 0], "y": [1, 2, 3, 4]}))
    source = open_files(f"{web}/a.csv", label="y")
    assert list(source.take(slice(None))[1]) == [1, 2, 3, 4]


def test_endings():
    for name, expected in {
        "a.CSV": ".csv",
        "a.b.parquet": ".parquet",
        "part-0.snappy.parquet": ".parquet",
        "x.tfrecord-00003-of-00010": ".tfrecord",
        "x.tfrecord-00003-of-00010.gz": ".tfrecord",
        "README": "",
        "a.tar.gz": ".tar",
    }.items():
        assert extension(name) == expected, name


def test_options_that_are_secret_are_not_shown():
    assert (
        repr(Store({"key": "a", "secret": "b"})) == "Store(options=['key', 'secret'])"
    )


def test_checksums_of_stores_that_only_speak_s3(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert "config_kwargs" not in s3_options({})
    found = s3_options({"endpoint_url": "http://x", "config_kwargs": {"a": 1}})
    assert found["config_kwargs"] == {
        "a": 1,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


def test_a_listing_that_takes_long_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("x")
    said, texts = threading.Event(), list[str]()
    find = LocalFileSystem.find

    def show(message: Warning | str, *_: object, **__: object) -> None:
        texts.append(str(message))
        said.set()

    def slow(self: Any, *given: Any, **more: Any) -> Any:
        assert said.wait(30)
        return find(self, *given, **more)

    monkeypatch.setattr(LocalFileSystem, "find", slow)
    monkeypatch.setattr(listing, "SLOW_S", 0.001)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        assert len(list_files(tmp_path)) == 1
    assert "is not listed after" in texts[0]
