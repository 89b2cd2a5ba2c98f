"""A folder on any fsspec URL. This file decides how bytes are written and read."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, final

from fsspec.core import url_to_fs  # pyright: ignore[reportUnknownVariableType]

from shoal.errors import ConfigError, DataError
from shoal.host import private
from shoal.runs.profiles import profile_of

SCHEME = "://"


@final
@dataclass(frozen=True, kw_only=True)
class Folder:
    """One folder of a file system; names inside it are relative and use "/".

    Args:
        fs: The fsspec file system.
        path: The folder's path on it, without a trailing "/".

    Example:
        >>> folder = Folder.at("memory://doctest-folder")
        >>> folder.write("a/b.txt", b"fish")
        >>> folder.read("a/b.txt"), folder.names("a")
        (b'fish', ['b.txt'])
    """

    fs: Any
    path: str

    @classmethod
    def at(cls, url: str | os.PathLike[str]) -> Folder:
        """Opens a folder by path or URL; nothing is created.

        Raises:
            ConfigError: The URL's protocol is unknown, its library is missing, or its
                host cannot be reached.
        """
        text = os.path.expanduser(os.fspath(url))
        profile = profile_of(text)
        options = {"profile": profile} if profile else {}
        try:
            # A cached listing would hide new segments of a running fit.
            fs, path = url_to_fs(text, use_listings_cache=False, **options)
        except (ValueError, ImportError, OSError) as error:
            extra = ", pip install 'shoal[aws]'" if text.startswith("s3:") else ""
            raise ConfigError(
                f"the run folder cannot be opened: run={text!r} "
                f"({type(error).__name__}: {error}). Expected a local path, or a URL "
                "that fsspec knows and that can be reached. Install the library of its "
                f"protocol{extra}, or choose another place."
            ) from error
        return cls(fs=fs, path=str(path).rstrip("/"))

    @property
    def url(self) -> str:
        """Returns a plain path on this machine, a URL elsewhere."""
        return self.path if self.is_local else str(self.fs.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """Returns the last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's own disks, where files can grow in place."""
        return "file" in self.protocols

    @property
    def protocols(self) -> tuple[str, ...]:
        """Returns the names by which URLs call its storage."""
        protocol: str | tuple[str, ...] = self.fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def child(self, name: str) -> Folder:
        """Returns a folder inside this one."""
        return Folder(fs=self.fs, path=self.where(name))

    def where(self, name: str) -> str:
        """Returns the file system's path of a name in this folder.

        Raises:
            DataError: The name leads out of it.
        """
        if ".." in name.split("/"):
            raise DataError(
                f"the name {name[:200]!r} leads out of {self.path}. "
                "Expected one that stays in the folder. "
                "Check its origin: Shoal writes no such names."
            )
        return f"{self.path}/{name}"

    def claim(self, name: str) -> Folder:
        """Returns a folder inside this one that did not exist; made on local disks.

        It is private, or shared with the group if this folder is. Missing parent
        folders are made private.

        Raises:
            FileExistsError: The folder exists. Only local disks raise it.
        """
        if self.is_local:
            root = Path(self.path)
            private.make_private(root)
            private.make_inside(root / name)
        return self.child(name)

    def exists(self, name: str = "") -> bool:
        """Returns whether a file or folder exists."""
        path = self.where(name).rstrip("/")
        return os.path.exists(path or "/") if self.is_local else self.fs.exists(path)

    def names(self, name: str = "") -> list[str]:
        """Lists the direct entries of a folder, sorted; empty if it does not exist."""
        path = self.where(name).rstrip("/")
        try:
            if self.is_local:  # a list of 1,000 runs has thousands of folders
                return sorted(os.listdir(path or "/"))
            self.fs.invalidate_cache(path)
            found: list[str] = self.fs.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        bare = (str(entry).rstrip("/") for entry in found)
        return sorted(entry.rsplit("/", 1)[-1] for entry in bare if entry != path)

    def read(self, name: str, start: int = 0, most: int | None = None) -> bytes:
        """Reads a file from byte `start` on.

        Args:
            name: Name of the file.
            start: First byte to read.
            most: Most bytes to read; None for all of them.
        """
        if self.is_local:
            with _plain_file(self.where(name)) as file:
                file.seek(start)
                return file.read(-1 if most is None else most)
        if start >= self.size(name):
            return b""  # object stores refuse a range that begins at the end
        end = None if most is None else start + most
        return bytes(self.fs.cat_file(self.where(name), start=start or None, end=end))

    def size(self, name: str) -> int:
        """Returns the bytes of a file."""
        if self.is_local:
            return Path(self.where(name)).stat().st_size
        return int(self.fs.size(self.where(name)))

    def written_unix(self, name: str) -> float:
        """Returns when a file was written, by the clock of its disk or storage.

        Returns:
            Unix seconds. Some storages know whole seconds only.
        """
        if self.is_local:
            return Path(self.where(name)).stat().st_mtime
        found: datetime = self.fs.modified(self.where(name))
        return found.timestamp()

    def total_bytes(self) -> int:
        """Returns the bytes of all files in the folder; links are not followed.

        Example:
            >>> Folder.at("memory://doctest-no-such-folder").total_bytes()
            0
        """
        if self.is_local:
            return _bytes_in(self.path)
        try:
            return int(self.fs.du(self.path))
        except FileNotFoundError:
            return 0

    def write(self, name: str, content: bytes) -> None:
        """Writes a whole file; readers see the old content or the new, never a part."""
        if not self.is_local:
            self.fs.pipe_file(self.where(name), content)
            return
        target = self._local_target(name)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(partial, "wb", opener=private.alike) as file:
                file.write(content)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def create(self, name: str, content: bytes) -> None:
        """Writes a file that must not exist yet.

        Raises:
            FileExistsError: The file exists.
        """
        if self.is_local:
            target = self._local_target(name)
            with open(target, "xb", opener=private.alike) as file:
                file.write(content)
            return
        try:
            if "gs" in self.protocols:  # one request, where `open` makes two
                self.fs.pipe_file(self.where(name), content, mode="create")
                return
            with self.fs.open(self.where(name), "xb") as file:
                file.write(content)
        except (ValueError, TypeError, NotImplementedError):
            # Not every file system has an exclusive mode; random letters in the
            # run id make the gap between these two calls harmless.
            if self.exists(name):
                raise FileExistsError(self.where(name)) from None
            self.fs.pipe_file(self.where(name), content)
        except OSError as error:
            # "Precondition failed", from storage that does not say which one.
            if error.errno == errno.EINVAL and self.exists(name):
                raise FileExistsError(self.where(name)) from None
            raise

    def put(self, source: Path, name: str) -> None:
        """Moves a local file to its final name here, in one step.

        Args:
            source: A file that was opened by `alike`; its mode stays.
            name: Its name in this folder.
        """
        if self.is_local:
            source.replace(self._local_target(name))
        else:
            self.fs.put_file(str(source), self.where(name))

    def remove(self) -> None:
        """Removes the folder with its contents; for a link, the link alone."""
        if self.is_local and Path(self.path).is_symlink():
            Path(self.path).unlink()
            return
        self.fs.rm(self.path, recursive=True)

    def local_path(self, name: str) -> Path:
        """Returns the path of a file in a local folder; makes its parent folders."""
        return self._local_target(name)

    def _local_target(self, name: str) -> Path:
        target = Path(self.where(name))
        private.make_alike(target.parent)
        return target


def _plain_file(path: str) -> BinaryIO:
    """Opens a file of an untrusted folder, unless it is a pipe, which would block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "Not a plain file", path)


def _bytes_in(path: str) -> int:
    """Returns the bytes of the files below a local path; what vanishes has none."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += _bytes_in(entry.path)
                else:
                    with suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return total
    return total


def is_place(text: str) -> bool:
    """Returns whether a text is a path or URL, not a bare word.

    Example:
        >>> is_place("s3://bucket/runs"), is_place("./runs"), is_place("higgs")
        (True, True, False)
    """
    return SCHEME in text or "/" in text or os.sep in text or text in {".", "..", "~"}
