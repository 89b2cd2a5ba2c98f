"""Batches that are read by number: PyDataset and similar data.

This file decides how ready batches become chunks: one each, with sizes
that are decided by reading the first and the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from shoal.data import trees
from shoal.data.batches import Packing, bytes_per_row
from shoal.data.chunks import ArrayChunk, ChunkedSource, Mixing

ReadBatch: TypeAlias = Callable[[int, int], Any]
"""Maps the number of a batch and the epoch to the batch."""


@final
class NumberedBatches(ChunkedSource):
    """Batches by number, each a chunk; every process reads its own.

    All but the last one are assumed to have as many rows as the first; a worker that
    finds another size raises an error.

    Args:
        read_batch: Returns a batch; is pickled for workers.
        count: Number of batches.
        packing: How batches are made into chunks.
        mixing: What a shuffle may do.

    Raises:
        DataError: The first or the last batch cannot be used.

    Example:
        >>> import numpy as np
        >>> source = NumberedBatches(
        ...     lambda index, epoch: np.full((2, 1), index),
        ...     count=3, packing=Packing(kind="list", floatx="float32"),
        ... )
        >>> len(source), source.batch_size, source.take(slice(1, 3)).tolist()
        (6, 2, [[0], [1]])
    """

    are_batches: bool = True

    def __init__(
        self,
        read_batch: ReadBatch,
        *,
        count: int,
        packing: Packing,
        mixing: Mixing = "chunks",
    ) -> None:
        self.kind, self.mixing = packing.kind, mixing
        self._read_batch, self._packing = read_batch, packing
        first, last = self._packed(0, 0), self._packed(count - 1, 0)
        self.batch_size = len(trees.leaves(first.rows)[0])
        last_rows = len(trees.leaves(last.rows)[0])
        if last_rows > self.batch_size:
            raise packing.odd_size(_name(count - 1), last_rows, self.batch_size)
        self._chunk_rows = (*(self.batch_size,) * (count - 1), last_rows)
        self._bytes_per_row = bytes_per_row(first)

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Rows of each batch."""
        return self._chunk_rows

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all batches, estimated from the first."""
        return int(len(self) * self._bytes_per_row)

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        """Reads a batch.

        Raises:
            DataError: It has the wrong number of rows, or none.
        """
        return self._packed(chunk, epoch, self._chunk_rows[chunk])

    def state_of(self, epoch: int) -> Mapping[str, str]:
        """Returns the state of `read_batch`, if it has any."""
        ask: Any = getattr(self._read_batch, "state_of", None)
        return {} if ask is None else ask(epoch)

    def _packed(self, index: int, epoch: int, rows: int | None = None) -> ArrayChunk:
        batch = self._read_batch(index, epoch)
        return self._packing.chunk(batch, _name(index), rows)


def _name(index: int) -> str:
    return f"batch {index:,}"
