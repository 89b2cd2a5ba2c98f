"""Where files lie: opened through fsspec, with errors that say what to do.

This file decides how a store is reached (credentials, region and endpoint as boto
finds them) and what is said when it refuses. A `Store` is pickled as its options
alone; every process opens its own connections.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO, final

from shoal.errors import ConfigError, DataError

S3 = ("s3", "s3a")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """A file, as it was listed.

    Args:
        url: How it is opened again: "s3://bucket/key", or a local path.
        size_bytes: Its size, as it is stored.
        mark: Of this version of it, where the store gives one: its ETag, or the time
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
        """The last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]


@final
class Store:
    """Reads files of any store fsspec knows: a disk, S3, GCS, HTTP.

    Args:
        options: For fsspec's file system, as `storage_options` of pandas. Not needed
            for S3 where boto finds credentials, region and endpoint by itself.

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
        from fsspec.core import url_to_fs

        scheme, colon, rest = url.partition("://")
        key = f"{scheme}://{rest.partition('/')[0]}" if colon else ""
        if key not in self._open:
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

    def open(self, file: FileEntry) -> BinaryIO:
        """Opens a file to be read here and there. Close it.

        The size is known from the listing, so that S3 is not asked for it again.
        """
        system = self.filesystem(file.url)
        if _is_remote(system):
            # Readers ask for what they need; blocks read ahead would be thrown away.
            return system.open(
                self.path(file.url), "rb", size=file.size_bytes, cache_type="none"
            )
        return system.open(self.path(file.url), "rb")

    def read(self, file: FileEntry, start: int = 0, stop: int | None = None) -> bytes:
        """Returns the bytes of a file, or a range of them; one request."""
        end = file.size_bytes if stop is None else stop
        if end <= start:
            return b""
        path = self.path(file.url)
        data = self.filesystem(file.url).cat_file(path, start=start, end=end)
        return _range(data, start, end, file)

    def read_all(self, files: Sequence[FileEntry]) -> list[bytes | Exception]:
        """Returns the bytes of many small files, read at once where the store can.

        What went wrong with a file stands in its place.
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
        """Files by the file system that reads them; one, nearly always."""
        groups: dict[int, tuple[Any, list[FileEntry]]] = {}
        for file in files:
            system = self.filesystem(file.url)
            groups.setdefault(id(system), (system, []))[1].append(file)
        return groups.values()


def _or_error(data: bytes | Exception, file: FileEntry) -> bytes | Exception:
    if isinstance(data, Exception):
        return data
    try:
        return _range(data, 0, file.size_bytes, file)
    except DataError as error:
        return error


def _range(data: bytes, start: int, stop: int, file: FileEntry) -> bytes:
    if len(data) == stop - start:
        return data
    if len(data) == file.size_bytes:  # some web servers know no ranges
        return data[start:stop]
    raise DataError(
        f"{file.url} gave {len(data):,} bytes where {stop - start:,} were expected: it "
        "has changed since it was listed. Expected files that stay as they are while "
        "they are read. Write new data under new names, and open the files anew."
    )


def _is_remote(system: Any) -> bool:
    protocols = system.protocol
    names = (protocols,) if isinstance(protocols, str) else protocols
    return not {"file", "local", "memory"}.intersection(names)


def s3_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the options of s3fs for stores that speak S3 but are not Amazon's.

    Endpoint, region and credentials are found by botocore as in boto3. Such stores
    often send the checksum of the whole object with a part of it, or none at all:
    checksums are then looked at only where S3 demands them.

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
    """Checksums, and settings to do without, came with botocore 1.36."""
    try:
        major, minor = version("botocore").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (1, 36)


@contextmanager
def reading(file: FileEntry, kind: str) -> Iterator[None]:
    """Turns whatever goes wrong with a file into a `DataError` that names it.

    Args:
        file: That is read.
        kind: What it should be: "Parquet file".
    """
    try:
        yield
    except (DataError, ConfigError):
        raise
    except Exception as error:
        raise as_data_error(error, file.url, kind) from error


def as_data_error(error: Exception, url: str, kind: str = "") -> DataError:
    """Says what went wrong with a URL, and what to do.

    Args:
        error: Of fsspec, of a store's library, or of a parser.
        url: That was listed or read.
        kind: What a file should be; "" while files are listed.

    Example:
        >>> print(as_data_error(PermissionError("403"), "s3://bucket/a.csv"))
        access to s3://bucket/a.csv is denied (PermissionError: 403). Expected ...
    """
    if isinstance(error, DataError):
        return error
    why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    names = " ".join(cls.__name__ for cls in type(error).__mro__)
    if isinstance(error, FileNotFoundError):
        return _gone(url, why) if kind else _nowhere(url, why)
    if "Credentials" in names or "TokenRetrieval" in names:
        return DataError(
            f"there are no usable credentials for {url} ({why}). Expected those of "
            "boto: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws, "
            "or the role of the machine. Set them, or pass storage_options="
            "{'anon': True} for a public bucket."
        )
    if isinstance(error, PermissionError) or "Forbidden" in why:
        return DataError(
            f"access to {url} is denied ({why}). Expected permission to list the "
            "folder and to read its files (on S3: s3:ListBucket and s3:GetObject). "
            "Check which user or role is in use (aws sts get-caller-identity)."
        )
    if any(word in names for word in ("Connect", "Endpoint", "Timeout", "DNS")):
        return DataError(
            f"the store of {url} does not answer ({why}). Expected it to be reachable "
            "from this machine. Check the network, the region, and AWS_ENDPOINT_URL."
        )
    if not kind:
        return DataError(
            f"{url} cannot be listed ({why}). Expected a file, a folder, a glob or a "
            "URL that fsspec can list. Check it with: python -c "
            f"\"import fsspec; print(fsspec.open_files('{url}'))\""
        )
    return DataError(
        f"{url} is no readable {kind} ({why}). Expected a whole one, as its writer "
        "closed it. Write it again, or pass on_bad_file='skip' to leave such files "
        "out when data is opened."
    )


def _gone(url: str, why: str) -> DataError:
    return DataError(
        f"{url} is gone: it was there when the files were listed ({why}). Expected "
        "files that stay as they are while they are read. Put it back and resume, "
        "or start again to train on what is there."
    )


def _nowhere(url: str, why: str) -> DataError:
    return DataError(
        f"there is nothing at {url} ({why}). Expected an existing file, folder, glob "
        "or bucket. Check the spelling, and for S3 the account and the region."
    )
