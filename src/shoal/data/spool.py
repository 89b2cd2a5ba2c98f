"""Batches on their way from the driver to workers: files in a private folder.

This file decides the names in the folder, who writes and deletes which files, and how
a worker waits. The driver writes batches ahead of the workers; a worker leaves a mark
for each batch it needs, which tells the driver its progress.
"""

from __future__ import annotations

import os
import pickle
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, final

from shoal.data.chunks import ArrayChunk
from shoal.errors import DataError
from shoal.host.limits import within_limits
from shoal.host.processes import Process, may_live
from shoal.host.scratch import LOCK, Scratch, planned_scratch
from shoal.interruption import undisturbed

WAIT_S = 600.0
"""Seconds a worker waits for one batch."""

ROOM_S = 5.0
"""Seconds a worker waits for a batch while the disk has no room."""

_MARKS, _FAILED = "marks", "failed"
_FAILED_BYTES = 4096  # reserved for the message of `fail`
_READ, _DELETED = ".read", ".deleted"
_LOOK_S, _MARK_S = (0.002, 0.05), 1.0


class NoRoom(DataError):
    """A batch cannot be written as the disk is full, or another limit is met."""


class BatchKey(NamedTuple):
    """Position of a batch: its epoch and its number there."""

    epoch: int
    chunk: int

    @property
    def file(self) -> str:
        """Returns its name in the folder."""
        return f"{self.epoch}-{self.chunk}"

    @classmethod
    def of(cls, file: str) -> BatchKey:
        """Returns the position from a name in the folder."""
        epoch, _, chunk = file.partition("-")
        return cls(int(epoch), int(chunk))


