"""A Spark DataFrame as a source: the files that executors wrote.

Workers need no PySpark to read them. The files go when their run has ended well, or, if
they are kept for several runs, with the last that may use them.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.data.chunks import ArrayChunk, ChunkedSource
from shoal.data.files.format import Part
from shoal.data.files.source import FilePortion, FileSource
from shoal.data.frame_folders import FrameFolder
from shoal.data.sources import Batch

GROUP_BYTES = 16 << 20
GROUPS_EACH = 8
"""Least number of chunks of a worker's share, so that workers end together."""
LEAST_ROWS = 1024


@final
class FrameSource(ChunkedSource):
    """Rows of a DataFrame, in files.

    Args:
        files: The files.
        folder: Their folder.
        is_kept: Whether others may use the files after this source.
        travels_alone: Whether workers on other machines see the files.
        notes: Sentences that the user should read.
    """

    kind = "Spark DataFrame"
    differs_by_epoch = False

    def __init__(
        self,
        files: FileSource,
        folder: FrameFolder,
        *,
        is_kept: bool = False,
        travels_alone: bool,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes, self.travels_alone = notes, travels_alone
        self._files, self._is_kept = files, is_kept
        self._folder: FrameFolder | None = folder
        self._reopen = folder.reopen

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_folder": None}

    @property
    def inner(self) -> FileSource:
        """The files."""
        return self._files

    def reopen(self) -> None:
        """Takes over the files that a broken-off run has left.

        Raises:
            CheckpointError: They went with another process.
        """
        if self._folder is None:
            self._folder = self._reopen(self._is_kept)

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Rows of each chunk."""
        return self._files.chunk_rows

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all rows as they are read."""
        return self._files.size_bytes

    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns rows in the order of `indices`."""
        return self._files.take(indices)

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        """Reads a chunk; the same in every epoch."""
        return self._files.read(chunk, epoch)

    def leave(self) -> None:
        """Leaves the files of a run that was broken off."""
        if self._folder is not None:
            self._folder.leave()

    @contextmanager
    def serving(self) -> Generator[None]:
        """Removes the files when all went well; else they go with this object."""
        yield
        self.close()

    @contextmanager
    def serving_many(self) -> Generator[FrameSource]:
        """Yields a copy, which removes nothing: the files go when all runs are over."""
        with self.serving():
            yield copy.copy(self)

    def close(self) -> None:
        """Removes the files, in the process that had them written, unless kept."""
        if self._folder is not None and not self._is_kept:
            self._folder.close()


def portions_of(
    parts: Sequence[Part], workers: int, row_bytes: int
) -> tuple[FilePortion, ...]:
    """Joins record batches to chunks: at most 16 MiB, and 8 in the share of a worker.

    Args:
        parts: Record batches, in order.
        workers: Largest number of workers.
        row_bytes: Memory of a row.

    Example:
        >>> from shoal.data.files.store import FileEntry
        >>> file = FileEntry(url="a.arrow", size_bytes=1)
        >>> parts = [Part(file=file, rows=1000, start=n, stop=n + 1) for n in range(6)]
        >>> [portion.rows for portion in portions_of(parts, 1, 4)]
        [2000, 2000, 2000]
    """
    rows = sum(part.rows for part in parts)
    limit = min(GROUP_BYTES // max(1, row_bytes), rows // (GROUPS_EACH * workers))
    limit = max(limit, LEAST_ROWS)
    found: list[FilePortion] = []
    waiting: list[Part] = []
    for part in parts:
        waiting.append(part)
        count = sum(one.rows for one in waiting)
        if count >= limit:
            found.append(FilePortion(parts=tuple(waiting), rows=count))
            waiting = []
    if waiting:
        count = sum(one.rows for one in waiting)
        found.append(FilePortion(parts=tuple(waiting), rows=count))
    return tuple(found)
