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
from dataclasses import dataclass
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

LEAST_BYTES = 16384
"""Minimum bytes that a file counts for: many small ones fill a disk as well, as it has
a number of files that is limited, often one for so many bytes."""

GENERATOR_GB = 10.0
"""Gigabytes after which a generator without a number of batches counts as endless."""


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
        limit: Limit of their bytes on disk; default None means no limit.

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
        limit: _Limit | None = None,
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
                if limit is not None and written > limit.most_bytes:
                    raise limit.passed(kind, number + 1, written)
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
    def of_iterator(
        cls,
        batches: Iterator[Any],
        *,
        packing: Packing,
        most_gb: float = GENERATOR_GB,
    ) -> SpooledSource:
        """Reads an iterator to its end, which is how its length becomes known.

        Epochs after the first have the first two batches once more: Keras keeps two
        of a generator, and the rest cannot be read a second time.

        Args:
            batches: An iterator with an end; batches of any sizes.
            packing: How batches are made into chunks.
            most_gb: Gigabytes on disk after which it counts as endless.

        Raises:
            DataError: It gives no batch, or takes more than that, or than half of the
                free disk.

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
        limit = _Limit.of(packing, most_gb)
        chunks = _shown(itertools.chain([first], batches), packing, limit)
        found = cls(chunks, kind=packing.kind, limit=limit)
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


def _shown(
    batches: Iterator[Any], packing: Packing, limit: _Limit
) -> Iterator[ArrayChunk]:
    """Yields chunks of batches; reports their number regularly."""
    unended = Unended(packing, most_bytes=limit.most_bytes)
    for number, batch in enumerate(batches):
        chunk = packing.chunk(batch, f"batch {number:,}")
        yield chunk
        unended.note(max(chunk.size_bytes, LEAST_BYTES))


@final
@dataclass(frozen=True, kw_only=True)
class _Limit:
    """Bytes on disk after which a generator counts as endless.

    Args:
        most_bytes: The limit.
        steps_name: Name of the argument with the number of batches.
        is_of_disk: Whether it is what the disk has, and not a setting.
    """

    most_bytes: float
    steps_name: str
    is_of_disk: bool

    @classmethod
    def of(cls, packing: Packing, most_gb: float) -> _Limit:
        """Returns the lower one of the two limits."""
        half = shutil.disk_usage(tempfile.gettempdir()).free // 2
        most = most_gb * 1e9
        return cls(
            most_bytes=min(most, half),
            steps_name=packing.steps_name,
            is_of_disk=half < most,
        )

    def passed(self, kind: str, count: int, written: int) -> DataError:
        """Returns the error of a generator that has passed it."""
        steps = self.steps_name
        limit = f"the limit is {self.most_bytes / 1e9:,.1f} GB, SHOAL_GENERATOR_GB"
        more = "set SHOAL_GENERATOR_GB to more"
        if self.is_of_disk:
            limit = f"more than half of what is free in {tempfile.gettempdir()}"
            more = "set TMPDIR to a folder on a larger disk"
        return DataError(
            f"The {kind} has not ended after {count:,} batches, which take "
            f"{written / 1e9:,.1f} GB ({limit}). It is read to its end before it is "
            f"used, as {steps} is not given. If it has no end, pass {steps}=N, the "
            f"number of batches to take; if it has one, pass that too, or {more}."
        )
