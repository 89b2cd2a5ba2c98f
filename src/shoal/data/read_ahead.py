"""A source in chunks as one worker reads it: few in memory, the next on their way."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.data.chunks import SHELF_BYTES, Chunk, ChunkedSource, Shelf
from shoal.data.sources import Batch, Source

AHEAD = 2
"""Chunks that are read before they are needed. More would push out what is in use."""


@final
class ReadAhead(Source):
    """Reads chunks in a thread of its own, one at a time.

    Args:
        source: Of the chunks. It is read from that thread only.
        memory_bytes: Of chunks in memory, those that were read ahead among them.
    """

    def __init__(self, source: ChunkedSource, memory_bytes: int = SHELF_BYTES) -> None:
        self._source, self._epoch = source, 0
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
        """Begins to read what will be asked for after the next `take`.

        Args:
            epoch: Of the next `take`, too.
            upcoming: Numbers of rows, one for each chunk.
        """
        self._epoch = epoch
        for key, coming in list(self._coming.items()):
            if coming.done() and coming.exception() is None:
                self._shelf.put(*key, self._coming.pop(key).result())
        for chunk in self._shelf.chunks_of(upcoming).tolist():
            if len(self._coming) >= AHEAD:
                return
            self._begin(chunk)

    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns rows in the order of `indices`.

        Raises:
            DataError: A chunk cannot be read.
        """
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        rows = np.asarray(indices, np.int64)
        chunks = np.unique(self._shelf.chunks_of(rows)).tolist()
        for chunk in chunks:
            self._begin(chunk)
        for chunk in chunks:
            # Asked for again when it failed: it may have been a moment's trouble.
            coming = self._coming.pop((chunk, self._epoch), None)
            if coming is not None:
                self._shelf.put(chunk, self._epoch, coming.result())
        return self._on_thread(rows)

    def _on_thread(self, rows: npt.NDArray[np.int64]) -> Batch:
        """Takes rows where chunks are read: a stream goes on in one thread."""
        return self._thread.submit(self._shelf.take, rows, self._epoch).result()

    def _begin(self, chunk: int) -> None:
        key = chunk, self._epoch
        if key not in self._coming and not self._shelf.has(*key):
            read = self._thread.submit(self._source.read, chunk, self._epoch)
            self._coming[key] = read

    def close(self) -> None:
        """Ends the thread; what it reads is waited for, what waits is dropped."""
        self._thread.shutdown(cancel_futures=True)
