"""Batches whose items a sampler chooses again for each epoch.

This file decides how such batches become chunks, one each, and the errors about an
epoch whose batches differ from those counted before training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast, final

from shoal.data import trees
from shoal.data.batches import Packing, bytes_per_row
from shoal.data.chunks import ArrayChunk, ChunkedSource, Mixing
from shoal.data.items import ADVICE, Fetch
from shoal.data.travelling import check_travels
from shoal.errors import DataError

Draws: TypeAlias = Callable[[int], Sequence[Any]]
"""Maps an epoch to its draws; the same in every process."""


@final
class DrawnBatches(ChunkedSource):
    """Batches that a sampler chooses again for each epoch; each is a chunk.

    Choose it where rows of several batches must not mix: a `batch_sampler`, a
    `collate_fn` that pads to the longest, a sampler of the user's own.

    Args:
        draws: Function that returns the content of each batch.
        fetch: Reads items.
        packing: How batches are made into chunks.
        is_batched: Whether a draw is a list of items; False means that it is one
            item, and that an item is a batch.

    Raises:
        DataError: There are no batches, or they cannot be pickled or collated.

    Example:
        >>> import numpy as np
        >>> source = DrawnBatches(
        ...     lambda epoch: [[0, 1], [2]],
        ...     Fetch(dataset=np.arange(3.0), collate=np.stack),
        ...     Packing(kind="torch DataLoader", floatx="float32"),
        ... )
        >>> source.chunk_rows, source.read(1, epoch=0).rows
        ((2, 1), array([2.], dtype=float32))
    """

    mixing: Mixing = "nothing"
    are_batches: bool = True

    def __init__(
        self, draws: Draws, fetch: Fetch, packing: Packing, *, is_batched: bool = True
    ) -> None:
        self.kind = packing.kind
        self._draws, self._fetch, self._packing = draws, fetch, packing
        self._is_batched = is_batched
        check_travels((draws, fetch), packing.kind, packing.where, ADVICE)
        found = draws(0)
        if not found:
            raise DataError(
                f"The {packing.kind} has no batches ({packing.where}). Expected "
                "at least one. Check its data set, its sampler and drop_last."
            )
        first = self._packed(found[0], 0, None)
        self.batch_size = len(trees.leaves(first.rows)[0])
        self._bytes_per_row = bytes_per_row(first)
        if is_batched:
            self._chunk_rows = tuple(len(draw) for draw in found)
            self.batch_size = max(self._chunk_rows)
        else:
            last = len(trees.leaves(self._packed(found[-1], 0, None).rows)[0])
            self._chunk_rows = (*(self.batch_size,) * (len(found) - 1), last)

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
            DataError: It has another number of rows than in the first epoch.
        """
        found = self._draws(epoch)
        if len(found) != len(self._chunk_rows):
            raise DataError(
                f"The sampler of the {self.kind} gave {len(found):,} batches in epoch "
                f"{epoch} ({self._packing.where}). Expected "
                f"{len(self._chunk_rows):,}, as in the first. "
                "Use a sampler with the same number of batches in each epoch."
            )
        return self._packed(found[chunk], chunk, self._chunk_rows[chunk])

    def state_of(self, epoch: int) -> Mapping[str, str]:
        """Returns the state of `draws`, if it has any."""
        ask: Any = getattr(self._draws, "state_of", None)
        return {} if ask is None else ask(epoch)

    def _packed(self, draw: Any, index: int, rows: int | None) -> ArrayChunk:
        if self._is_batched:
            batch = self._fetch(list(cast("Sequence[Any]", draw)))
        else:
            batch = self._fetch.collate(self._fetch.dataset[draw])
        return self._packing.chunk(batch, f"batch {index:,}", rows)
