"""Batches that only the driver can read, kept on disk to be read more than once.

What validates a model is read again after each epoch, and a generator gives its batches
once. Memory holds one of them at a time; the folder goes with the source.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from typing import final

from shoal.data.chunks import ArrayChunk, ChunkedSource, Mixing
from shoal.data.generators import FedSource
from shoal.data.spool import Place, Spool
from shoal.interruption import undisturbed


@final
class SpooledSource(ChunkedSource):
    """The first epoch of a source that the driver reads, in a folder on disk.

    Other processes of this machine can read a copy while this one holds the source.

    Args:
        source: Read to its end, batch by batch.

    Raises:
        DataError: It gives no batch, or another one than expected.

    Example:
        >>> import numpy as np
        >>> from shoal.data.batches import Packing
        >>> fed = FedSource.of_iterator(
        ...     (np.full(2, n) for n in range(3)), steps_per_epoch=3, epochs=range(1),
        ...     packing=Packing(kind="generator", floatx="float32"),
        ... )
        >>> SpooledSource(fed).take(slice(1, 4))
        array([0, 1, 1])
    """

    mixing: Mixing = "nothing"
    travels_alone: bool = False
    differs_by_epoch: bool = False

    def __init__(self, source: FedSource) -> None:
        self.kind, self.batch_size = source.kind, source.batch_size
        self.notes = source.notes
        self._chunk_rows = tuple(source.chunk_rows)
        self._size_bytes = source.size_bytes
        self._spool = Spool.planned(source.kind)
        with ExitStack() as stack:
            stack.enter_context(self._spool.open())
            for number, chunk in enumerate(source.first_pass()):
                self._spool.write(Place(0, number), chunk)
            with undisturbed():
                weakref.finalize(self, stack.pop_all().close)

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Rows of each batch."""
        return self._chunk_rows

    @property
    def size_bytes(self) -> int:
        """Judged by the first batch."""
        return self._size_bytes

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        """Reads a batch; the same in every epoch."""
        del epoch
        return self._spool.read(Place(0, chunk))
