"""Files of the driver, read by workers that do not see its disk."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.data import frame_server
from shoal.data.files.store import FileEntry, Store
from shoal.data.frame_server import FrameServer
from shoal.errors import DataError
from tests.spark.standalone import own_address


@pytest.fixture(params=["127.0.0.1", "own"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FrameServer]:
    """Serves one file, to this process as to any other."""
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "0.arrow").write_bytes(bytes(range(200)))
    (tmp_path / "secret").write_bytes(b"secret")
    host = own_address() if request.param == "own" else request.param
    made = FrameServer(folder, host)
    monkeypatch.setattr(frame_server, "_OWN", {})
    monkeypatch.setattr(frame_server, "MOST_BYTES", 64)
    yield made
    made.close()


def entry(server: FrameServer, name: str = "0.arrow") -> FileEntry:
    return FileEntry(url=f"{server.root}/{name}", size_bytes=200)


def test_ranges_are_read_over_a_connection(server: FrameServer) -> None:
    store: Store = pickle.loads(pickle.dumps(Store(server.options)))
    assert store.read(entry(server), 10, 13) == bytes([10, 11, 12])
    assert store.read(entry(server)) == bytes(range(200))
    with store.open(entry(server)) as stream:
        stream.seek(-2, 2)
        assert stream.read() == bytes([198, 199])


def test_other_files_are_refused(server: FrameServer) -> None:
    store = Store(server.options)
    for name in ("../secret", "1.arrow"):
        with pytest.raises(DataError):
            store.read(entry(server, name), 0, 3)


def test_another_key_is_refused(server: FrameServer) -> None:
    store = Store({**server.options, "key": "00" * 32})
    with pytest.raises(DataError):
        store.read(entry(server), 0, 3)


def test_a_server_that_is_closed_is_an_error(server: FrameServer) -> None:
    store = Store(server.options)
    assert store.read(entry(server), 0, 1) == b"\0"
    server.close()
    with pytest.raises(DataError):
        store.read(entry(server), 0, 3)


def test_the_key_is_not_shown(server: FrameServer) -> None:
    assert str(server.options["key"]) not in repr(Store(server.options))
