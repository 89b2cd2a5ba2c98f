"""The files of a URL: which are taken, which are left out, in which order."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from shoal.data.files.refusals import as_data_error
from shoal.data.files.store import FileEntry, Store
from shoal.errors import ConfigError, DataError, ShoalWarning

Urls: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, folder, glob or URL; or several of them."""

SLOW_S = 10.0
MARKS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated")


@final
@dataclass(frozen=True, kw_only=True)
class Listing:
    """Result of a search for files.

    Args:
        files: Files that are not empty, sorted by URL.
        empty: URLs of files of 0 bytes, which are left out.
        asked: The searched URLs, as absolute ones.
    """

    files: tuple[FileEntry, ...]
    empty: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


def list_files(
    url: Urls, *, storage_options: Mapping[str, Any] | None = None
) -> tuple[FileEntry, ...]:
    """Lists the data files of a URL, sorted by name.

    Files and folders whose names begin with "_" or "." (`_SUCCESS`, `.part.crc`) are
    left out unless they are named themselves, and so are files of 0 bytes.

    Args:
        url: A local path, a folder (searched recursively), a glob, any URL that fsspec
            accepts such as "s3://bucket/prefix/", or a list of these.
        storage_options: Options of fsspec's file system. S3 needs none if boto finds
            credentials, region and endpoint (environment, `~/.aws`, role).

    Raises:
        DataError: No file was found, or listing is not allowed.
        ConfigError: A library for this kind of URL is not installed.

    Example:
        >>> import pathlib
        >>> for name in "b.csv", "a.csv", "_SUCCESS":
        ...     _ = pathlib.Path(name).write_text("x,y")
        >>> [file.name for file in list_files(".")]
        ['a.csv', 'b.csv']
    """
    return find_files(url, Store(storage_options)).files


def find_files(url: Urls, store: Store) -> Listing:
    """Lists files, and which of them are empty.

    Raises:
        DataError: No file was found, or listing is not allowed.
    """
    many = [url] if isinstance(url, (str, os.PathLike)) else list(url)
    if not many:
        raise ConfigError(
            "url is an empty list. Expected at least one path or URL. "
            "Pass the folder that holds the data."
        )
    found: dict[str, FileEntry] = {}
    for one in many:
        found.update(_entries(os.fspath(one), store))
    files = sorted(found.values(), key=lambda file: file.url)
    empty = tuple(file.url for file in files if file.size_bytes == 0)
    if len(empty) == len(files):
        shown = ", ".join(os.fspath(one) for one in many[:3])
        raise DataError(
            f"there are no data files at {shown}: {len(empty):,} empty ones, and none "
            "with content (names that begin with '_' or '.' do not count). "
            "Expected at least one file. Check the spelling of the path or prefix."
        )
    return Listing(
        files=tuple(f for f in files if f.size_bytes),
        empty=empty,
        asked=tuple(_lasting(os.fspath(one), store) for one in many),
    )


def _entries(url: str, store: Store) -> dict[str, FileEntry]:
    """Returns the files of one URL, by their own URLs."""
    from fsspec.utils import stringify_path

    url = stringify_path(url)
    system, path = store.filesystem(url), store.path(url)
    try:
        system.invalidate_cache()
        with _told_when_slow(url):
            found, root = _search(system, path)
    except Exception as error:
        raise as_data_error(error, url) from error
    finally:
        system.invalidate_cache()  # a million names need not stay in memory
    files: dict[str, FileEntry] = {}
    for name, info in found.items():
        info = info or system.info(name)  # HTTP listings have no sizes
        is_file = info.get("type") == "file" and not name.endswith("/")
        if is_file and not _is_hidden(name[len(root) :]):
            own = _url_of(system, name)
            files[own] = FileEntry(
                url=own, size_bytes=int(info.get("size") or 0), mark=mark_of(info)
            )
    return files


def _lasting(url: str, store: Store) -> str:
    """Makes a relative path absolute, with its patterns."""
    from fsspec.utils import stringify_path

    url = stringify_path(url)
    return url if "://" in url else str(store.path(url))


@contextmanager
def _told_when_slow(url: str) -> Generator[None]:
    """Warns when a listing takes long, as with a store that never answers."""

    def tell() -> None:
        text = (
            f"{url} is not listed after {SLOW_S:g} s: it has many files, or its "
            "store is slow, or does not answer. Still trying, for some minutes."
        )
        warnings.warn(text, ShoalWarning, stacklevel=2)

    timer = threading.Timer(SLOW_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _search(system: Any, path: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Returns fsspec's facts about each name, and the folder that the user named."""
    from fsspec.core import has_magic

    if has_magic(path):
        places = [place for place in map(path.find, "*?[") if place >= 0]
        found = system.glob(path, detail=True)
        if found or not system.exists(path):
            return found, path[: path.rfind("/", 0, min(places)) + 1]
    found = system.find(path, detail=True)
    # Nothing, an empty folder, or a store that does not list single files.
    if not found:
        if not system.exists(path):
            raise FileNotFoundError("no such file or folder")
        info = system.info(path)
        found = {path: info} if info.get("type") == "file" else {}
    # A file that the user names is taken, whatever its name.
    return found, path


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(("_", ".")) for part in relative.split("/"))


def _url_of(system: Any, name: str) -> str:
    """Returns the URL of a name; a local path stays a path."""
    url = str(system.unstrip_protocol(name))
    return name if url.startswith(("file:", "local:")) else url


def mark_of(info: Mapping[str, Any]) -> str:
    """Returns a store's mark of this version of a file, "" if it has none."""
    for key in MARKS:
        if info.get(key) is not None:
            return str(info[key]).strip('"')
    return ""
