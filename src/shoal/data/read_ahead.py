"""A worker's reader of chunks: few in memory, the next one being read."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.arrays import Array
from shoal.data.chunks import SHELF_BYTES, ArrayChunk, Chunk, ChunkedSource, Shelf
from shoal.data.sources import Batch, Source
from shoal.errors import DataError

AHEAD = 2
"""Chunks that are read before they are needed. More would displace chunks in use."""


LARGE_BYTES = 1 << 20
BEAT_S = 1.0
"""Seconds between two signs of life of a worker that waits for data or reads long."""
MOST_S = 600.0
"""Limit of one read. A storage that does not answer must not block a run forever,
and one that is only slow should not end it."""

T = TypeVar("T")


class TooSlow(DataError):
    """A read did not end; repeating it is useless."""


def in_own_pages(array: Array) -> Array:
    """Copies a large array to pages that return to the system when it is dropped.

    A worker's heap keeps its memory; chunks of unequal sizes would leave holes in
    it, and take a third more memory than they need.

    Example:
        >>> in_own_pages(np.arange(3))
        array([0, 1, 2])
    """
    if array.nbytes < LARGE_BYTES:
        return array
    pages = np.frombuffer(mmap.mmap(-1, array.nbytes), array.dtype)
    copy = pages.reshape(array.shape)
    np.copyto(copy, array)
    return copy


@final
class ReadAhead(Source):
    """Reads chunks in a thread of its own, one at a time.

    Args:
        source: Source of the chunks. Only that thread reads it.
        memory_bytes: Limit of chunks in memory, including those read ahead.
        on_wait: Called every second while needed data has not come.
    """

    def __init__(
        self,
        source: ChunkedSource,
        memory_bytes: int = SHELF_BYTES,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_wait = on_wait
        self._source, self._epoch, self._beat = source, 0, 0.0
        self._shelf = Shelf(source, memory_bytes)
        self._coming: dict[tuple[int, int], Future[Chunk]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-read")

    def __len__(self) -> int:
        return len(self._source)

    @property
    def size_bytes(self) -> int:
        """Bytes of all samples."""
        return self._source.size_bytes

    def expect(self, epoch: int, upcoming: npt.NDArray[np.int64]) -> None:
        """Begins to read the data of the `take` after the next one.

        Args:
            epoch: Epoch, also of the next `take`.
            upcoming: Row numbers, one for each chunk.
        """
        self._epoch = epoch
        for key, coming in list(self._coming.items()):
            if coming.done() and coming.exception() is None:
                self._shelf.put(*key, self._coming.pop(key).result())
        for chunk in self._shelf.chunks_of(upcoming).tolist():
            if len(self._coming) >= AHEAD:
                return
            self._begin(chunk)

    def state_of(self, epoch: int) -> Mapping[str, str]:
        """Returns digests of a copy's own code for an epoch, see `ChunkedSource`."""
        self._beat = time.monotonic() + BEAT_S
        return self._awaited(self._thread.submit(self._source.state_of, epoch))

    def starts_from(self, row: int) -> npt.NDArray[np.int64]:
        """Returns the first row of each chunk that begins at or after a row."""
        return self._shelf.starts_from(row)

    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns rows in the order of `indices`.

        Raises:
            DataError: A chunk cannot be read.
            TooSlow: It takes longer than the limit.
        """
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        rows = np.asarray(indices, np.int64)
        self._beat = time.monotonic() + BEAT_S
        chunks = np.unique(self._shelf.chunks_of(rows)).tolist()
        for chunk in chunks:
            self._begin(chunk)
        for chunk in chunks:
            # Repeated after a failure: the fault may have been temporary.
            key = self._shelf.key(chunk, self._epoch)
            coming = self._coming.pop(key, None)
            if coming is not None:
                self._shelf.put(chunk, self._epoch, self._awaited(coming))
        return self._on_thread(rows)

    def _on_thread(self, rows: npt.NDArray[np.int64]) -> Batch:
        """Takes rows on the thread that reads chunks: a stream stays in one thread."""
        return self._awaited(self._thread.submit(self._shelf.take, rows, self._epoch))

    def _awaited(self, coming: Future[T]) -> T:
        """Waits for a read, and reports regularly that it waits."""
        until = time.monotonic() + MOST_S
        while not wait([coming], max(0.0, self._beat - time.monotonic())).done:
            if time.monotonic() > until:
                raise TooSlow(
                    f"a read of {self._source.kind} has not ended after {MOST_S:.0f} "
                    "s. Expected a storage, or a data set, that gives rows or an "
                    "error in time. Check that it can be reached from the machine of "
                    "this worker, or make smaller chunks of it."
                )
            self._show()
        if time.monotonic() > self._beat:  # many short reads
            self._show()
        return coming.result()

    def _show(self) -> None:
        self._on_wait()
        self._beat = time.monotonic() + BEAT_S

    def _begin(self, chunk: int) -> None:
        key = self._shelf.key(chunk, self._epoch)
        if key not in self._coming and not self._shelf.has(*key):
            self._coming[key] = self._thread.submit(self._read, *key)

    def _read(self, chunk: int, epoch: int) -> Chunk:
        found = self._source.read(chunk, epoch)
        if not isinstance(found, ArrayChunk):
            return found
        return ArrayChunk(trees.map_leaves(in_own_pages, found.rows))

    def close(self) -> None:
        """Ends the thread; the present read is awaited, waiting ones are dropped."""
        self._thread.shutdown(cancel_futures=True)
