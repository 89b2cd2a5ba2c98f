"""Storage that answers as Google's and Azure's, with a clock of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.asyn import get_loop
from fsspec.implementations.memory import MemoryFileSystem

AHEAD = timedelta(days=9000)
"""Of its clock: who takes a time by another one is found out."""


class OtherFileSystem(MemoryFileSystem):
    """Objects in memory that know when they were written."""

    store: dict[str, Any] = {}  # noqa: RUF012 - as the class it replaces
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        for name in cls.protocol:
            path = path.removeprefix(f"{name}://")
        return super()._strip_protocol(path)

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.strip("/").partition("/")
        return bucket, key, None

    def times(self, bucket: str, key: str) -> tuple[str, datetime]:
        """Header `Date` of an answer now, and when an object was written."""
        written = self.store[f"/{bucket}/{key}"].modified + AHEAD
        return format_datetime(datetime.now(UTC) + AHEAD, usegmt=True), written


class GoogleFileSystem(OtherFileSystem):
    """Answers as gcsfs does."""

    protocol = ("gs", "gcs")

    def call(self, method: str, path: str, *words: str) -> tuple[Any, bytes]:
        assert (method, path) == ("GET", "b/{}/o/{}")
        date, written = self.times(*words)
        told = written.isoformat().replace("+00:00", "Z")
        return {"Date": date}, json.dumps({"updated": told}).encode()


class AzureFileSystem(OtherFileSystem):
    """Answers as adlfs does."""

    protocol = ("abfs", "az", "abfss")

    @property
    def loop(self) -> Any:
        return get_loop()

    @property
    def service_client(self) -> Any:
        @asynccontextmanager
        async def client(container: str, key: str) -> AsyncIterator[Any]:
            async def properties(*, raw_response_hook: Any) -> Any:
                date, written = self.times(container, key)
                answer = SimpleNamespace(headers={"Date": date})
                raw_response_hook(SimpleNamespace(http_response=answer))
                return SimpleNamespace(last_modified=written)

            yield SimpleNamespace(get_blob_properties=properties)

        return SimpleNamespace(get_blob_client=client)


@dataclass
class Store:
    """A place there."""

    url: str
    fs: OtherFileSystem

    def make_older(self, key: str, seconds: float) -> None:
        """Changes when an object was written, by the clock of this storage."""
        path = self.fs._strip_protocol(f"{self.url}/{key}")
        self.fs.store[path].modified -= timedelta(seconds=seconds)


@pytest.fixture(scope="session")
def fsspec_loop() -> None:
    """The loop of fsspec has a thread that stays; it is of no single test."""
    get_loop()


@pytest.fixture
def other_stores(
    monkeypatch: pytest.MonkeyPatch, fsspec_loop: None
) -> Iterator[dict[str, Store]]:
    """By protocol."""
    kinds = {"gs": GoogleFileSystem, "abfs": AzureFileSystem}
    registry = import_module("fsspec.registry")
    found: dict[str, Store] = {}
    for name, kind in kinds.items():
        monkeypatch.setitem(registry._registry, name, kind)
        monkeypatch.setattr(kind, "store", {})
        found[name] = Store(f"{name}://bucket", kind())
    yield found
    for name in kinds:
        found[name].fs.clear_instance_cache()
