"""Batches that only the driver can read, kept on disk to be read more than once.

Validation data is read again after each epoch, but a generator yields its batches
once. Memory holds one of them at a time; the folder is deleted with the source.
"""

from __future__ import annotations

import copy
import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, final

from shoal.data import trees
from shoal.data.batches import Packing
from shoal.data.chunks import ArrayChunk, ChunkedSource, Mixing
from shoal.data.generators import FedSource
from shoal.data.spool import BatchKey, Spool
from shoal.data.unended import Unended
from shoal.errors import DataError
from shoal.interruption import undisturbed

PEEKED = 2
"""Batches that Keras reads of a generator before it trains, and keeps."""

LEAST_BYTES = 4096
"""Minimum bytes of a file on disk; many small files fill it as well."""


@final
class SpooledSource(ChunkedSource):
    """The first epoch of a source that the driver reads, in a folder on disk.

    Other processes of this machine can read a copy while this process holds the source.

    Build it with `of_source`, or with `of_iterator` if only reading tells the number
    of batches.

    Args:
        chunks: Batches, which are written one by one.
        kind: The user's name for the data.
        notes: Sentences that the user should read.
        most_bytes: Limit of their bytes on disk; default None means no limit.

    Raises:
        DataError: There are none, or they take too much.
    """

    mixing: Mixing = "nothing"
    are_batches: bool = True
    travels_alone: bool = False
    differs_by_epoch: bool = False

    def __init__(
        self,
        chunks: Iterable[ArrayChunk],
        *,
        kind: str,
        notes: tuple[str, ...] = (),
        most_bytes: int | None = None,
    ) -> None:
        self.kind, self.notes = kind, notes
        self._spool = Spool.planned(kind)
        self._remove: Callable[[], object] | None = None
        rows: list[int] = []
        sizes: list[int] = []
        written = 0
        with ExitStack() as stack:
            stack.enter_context(self._spool.open())
            for number, chunk in enumerate(chunks):
                size = self._spool.write(BatchKey(0, number), chunk)
                written += max(size, LEAST_BYTES)
                rows.append(len(trees.leaves(chunk.rows)[0]))
                sizes.append(chunk.size_bytes)
                if most_bytes is not None and written > most_bytes:
                    raise _too_long(kind, number + 1, written)
            with undisturbed():
                self._remove = weakref.finalize(self, stack.pop_all().close)
        self._chunk_rows, self._size_bytes = tuple(rows), sum(sizes)
        self.batch_size = max(rows)

    @classmethod
    def of_source(cls, source: FedSource) -> SpooledSource:
        """Keeps the first epoch of a source that the driver reads.

        Example:
            >>> import numpy as np
            >>> fed = FedSource.of_iterator(
            ...     (np.full(2, n) for n in range(3)), steps_per_epoch=3,
            ...     packing=Packing(kind="generator", floatx="float32"),
            ...     epochs=range(1),
            ... )
            >>> SpooledSource.of_source(fed).take(slice(1, 4))
            array([0, 1, 1])
        """
        return cls(source.first_pass(), kind=source.kind, notes=source.notes)

    @classmethod
    def of_iterator(cls, batches: Iterator[Any], *, packing: Packing) -> SpooledSource:
        """Reads an iterator to its end, which is how its length becomes known.

        Epochs after the first have the first two batches once more: Keras keeps two
        of a generator, and the rest cannot be read a second time.

        Args:
            batches: An iterator with an end; batches of any sizes.
            packing: How batches are made into chunks.

        Raises:
            DataError: It gives no batch, or takes more than half of the free disk.

        Example:
            >>> import numpy as np
            >>> source = SpooledSource.of_iterator(
            ...     (np.full(2, n) for n in range(3)),
            ...     packing=Packing(kind="generator", floatx="float32"),
            ... )
            >>> source.chunk_rows, source.later_rows
            ((2, 2, 2), 4)
        """
        first = next(batches, None)
        if first is None:
            raise DataError(
                f"The {packing.kind} has 0 batches ({packing.where}). Expected at "
                "least one. Check how it was made, and that nothing has read it before."
            )
        free = shutil.disk_usage(tempfile.gettempdir()).free
        chunks = _shown(itertools.chain([first], batches), packing)
        found = cls(chunks, kind=packing.kind, most_bytes=free // 2)
        found.later_rows = sum(found.chunk_rows[:PEEKED])
        return found

    def note_epochs(self, epochs: range, packing: Packing) -> None:
        """Adds a note about the epochs of an iterator after the first."""
        self.notes = ()
        count = len(self._chunk_rows)
        if len(epochs) > 1:
            self.notes = (
                f"The {packing.kind} gives its {count:,} batches once. The first epoch "
                f"has them; each of the others has the first {min(PEEKED, count)} once "
                "more, as under Keras. For whole epochs pass data that can be read "
                f"again, or a {packing.kind} that goes on, with {packing.steps_name}.",
            )

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Rows of each batch."""
        return self._chunk_rows

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all batches."""
        return self._size_bytes

    @contextmanager
    def serving(self) -> Generator[None]:
        """Keeps the folder; it is deleted at the end, and not by garbage collection."""
        try:
            yield
        finally:
            self.close()

    @contextmanager
    def serving_many(self) -> Generator[SpooledSource]:
        """Yields a copy, which removes nothing: the files go when all runs are over."""
        with self.serving():
            yield copy.copy(self)

    def close(self) -> None:
        """Deletes the batches, in the process that wrote them."""
        if self._remove is not None:
            self._remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_remove": None}

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        """Reads a batch; the same in every epoch."""
        del epoch
        return self._spool.read(BatchKey(0, chunk))


def _shown(batches: Iterator[Any], packing: Packing) -> Iterator[ArrayChunk]:
    """Yields chunks of batches; reports their number regularly."""
    unended = Unended(packing)
    for number, batch in enumerate(batches):
        chunk = packing.chunk(batch, f"batch {number:,}")
        yield chunk
        unended.note(chunk.size_bytes)


def _too_long(kind: str, count: int, written: int) -> DataError:
    return DataError(
        f"The {kind} has not ended after {count:,} batches of {written / 1e9:,.1f} GB, "
        f"half of what is free in {tempfile.gettempdir()}. Expected an end, as "
        "the number of its batches was not given. Pass steps_per_epoch (steps, "
        "validation_steps), or set TMPDIR to a larger disk."
    )
