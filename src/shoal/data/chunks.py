"""Samples that lie in chunks: files, shards of a stream, ready batches.

This file decides the contract of sources that are read a chunk at a time, and how
rows are found by number. `chunk_order` decides the order of chunks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.sources import Batch, Source
from shoal.errors import DataError

Offsets: TypeAlias = npt.NDArray[np.int64]
Mixing: TypeAlias = Literal["rows", "chunks", "nothing"]

MEMORY_BYTES = 512 << 20
"""Default limit of the memory of data in one process."""
SHELF_BYTES = MEMORY_BYTES // 4
"""Default limit of open chunks. A chunk that is being decoded takes twice its size,
and the allocator keeps the memory that it frees for the next one."""


GROUP_BYTES = MEMORY_BYTES // 8
"""Size of the chunks whose rows are mixed; the next ones are read meanwhile."""


class ShapesDiffer(DataError):
    """Rows of one request have different shapes."""


class Chunk(Protocol):
    """Samples that are read together."""

    @property
    def size_bytes(self) -> int:
        """Returns the memory it takes while it is open."""
        ...

    def take(self, offsets: Offsets) -> Batch:
        """Returns rows of the chunk, by their offsets in it."""
        ...


@final
@dataclass(frozen=True)
class ArrayChunk:
    """A chunk that is completely in memory.

    Args:
        rows: Arrays as Keras packs them, rows first.

    Example:
        >>> ArrayChunk((np.arange(3), np.ones(3))).take(np.array([2, 0]))[0]
        array([2, 0])
    """

    rows: Batch

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all arrays."""
        return sum(leaf.nbytes for leaf in trees.leaves(self.rows))

    def take(self, offsets: Offsets) -> Batch:
        """Returns rows, copied."""
        return trees.map_leaves(lambda array: array[offsets], self.rows)