@final
@dataclass(frozen=True, kw_only=True)
class Spool:
    """A folder of batches, as all processes of a run see it.

    Args:
        folder: Path of the folder; made by `open`, not before.
        kind: The user's name for the data, for messages.
        driver: The process that writes the batches.
        wait_s: Seconds a worker waits for one batch.

    Example:
        >>> import numpy as np
        >>> spool = Spool.planned("generator")
        >>> with spool.open():
        ...     size = spool.write(BatchKey(0, 0), ArrayChunk(np.arange(3)))
        ...     spool.read(BatchKey(0, 0)).rows, spool.marks()[1]
        (array([0, 1, 2]), [BatchKey(epoch=0, chunk=0)])
    """

    folder: Path
    kind: str
    driver: Process = field(default_factory=Process.here)
    wait_s: float = WAIT_S

    @classmethod
    def planned(cls, kind: str, wait_s: float = WAIT_S) -> Spool:
        """Chooses a folder for a run without making it."""
        return cls(folder=planned_scratch("spool"), kind=kind, wait_s=wait_s)

    def open(self) -> _OpenSpool:
        """Makes the folder, for as long as the `with` lasts."""
        return _OpenSpool(self.folder)

    @property
    def is_own(self) -> bool:
        """Whether this process is the driver."""
        return self.driver == Process.here()

    def write(self, place: BatchKey, chunk: ArrayChunk) -> int:
        """Writes a batch, all or nothing; returns its bytes.

        Raises:
            NoRoom: There is no room for it.
        """
        target = self.folder / place.file
        part = self.folder / f".{place.file}"
        what = f"write batch {place.chunk:,} of the {self.kind} for workers"
        try:
            with within_limits(what, NoRoom):
                with part.open("wb") as file:
                    pickle.dump(chunk, file, protocol=5)
                    size = file.tell()
                part.replace(target)
        except FileNotFoundError as error:
            raise self._removed() from error
        except NoRoom:
            part.unlink(missing_ok=True)
            raise
        return size

    def delete(self, place: BatchKey) -> None:
        """Deletes a batch, if it is there."""
        (self.folder / place.file).unlink(missing_ok=True)

    def fail(self, message: str) -> None:
        """Tells all waiting workers why no more batches come.

        The reason may be a full disk: a file of blanks reserves room for the message.
        """
        said = message.encode(errors="replace")
        with suppress(FileNotFoundError):  # waiting workers see that the folder is gone
            part = self.folder / f".{_FAILED}"
            with part.open("r+b") as file:
                file.write(said[:_FAILED_BYTES])
            with suppress(OSError), part.open("ab") as file:
                file.write(said[_FAILED_BYTES:])
            part.replace(self.folder / _FAILED)

    def refuse(self, place: BatchKey) -> None:
        """Tells a worker that wants a batch that it was deleted."""
        with within_limits(f"refuse a batch of the {self.kind}", NoRoom):
            (self.folder / f"{place.file}{_DELETED}").touch()

    def marks(self) -> tuple[list[BatchKey], list[BatchKey]]:
        """Reads and removes the marks of workers: batches they want, and have read."""
        # A mark is an empty file, removed before it is acted upon. A mark that is lost
        # in between is left again by its worker after `_MARK_S`: a mark may be seen
        # twice or late, never in part.
        wanted: list[BatchKey] = []
        read: list[BatchKey] = []
        try:
            names = os.listdir(self.folder / _MARKS)
        except FileNotFoundError as error:
            raise self._removed() from error
        for name in names:
            (self.folder / _MARKS / name).unlink(missing_ok=True)
            is_read = name.endswith(_READ)
            (read if is_read else wanted).append(BatchKey.of(name.removesuffix(_READ)))
        return sorted(wanted), sorted(read)

    def read(self, place: BatchKey) -> ArrayChunk:
        """Reads a batch; waits until the driver has written it.

        Raises:
            DataError: The driver's data ended or failed, the driver is gone, or
                nothing came in time.
        """
        began, pause = time.monotonic(), _LOOK_S[0]
        marked = -_MARK_S
        while True:
            if time.monotonic() - marked >= _MARK_S:
                # Repeatedly: it may be deleted after the driver saw a mark.
                marked = time.monotonic()
                try:
                    self._mark(place)
                except NoRoom:  # the batch may come all the same, and make room
                    if marked - began > ROOM_S:
                        raise
            chunk = self._found(place)
            if chunk is not None:
                with suppress(NoRoom):
                    self._mark(place, _READ)
                return chunk
            is_late = time.monotonic() - began > self.wait_s
            self._check(place, is_late=is_late)
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_S[1])

    def _found(self, place: BatchKey) -> ArrayChunk | None:
        try:
            with (self.folder / place.file).open("rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            return None

    def _mark(self, place: BatchKey, suffix: str = "") -> None:
        try:
            with within_limits(f"ask for a batch of the {self.kind}", NoRoom):
                (self.folder / _MARKS / f"{place.file}{suffix}").touch()
        except FileNotFoundError as error:
            raise self._removed() from error

    def _check(self, place: BatchKey, *, is_late: bool) -> None:
        """Raises if waiting is useless."""
        failed = self.folder / _FAILED
        if failed.exists():
            raise DataError(failed.read_text(errors="replace").strip())
        if not self.folder.exists():
            raise self._removed()
        if not may_live(self.driver, self.folder / LOCK):
            raise self._gone(place, f"process {self.driver.pid} has ended")
        if (self.folder / f"{place.file}{_DELETED}").exists():
            raise self._gone(place, "it was read long ago and then deleted")
        if is_late:
            raise self._gone(place, f"nothing came for {self.wait_s:g} s")

    def _removed(self) -> DataError:
        return DataError(
            f"The batches of the {self.kind} are gone: its folder is not there "
            f"(folder={self.folder}). Expected it to stay until training has ended. "
            "Set TMPDIR to a folder that no cleaner removes while a run goes on, or "
            "use data that workers can read themselves, such as a keras PyDataset."
        )

    def _gone(self, place: BatchKey, what: str) -> DataError:
        return DataError(
            f"Batch {place.chunk:,} of epoch {place.epoch} of the {self.kind} did not "
            f"come from the driver (folder={self.folder}): {what}. Expected the driver "
            "to give batches while workers train, on the same machine. "
            "Use data that workers can read themselves, such as a keras PyDataset or "
            "a function dataset_fn(shard)."
        )


@final
class _OpenSpool:
    """A folder that exists while its context is entered, and ends with its process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scratch: Scratch | None = None

    def __enter__(self) -> None:
        with undisturbed():
            try:
                self._scratch = Scratch(self._folder)
                with within_limits("make a folder for batches", DataError):
                    (self._folder / _MARKS).mkdir(mode=0o700)
                    reserve = self._folder / f".{_FAILED}"
                    reserve.write_bytes(b" " * _FAILED_BYTES)
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *error: object) -> None:
        if self._scratch is not None:
            self._scratch.close()
