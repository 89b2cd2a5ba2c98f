"""Items by number, as a `Dataset` of torch has them: read when requested.

This file decides how single items become rows, so that no item is read needlessly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.data.batches import Packing, bytes_per_row
from shoal.data.chunks import ArrayChunk, ChunkedSource, Mixing, Offsets
from shoal.data.sources import Batch
from shoal.data.travelling import check_travels
from shoal.errors import DataError

CHUNK_ITEMS = 256
"""Rows of a chunk of a data set that is read item by item."""

ADVICE = "Open files and locks in __getitem__ rather than in __init__."


@final
@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Reads items of a data set and collates them, as a process of a loader does.

    Args:
        dataset: Items by number.
        collate: Maps a list of items to a batch.

    Example:
        >>> Fetch(dataset="abc", collate="".join)([2, 0])
        'ca'
    """

    dataset: Any
    collate: Callable[[Any], Any]

    def __call__(self, indices: Sequence[Any]) -> Any:
        """Returns the batch of these items."""
        many = getattr(self.dataset, "__getitems__", None)
        items = many(indices) if many else [self.dataset[i] for i in indices]
        return self.collate(items)


@final
class Items(ChunkedSource):
    """Items of a data set by number; only the requested ones are read.

    Args:
        fetch: Reads items.
        packing: How batches are made into chunks.
        rows: Number of items; default None means all.
        mixing: What a shuffle may do.
        batch_size: Batch size of the loader, if there is one.

    Raises:
        DataError: There are no items, or they cannot be pickled or collated.

    Example:
        >>> import numpy as np
        >>> fetch = Fetch(dataset=np.arange(5.0), collate=np.stack)
        >>> source = Items(fetch, packing=Packing(kind="Dataset", floatx="float32"))
        >>> source.take(np.array([4, 1]))
        array([4., 1.], dtype=float32)
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        packing: Packing,
        rows: int | None = None,
        mixing: Mixing = "rows",
        batch_size: int | None = None,
    ) -> None:
        self.kind, self.mixing, self.batch_size = packing.kind, mixing, batch_size
        self._fetch, self._packing = fetch, packing
        if rows is None and not hasattr(fetch.dataset, "__len__"):
            raise DataError(
                f"The {packing.kind} has no length ({packing.where}). Expected the "
                "number of its items from len(). Give it a __len__ method."
            )
        count = len(fetch.dataset) if rows is None else rows
        if count < 1:
            raise DataError(
                f"The {packing.kind} has {count} items ({packing.where}). "
                "Expected at least one. Check how it was made, and drop_last."
            )
        check_travels(fetch, packing.kind, packing.where, ADVICE)
        whole, left = divmod(count, CHUNK_ITEMS)
        self._chunk_rows = (*(CHUNK_ITEMS,) * whole, *(left,) * bool(left))
        self._bytes_per_row = bytes_per_row(self._packed([0]))

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Items of each chunk."""
        return self._chunk_rows

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all items, estimated from the first."""
        return int(len(self) * self._bytes_per_row)

    def read(self, chunk: int, epoch: int) -> _ItemChunk:
        """Opens a chunk; its items are read when they are taken."""
        return _ItemChunk(self._packed, start=chunk * CHUNK_ITEMS)

    def _packed(self, indices: Sequence[int]) -> ArrayChunk:
        batch = self._fetch(indices)
        return self._packing.chunk(
            batch, f"the batch of items {indices[0]:,} and on", len(indices)
        )


@final
@dataclass(frozen=True)
class _ItemChunk:
    """Items that follow one another, none of them in memory."""

    fetch: Callable[[Sequence[int]], ArrayChunk]
    start: int

    @property
    def size_bytes(self) -> int:
        """Returns 0: nothing is in memory."""
        return 0

    def take(self, offsets: Offsets) -> Batch:
        """Reads items."""
        return self.fetch([self.start + int(offset) for offset in offsets]).rows
