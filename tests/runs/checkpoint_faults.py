"""Storages that fail at a chosen operation, for the tests of checkpoints."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shoal.host.private import alike
from shoal.runs.folder import Folder

When = Literal["before", "after", "half"]
"""Whether the failing operation has no effect, all of it, or half where it writes."""


class Away(Exception):
    """An error of a storage library that is no OSError."""


class Faults:
    """Counts operations and fails at one of them.

    Args:
        at: The failing operation, from 0; -1 for none.
        when: How much of it takes effect.
        is_crash: Everything after it fails too and has no effect.
        error: Makes the error that is raised.
    """

    def __init__(
        self,
        at: int = -1,
        when: When = "before",
        *,
        is_crash: bool = False,
        error: Callable[[], Exception] = lambda: OSError(errno.ENOSPC, "disk full"),
    ) -> None:
        self.at, self.when, self.is_crash, self.error = at, when, is_crash, error
        self.count = 0
        self.names: list[str] = []

    def do(self, name: str, act: Callable[[], Any], half: Callable[[], Any]) -> Any:
        """Performs one operation, or fails in the way chosen."""
        number, self.count = self.count, self.count + 1
        self.names.append(name)
        if number == self.at:
            if self.when != "before":
                found = half() if self.when == "half" else act()
                getattr(found, "close", nothing)()
            raise self.error()
        if self.is_crash and 0 <= self.at < number:
            raise self.error()
        return act()


def nothing() -> None: ...


class OwnMemory(MemoryFileSystem):
    """Objects in memory that go when the test does; small, so that listing is fast.

    Make it with `skip_instance_cache=True`, else fsspec gives the same one twice.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.store, self.pseudo_dirs = {}, [""]


def in_memory() -> Folder:
    """Returns an empty folder that stands for one in an object store."""
    return Folder(
        fs=OwnMemory(skip_instance_cache=True), path="/bucket/run/checkpoints"
    )


class FaultyFile:
    """A file of a `FaultyFileSystem`."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self.file, self.faults = file, faults

    def write(self, data: bytes) -> int:
        half = data[: len(data) // 2]
        return self.faults.do(
            "write", lambda: self.file.write(data), lambda: self.file.write(half)
        )

    def readinto(self, out: memoryview) -> int:
        return self.faults.do("readinto", lambda: self.file.readinto(out), nothing)

    def __enter__(self) -> FaultyFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.faults.do("close", self.file.close, nothing)


class FaultyFileSystem:
    """Objects in memory behind a network that fails."""

    protocol = ("faulty",)

    def __init__(self, fs: Any, faults: Faults) -> None:
        self.fs, self.faults = fs, faults

    def unstrip_protocol(self, path: str) -> str:
        return f"faulty://{path}"

    def invalidate_cache(self, path: str) -> None: ...

    def open(self, path: str, mode: str) -> FaultyFile:
        act = lambda: FaultyFile(self.fs.open(path, mode), self.faults)  # noqa: E731
        return self.faults.do(f"open {mode}", act, act)

    def pipe_file(self, path: str, content: bytes) -> None:
        half = content[: len(content) // 2]
        self.faults.do(
            "put",
            lambda: self.fs.pipe_file(path, content),
            lambda: self.fs.pipe_file(path, half),
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.fs, name)
        return lambda *a, **k: self.faults.do(name, lambda: call(*a, **k), nothing)


def faulty(folder: Folder, faults: Faults) -> Folder:
    """Returns a folder in memory as it is seen through a network that fails."""
    return Folder(fs=FaultyFileSystem(folder.fs, faults), path=folder.path)


@contextmanager
def faulty_disk(faults: Faults):
    """Makes this process's own disk fail, where files are written and removed."""
    plain = {name: getattr(Path, name) for name in ("replace", "unlink")}
    plain_open, fsync, listdir = open, os.fsync, os.scandir

    class File:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> File:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: Any) -> int:
            half = data[: len(data) // 2]
            return faults.do(
                "write", lambda: self.file.write(data), lambda: self.file.write(half)
            )

    def change(name: str) -> Callable[..., Any]:
        def changed(path: Path, *a: Any, **k: Any) -> Any:
            return faults.do(name, lambda: plain[name](path, *a, **k), nothing)

        return changed

    def changed_open(*a: Any, **k: Any) -> Any:
        if k.get("opener") is not alike:
            return plain_open(*a, **k)
        return faults.do("open", lambda: File(plain_open(*a, **k)), nothing)

    with pytest.MonkeyPatch.context() as patch:
        for name in plain:
            patch.setattr(Path, name, change(name))
        patch.setattr(builtins, "open", changed_open)
        patch.setattr(
            os, "fsync", lambda n: faults.do("fsync", lambda: fsync(n), nothing)
        )
        patch.setattr(
            os,
            "scandir",
            lambda path: faults.do("scandir", lambda: listdir(path), nothing),
        )
        yield
