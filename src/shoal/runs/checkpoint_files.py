"""Files of a checkpoint: written completely or not at all, and always verified."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

from shoal.errors import ShoalError
from shoal.host.private import alike
from shoal.runs.folder import Folder

CHUNK_BYTES = 4 << 20
"""Large enough for one request to an object store, small enough to copy cheaply."""

PARTIAL = ".partial"
"""Suffix of a name while its file is written on a local disk, after a dot prefix."""

NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})


class Damage(Exception):
    """A file has changed. Stays in this package: `latest` takes the one before."""


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of a checkpoint as its manifest describes it.

    Args:
        name: Name relative to the folder of checkpoints.
        size_bytes: Length of the file.
        sha256: Its checksum in hexadecimal digits.
    """

    name: str
    size_bytes: int
    sha256: str


@contextmanager
def storage(folder: Folder) -> Generator[None]:
    """Turns any error of a storage library into an OSError, for callers to retry."""
    try:
        yield
    except (OSError, ShoalError, Damage):
        raise
    except Exception as error:
        raise OSError(
            f"the storage of {folder.url} failed ({type(error).__name__}: {error})"
        ) from error


def write_part(folder: Folder, name: str, content: memoryview) -> Part:
    """Streams bytes into a file and returns its description for verification.

    On a local disk the name appears only after all of it is on the disk; elsewhere
    a partial file is removed if possible, and otherwise harmless, because
    no manifest names it.

    Args:
        folder: The folder of checkpoints.
        name: Relative name that is not in use.
        content: Bytes, one dimension; not copied as a whole.

    Raises:
        OSError: The storage is full or cannot be reached.
    """
    seen = hashlib.sha256()
    with storage(folder):
        if folder.is_local:
            with _whole_file(folder.local_path(name)) as file:
                for chunk in _chunks(content):
                    seen.update(chunk)
                    file.write(chunk)
        else:
            _upload(folder, name, content, seen)
    return Part(name=name, size_bytes=len(content), sha256=seen.hexdigest())


def write_whole(folder: Folder, name: str, content: bytes) -> None:
    """Writes a small file in one step: by a rename on a local disk, else by one put."""
    with storage(folder):
        if folder.is_local:
            with _whole_file(folder.local_path(name)) as file:
                file.write(content)
        else:
            folder.write(name, content)


def read_part(folder: Folder, part: Part, out: memoryview) -> None:
    """Fills a buffer of the part's size from its file and verifies it.

    Raises:
        Damage: The file is missing, has another length or another checksum.
        OSError: The storage cannot be reached, which proves nothing about the file.
    """
    seen = hashlib.sha256()
    with _reading(folder, part.name) as file:
        for chunk in _chunks(out):
            _fill(file, chunk, part)
            seen.update(chunk)
    if seen.hexdigest() != part.sha256:
        raise Damage(f"{part.name} has another sha256 than when it was written")


def check_size(folder: Folder, part: Part) -> None:
    """Compares a file's length, before anything is allocated for it.

    Raises:
        Damage: The file is missing or has another length.
    """
    with _damage(folder, part.name):
        size = int(folder.fs.info(folder.where(part.name))["size"])
    if size != part.size_bytes:
        raise Damage(f"{part.name} has {size} bytes, expected {part.size_bytes}")


def read_whole(folder: Folder, name: str) -> bytes:
    """Reads a small file.

    Raises:
        Damage: It is missing or cannot be read from its disk.
        OSError: The storage cannot be reached.
    """
    with _damage(folder, name):
        return folder.read(name)


def remove(folder: Folder, name: str) -> None:
    """Removes a file; one that does not exist is no error."""
    with storage(folder), suppress(FileNotFoundError):
        if folder.is_local:
            Path(folder.where(name)).unlink()
        else:
            folder.fs.rm_file(folder.where(name))


def sizes(folder: Folder, name: str) -> dict[str, int]:
    """Lists the files of a folder with their lengths; empty if it does not exist."""
    path = folder.where(name).rstrip("/")
    with storage(folder):
        folder.fs.invalidate_cache(path)
        try:
            found: list[dict[str, Any]] = folder.fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
    return {
        str(entry["name"]).rsplit("/", 1)[-1]: int(entry["size"] or 0)
        for entry in found
        if entry["type"] == "file"
    }


def _chunks(content: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]


@contextmanager
def _whole_file(target: Path) -> Generator[IO[bytes]]:
    """Opens a file whose name appears, durably, when the context ends well."""
    partial = target.with_name(f".{target.name}{PARTIAL}")
    try:
        with open(partial, "wb", opener=alike) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(path: Path) -> None:
    """Makes a rename durable through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot do this, and need not.
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def _upload(folder: Folder, name: str, content: memoryview, seen: Any) -> None:
    path = folder.where(name)
    try:
        with folder.fs.open(path, "wb") as file:
            for chunk in _chunks(content):
                seen.update(chunk)
                # A copy, because not every storage library takes a view.
                file.write(bytes(chunk))
    except BaseException:
        # Leaving the context has uploaded the part that was written.
        with suppress(Exception):
            folder.fs.rm_file(path)
        raise


def _fill(file: Any, chunk: memoryview, part: Part) -> None:
    done = 0
    while done < len(chunk):
        count = int(file.readinto(chunk[done:]) or 0)
        if not count:
            raise Damage(f"{part.name} ends before {part.size_bytes} bytes")
        done += count


@contextmanager
def _reading(folder: Folder, name: str) -> Generator[Any]:
    with _damage(folder, name), folder.fs.open(folder.where(name), "rb") as file:
        yield file


@contextmanager
def _damage(folder: Folder, name: str) -> Generator[None]:
    """Distinguishes a missing or damaged file from a storage that cannot be reached."""
    try:
        with storage(folder):
            yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise Damage(f"{name} is missing") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Damage(f"{name} cannot be read from its disk ({error})") from error
