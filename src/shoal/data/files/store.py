"""Access to files through fsspec.

This file decides how a store is reached: credentials, region and endpoint as boto
finds them. A `Store` is pickled as its options alone; every process opens its own
connections.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO, cast, final

from shoal.data.files.refusals import as_store_error, fetching
from shoal.errors import ConfigError, DataError

S3 = ("s3", "s3a")
SERVED = ("shoal-driver", "shoal.data.frame_server.ServedFiles")
"""Files of the driver: protocol and class."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """A file, as it was listed.

    Args:
        url: URL to open it again: "s3://bucket/key", or a local path.
        size_bytes: Stored size.
        mark: Mark of this version, if the store gives one: its ETag, or the time
            of its last change; "" otherwise.

    Example:
        >>> FileEntry(url="s3://bucket/a.csv", size_bytes=12).name
        'a.csv'
    """

    url: str
    size_bytes: int
    mark: str = ""

    @property
    def name(self) -> str:
        """Returns the last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]


@final
class Store:
    """Reads files of any store that fsspec supports: a disk, S3, GCS, HTTP.

    Args:
        options: Options of fsspec's file system, as `storage_options` of pandas. Not
            needed for S3 if boto finds credentials, region and endpoint by itself.

    Example:
        >>> import pathlib
        >>> _ = pathlib.Path("a.txt").write_text("hello")
        >>> Store().read(FileEntry(url="a.txt", size_bytes=5), start=1, stop=3)
        b'el'
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})
        self._open: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._options,)

    def __repr__(self) -> str:
        # Values may be secrets.
        return f"Store(options={sorted(self._options)})"

    def filesystem(self, url: str) -> Any:
        """Returns fsspec's file system for a URL; one for each host, made on first use.

        Raises:
            ConfigError: A library that it needs is not installed.
        """
        import fsspec
        from fsspec.core import url_to_fs

        scheme, colon, rest = url.partition("://")
        key = f"{scheme}://{rest.partition('/')[0]}" if colon else ""
        if key not in self._open:
            if scheme == SERVED[0]:
                fsspec.register_implementation(*SERVED, clobber=True)
            is_s3 = colon and scheme.rpartition("::")[2] in S3
            options = s3_options(self._options) if is_s3 else self._options
            try:
                # A shared instance would keep old listings, and old credentials.
                found, _ = url_to_fs(url, skip_instance_cache=True, **options)
            except (ImportError, ValueError) as error:
                command = "pip install 'shoal[aws]'" if is_s3 else str(error)
                raise ConfigError(
                    f"{url} cannot be opened here ({error}). Expected a local path, "
                    "or a URL that fsspec knows with its library installed. "
                    f"Install it: {command}"
                ) from error
            self._open[key] = found
        return self._open[key]

    def path(self, url: str) -> str:
        """Returns the name of a file within its file system."""
        return str(self.filesystem(url)._strip_protocol(url))

    def open(self, file: FileEntry, buffer_bytes: int = 0) -> BinaryIO:
        """Opens a file for reads at any position. The caller closes it.

        Args:
            file: File of this store.
            buffer_bytes: Minimum bytes of a fetch; 0: only the requested ones.
        """
        system = self.filesystem(file.url)
        if _is_remote(system):
            stream = RemoteFile(self, file)
            buffered = (
                io.BufferedReader(stream, buffer_bytes) if buffer_bytes else stream
            )
            return cast("BinaryIO", buffered)
        return system.open(self.path(file.url), "rb")

    def read(self, file: FileEntry, start: int = 0, stop: int | None = None) -> bytes:
        """Returns the bytes of a file, or a range of them; one request."""
        end = file.size_bytes if stop is None else stop
        if end <= start:
            return b""
        path = self.path(file.url)
        with fetching(file.url):
            data = self.filesystem(file.url).cat_file(path, start=start, end=end)
        return _range(data, start, end, file)

    def read_all(self, files: Sequence[FileEntry]) -> list[bytes | Exception]:
        """Returns the bytes of many small files, read in parallel if the store can.

        If a file fails, its exception stands in its place.
        """
        found: dict[str, bytes | Exception] = {}
        for system, own in self._by_system(files):
            parts = system.cat_ranges(
                [self.path(file.url) for file in own],
                [0] * len(own),
                [file.size_bytes for file in own],
                on_error="return",
            )
            for file, data in zip(own, parts, strict=True):
                found[file.url] = _or_error(data, file)
        return [found[file.url] for file in files]

    def _by_system(
        self, files: Sequence[FileEntry]
    ) -> Iterable[tuple[Any, list[FileEntry]]]:
        """Groups files by the file system that reads them; nearly always one."""
        groups: dict[int, tuple[Any, list[FileEntry]]] = {}
        for file in files:
            system = self.filesystem(file.url)
            groups.setdefault(id(system), (system, []))[1].append(file)
        return groups.values()


@final
class RemoteFile(io.RawIOBase):
    """A file of a store as a stream: exactly one request for each read.

    fsspec's own streams ask S3 for facts that the listing already gave.

    Args:
        store: Store of the file.
        file: File to read.

    Example:
        >>> import pathlib
        >>> _ = pathlib.Path("a.txt").write_text("hello")
        >>> stream = RemoteFile(Store(), FileEntry(url="a.txt", size_bytes=5))
        >>> stream.seek(-3, io.SEEK_END), stream.read()
        (2, b'llo')
    """

    def __init__(self, store: Store, file: FileEntry) -> None:
        self._store, self._file, self._place = store, file, 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the position of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position."""
        from_where = {io.SEEK_CUR: self._place, io.SEEK_END: self._file.size_bytes}
        self._place = max(0, from_where.get(whence, 0) + offset)
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """Reads up to `size` bytes; all that remain by default."""
        end = self._file.size_bytes
        stop = end if size < 0 else min(end, self._place + size)
        data = self._store.read(self._file, self._place, stop)
        self._place += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Reads as many bytes as remain and fit."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _or_error(data: bytes | Exception, file: FileEntry) -> bytes | Exception:
    if isinstance(data, Exception):
        return as_store_error(data, file.url)
    try:
        return _range(data, 0, file.size_bytes, file)
    except DataError as error:
        return error


def _range(data: bytes, start: int, stop: int, file: FileEntry) -> bytes:
    if len(data) == stop - start:
        return data
    if len(data) == file.size_bytes:  # some web servers ignore ranges
        return data[start:stop]
    raise DataError(
        f"{file.url} gave {len(data):,} bytes where {stop - start:,} were expected: it "
        "has changed since it was listed. Expected files that stay as they are while "
        "they are read. Write new data under new names, and open the files again."
    )


def _is_remote(system: Any) -> bool:
    protocols = system.protocol
    names = (protocols,) if isinstance(protocols, str) else protocols
    return not {"file", "local", "memory"}.intersection(names)


def s3_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the options of s3fs for stores that speak S3 but are not Amazon's.

    Endpoint, region and credentials are found by botocore as in boto3. Such stores
    often send the checksum of the whole object with a part of it, or none at all:
    checksums are then verified only where S3 requires them.

    Example:
        >>> s3_options({"anon": True})["anon"]
        True
    """
    client: Any = options.get("client_kwargs") or {}
    endpoint = (
        options.get("endpoint_url")
        or client.get("endpoint_url")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    if not endpoint or not _has_checksum_settings():
        return dict(options)
    settings = {
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        **(options.get("config_kwargs") or {}),
    }
    return {**options, "config_kwargs": settings}


def _has_checksum_settings() -> bool:
    """Whether botocore has checksums and settings for them, as from 1.36 on."""
    try:
        major, minor = version("botocore").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (1, 36)