class ChunkedSource(Source):
    """Samples in chunks of known sizes. Subclass it for data that is read in parts.

    A source is pickled and opened again by every worker: it holds names and sizes,
    no handles. Workers read it from one thread at a time, but several workers at once.
    The samples of a chunk and an epoch must be the same however often it is read;
    if that cannot be promised, `is_exactly_once` is False and `plan` says so.

    Example:
        >>> class Days(ChunkedSource):
        ...     chunk_rows = (3, 2)
        ...     size_bytes = 40
        ...     def read(self, chunk, epoch):
        ...         return ArrayChunk(np.full(self.chunk_rows[chunk], chunk))
        >>> Days().take(np.array([0, 4]))
        array([0, 1])
    """

    kind: str = "chunks"
    """The user's name for the data: "Parquet files"."""
    mixing: Mixing = "rows"
    """What a shuffle may do: mix rows of several chunks; reorder chunks
    and keep the rows of each; or nothing, if the data has an order of its own."""
    is_exactly_once: bool = True
    """Whether a chunk that is read again has the same samples."""
    batch_size: int | None = None
    """Rows of a batch, if the data already comes in batches; None: any."""
    differs_by_epoch: bool = True
    """Whether a chunk may have other samples in another epoch."""
    are_batches: bool = False
    """Whether each chunk is a batch, which is trained as one step unchanged."""
    later_rows: int | None = None
    """Samples of every epoch after the first: its first ones, by number; None: all."""
    notes: tuple[str, ...] = ()
    """Sentences that a user should read before training begins."""
    travels_alone: bool = True
    """Whether a copy works without the process that made it."""

    @property
    @abstractmethod
    def chunk_rows(self) -> Sequence[int]:
        """Samples of each chunk; none of them is 0."""

    @abstractmethod
    def read(self, chunk: int, epoch: int) -> Chunk:
        """Opens a chunk.

        Args:
            chunk: Number of the chunk.
            epoch: Number of the epoch, for data that differs between epochs.

        Raises:
            DataError: It cannot be read; names the file and the remedy.
        """

    def leave(self) -> None:
        """Leaves what was written for a run that was broken off, for `reopen`."""

    def reopen(self) -> None:
        """Takes over what a broken-off run has left; `shoal.resume` calls it once."""

    def state_of(self, epoch: int) -> Mapping[str, str]:
        """Returns digests of the values that user code made of this copy for an epoch.

        The keys are names. All workers' copies must have the same digests; the
        controller compares them. Empty if there is nothing to compare.
        """
        del epoch
        return {}

    def __len__(self) -> int:
        return int(sum(self.chunk_rows))

    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns rows in the order of `indices`; opens chunks for this call alone."""
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        return Shelf(self).take(np.asarray(indices, np.int64), epoch=0)


def first_rows(source: Source, count: int) -> Batch:
    """Returns the first rows of a source: of one shape, and perhaps fewer.

    Args:
        source: Source of the rows.
        count: Maximum number of rows.
    """
    if isinstance(source, ChunkedSource) and source.are_batches:
        count = min(count, source.chunk_rows[0])
    return source.take(slice(0, count))


@final
class Shelf:
    """Open chunks of a source, the most recently used ones within a limit.

    Args:
        source: Source of the chunks.
        memory_bytes: Limit of their memory together. One chunk is always kept.
    """

    def __init__(self, source: ChunkedSource, memory_bytes: int = SHELF_BYTES) -> None:
        self._source, self._limit = source, memory_bytes
        self._starts = np.concatenate([[0], np.cumsum(source.chunk_rows)])
        self._open: OrderedDict[tuple[int, int], Chunk] = OrderedDict()
        self._used_bytes = 0

    def key(self, chunk: int, epoch: int) -> tuple[int, int]:
        """Returns the key of a chunk: the same in all epochs, or one for each."""
        return chunk, epoch if self._source.differs_by_epoch else 0

    def starts_from(self, row: int) -> Offsets:
        """Returns the first row of each chunk that begins at or after a row."""
        starts = self._starts[:-1]
        return starts[np.searchsorted(starts, row) :]

    def chunks_of(self, indices: Offsets) -> npt.NDArray[np.int64]:
        """Returns the number of the chunk of each row."""
        return np.searchsorted(self._starts, indices, side="right").astype(np.int64) - 1

    def take(self, indices: Offsets, epoch: int) -> Batch:
        """Returns rows by number, in the order of `indices`.

        Raises:
            IndexError: A row is outside the data.
            DataError: A chunk cannot be read.
        """
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._starts[-1]:
            raise IndexError(f"rows outside 0 to {self._starts[-1] - 1}")
        owners = self.chunks_of(indices)
        # Chunks in the order of first use: a stream is read forwards.
        _, first = np.unique(owners, return_index=True)
        chunks = owners[np.sort(first)]
        parts: list[Batch] = []
        places: list[Offsets] = []
        for chunk in chunks:
            mine = np.flatnonzero(owners == chunk)
            offsets = indices[mine] - self._starts[chunk]
            parts.append(self._chunk(int(chunk), epoch).take(offsets))
            places.append(mine)
        return parts[0] if len(parts) == 1 else _joined(parts, places)

    def put(self, chunk: int, epoch: int, found: Chunk) -> None:
        """Keeps a chunk that the caller has opened; older ones are dropped for it."""
        self._open[self.key(chunk, epoch)] = found
        self._used_bytes += found.size_bytes
        while self._used_bytes > self._limit and len(self._open) > 1:
            _, old = self._open.popitem(last=False)
            self._used_bytes -= old.size_bytes

    def has(self, chunk: int, epoch: int) -> bool:
        """Whether a chunk is open."""
        return self.key(chunk, epoch) in self._open

    def _chunk(self, chunk: int, epoch: int) -> Chunk:
        key = self.key(chunk, epoch)
        if key in self._open:
            self._open.move_to_end(key)
        else:
            self.put(chunk, epoch, self._source.read(chunk, epoch))
        return self._open[key]


def _joined(parts: Sequence[Batch], places: Sequence[Offsets]) -> Batch:
    """Joins parts of a batch, each row at its requested position."""
    back = np.argsort(np.concatenate(places), kind="stable")
    return concatenated(parts, back)


def concatenated(parts: Sequence[Batch], back: Offsets | None = None) -> Batch:
    """Joins the rows of several batches.

    Args:
        parts: At least one batch.
        back: Reorders the rows; default None keeps the order.

    Raises:
        ShapesDiffer: Their rows differ in shape or dtype.
    """
    if len({kind_of(part) for part in parts}) > 1:
        shapes = " and ".join(sorted({str(kind_of(part)) for part in parts})[:2])
        raise ShapesDiffer(
            f"rows of {shapes} were asked for as one batch. Expected rows of one shape "
            "and dtype. Give batches of one shape, or pad the rows"
        )
    leaves = zip(*map(trees.leaves, parts), strict=True)
    joined = (np.concatenate(arrays) for arrays in leaves)
    whole = iter([rows if back is None else rows[back] for rows in joined])
    return trees.map_leaves(lambda _: next(whole), parts[0])


def kind_of(rows: Batch) -> tuple[Any, ...]:
    """Returns shapes and dtypes of single rows, for which programs are compiled.

    Example:
        >>> kind_of((np.zeros((4, 7), "f4"), np.zeros(4, "i4")))
        (((7,), 'float32'), ((), 'int32'))
    """
    return tuple((leaf.shape[1:], str(leaf.dtype)) for leaf in trees.leaves(rows))
