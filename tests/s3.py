"""An S3 store of this machine, and what writes files of each format."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

KEYS = ("AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3; it does not look at keys."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    _start_library_threads(endpoint)
    yield endpoint
    server.stop()


def _start_library_threads(endpoint: str) -> None:
    """The loop of fsspec has threads that stay; they are of no single test."""
    import s3fs

    system = s3fs.S3FileSystem(
        key="testing",
        secret="testing",
        endpoint_url=endpoint,
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    system.ls("")


@dataclass
class Bucket:
    """A bucket of its own for each test."""

    name: str
    client: Any
    endpoint: str

    def put(self, key: str, data: bytes) -> str:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return f"s3://{self.name}/{key}"

    def put_quickly(self, contents: dict[str, bytes]) -> None:
        """Puts many objects, past HTTP: the server is of this process."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key, data in contents.items():
            backend.put_object(self.name, key, data)

    def make_older(self, key: str, seconds: float) -> None:
        """Changes when an object was written, by the clock of this storage."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        found = backend.get_object(self.name, key)
        assert found is not None
        found.last_modified -= timedelta(seconds=seconds)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    @property
    def url(self) -> str:
        return f"s3://{self.name}"


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket; the environment says how it is reached."""
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    import boto3

    client = boto3.client("s3")
    name = f"shoal-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    yield Bucket(name, client, s3_endpoint)
    client.close()
