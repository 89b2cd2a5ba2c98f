"""Streams in shards: parts of the data that are read forwards from their start.

This file decides the argument of `dataset_fn(shard)`, how rows are found in a stream
of batches, and how many rows a shard has. A shard is a chunk: a worker that
has rows of it opens its stream and reads forward to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from shoal.data import trees
from shoal.data.batches import Packing, bytes_per_row
from shoal.data.chunks import ArrayChunk, Chunk, ChunkedSource, Mixing, Offsets
from shoal.data.draws import SEED
from shoal.data.order import shares
from shoal.data.sources import Batch
from shoal.data.tensors import is_a
from shoal.data.travelling import check_travels
from shoal.data.unended import Unended
from shoal.errors import ConfigError, DataError, a_kind

SHARDS_PER_WORKER = 4
"""Enough shards that fast workers take over from slow ones, few enough to open."""


@final
@dataclass(frozen=True, kw_only=True)
class Shard:
    """One part of a stream: the argument of a user's `dataset_fn`.

    Every sample must be in exactly one shard. With `tf.data` that is
    `dataset.shard(shard.count, shard.index)`, before anything is shuffled.

    Args:
        index: Number of the part, at least 0: 0 to `count` - 1.
        count: Number of parts, at least 1; the same for the whole run.
        seed: Seed for shuffling; the same for the whole run and all shards.
        epoch: Number of the epoch, at least 0, for data that differs between epochs.

    Example:
        >>> shard = Shard(index=1, count=3, seed=0, epoch=0)
        >>> shard.of(range(8))
        range(1, 8, 3)
    """

    index: int
    count: int
    seed: int
    epoch: int

    def of(self, items: Any) -> Any:
        """Returns every `count`-th item of a sequence, such as a list of files."""
        return items[self.index :: self.count]


_END = object()

DatasetFn: TypeAlias = Callable[[Shard], Any]
"""Makes the stream of a shard: any iterable of batches."""


@final
class ShardedSource(ChunkedSource):
    """A stream in shards, which workers open by themselves.

    Choose it for pipelines, such as `tf.data`, that give no row by its number. When
    a worker dies in a shard, another one opens the shard again and reads forward to the
    rows that are left. A stream with another order in each reading then yields some
    samples twice and others never: it is read at least once, not exactly once.

    Args:
        dataset_fn: Makes the stream of a shard, in a worker; pickled for it.
        shards: Number of shards, at least 1.
        packing: How batches are made into chunks.
        rows: Rows of all shards together, or of each; default None means that each
            shard is read once, before training, to count them.
        steps_per_epoch: Batches of an epoch, at least 1, of all shards together, in
            place of `rows`, for streams without an end or longer than an epoch.
        seed: Seed, passed on to `dataset_fn`.

    Raises:
        ConfigError: `rows` does not fit `shards`.
        DataError: A stream cannot be made, pickled or read, or is empty.

    Example:
        >>> def dataset_fn(shard):
        ...     for n in shard.of(range(6)):
        ...         yield np.full((2, 1), n)
        >>> packing = Packing(kind="dataset_fn", floatx="float32")
        >>> source = ShardedSource(dataset_fn, shards=2, packing=packing)
        >>> source.chunk_rows, source.take(np.array([11, 1, 2])).tolist()
        ((6, 6), [[5], [0], [2]])
    """

    mixing: Mixing = "chunks"
    is_exactly_once: bool = False

    def __init__(
        self,
        dataset_fn: DatasetFn,
        *,
        shards: int,
        packing: Packing,
        rows: int | Sequence[int] | None = None,
        steps_per_epoch: int | None = None,
        seed: int = SEED,
    ) -> None:
        check_travels(
            dataset_fn,
            packing.kind,
            packing.where,
            "Make what cannot be pickled inside of the function.",
        )
        self.kind, self._packing = packing.kind, packing
        self._dataset_fn, self._count, self._seed = dataset_fn, shards, seed
        first = self._first_batch()
        self.batch_size = len(trees.leaves(first.rows)[0])
        self._bytes_per_row = bytes_per_row(first)
        if rows is None and steps_per_epoch is not None:
            rows = steps_per_epoch * self.batch_size
        if rows is None:
            self._chunk_rows = tuple(self._counted(n) for n in range(shards))
        elif isinstance(rows, int):
            self._chunk_rows = tuple(shares(rows, shards))
        else:
            self._chunk_rows = tuple(rows)
        if len(self._chunk_rows) != shards or min(self._chunk_rows) < 1:
            raise ConfigError(
                f"rows of the shards are {self._chunk_rows} for shards={shards} "
                f"({packing.kind}, {packing.where}). "
                "Expected at least one row in each. Pass fewer shards."
            )

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Rows of each shard."""
        return self._chunk_rows

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all shards, estimated from the first batch."""
        return int(len(self) * self._bytes_per_row)

    def read(self, chunk: int, epoch: int) -> Chunk:
        """Opens a shard.

        Raises:
            DataError: The user's function failed, or returned no stream.
        """
        name = f"shard {chunk} of {self._count}"
        return _StreamChunk(
            lambda: self._open(chunk, epoch),
            self._packing,
            name,
            rows=self._chunk_rows[chunk],
            size_bytes=int(self._bytes_per_row * (self.batch_size or 1)),
        )

    def _open(self, index: int, epoch: int) -> Iterator[Any]:
        shard = Shard(index=index, count=self._count, seed=self._seed, epoch=epoch)
        self._check_call(shard)
        made = self._dataset_fn(shard)
        try:
            # A plain Dataset of torch yields samples, which look like small batches.
            if is_a(made, "torch", "Dataset"):
                raise TypeError
            return iter(made)
        except TypeError:
            raise DataError(
                f"The {self.kind} gave {a_kind(made)} for {shard} "
                f"({self._packing.where}), which gives no batches. "
                "Expected a tf.data.Dataset, a DataLoader, a generator or the like. "
                "Wrap a Dataset of torch in a DataLoader; return what gives batches."
            ) from None

    def _check_call(self, shard: Shard) -> None:
        try:
            inspect.signature(self._dataset_fn).bind(shard)
        except TypeError as error:
            raise DataError(
                f"The {self.kind} cannot be called with a shard "
                f"({self._packing.where}): {error}. Expected a function of one "
                "argument, dataset_fn(shard); shard.index and shard.count say which "
                "part to read. Give it that argument."
            ) from None
        except ValueError:  # its signature is unknown
            return

    def _first_batch(self) -> ArrayChunk:
        for batch in self._open(0, 0):
            return self._packing.chunk(batch, "batch 0 of shard 0")
        raise self._empty(0)

    def _counted(self, index: int) -> int:
        """Counts the rows of a shard by reading all of it."""
        name = f"batch of shard {index}"
        unended = Unended(self._packing, f"shard {index} of {self._count}: ")
        batches = unended.of(self._open(index, 0))
        found = sum(self._packing.rows_of(batch, name) for batch in batches)
        if not found:
            raise self._empty(index)
        return found

    def _empty(self, index: int) -> DataError:
        return DataError(
            f"Shard {index} of {self._count} of the {self.kind} is empty "
            f"({self._packing.where}). Expected at least one batch in each. "
            "Pass fewer shards, or check what the function gives for this one."
        )


@final
class _StreamChunk:
    """The rows of a shard; reads forward, and from the start again when it must.

    Args:
        open_stream: Opens the stream.
        packing: How batches are made into arrays.
        name: Name of the shard, for messages.
        rows: Number of rows that were counted.
        size_bytes: Bytes of a batch, which is held in memory.
    """

    def __init__(
        self,
        open_stream: Callable[[], Iterator[Any]],
        packing: Packing,
        name: str,
        *,
        rows: int,
        size_bytes: int,
    ) -> None:
        self._size_bytes = size_bytes
        self._open_stream, self._packing = open_stream, packing
        self._name, self._rows = name, rows
        self._stream: Iterator[Any] | None = None
        self._held: Batch = None
        self._start = self._stop = 0  # rows in memory

    @property
    def size_bytes(self) -> int:
        """Returns the bytes held in memory: one batch."""
        return self._size_bytes

    def take(self, offsets: Offsets) -> Batch:
        """Returns rows by their offsets; reads on to the last of them.

        Raises:
            DataError: The stream ended before that row.
        """
        order = np.argsort(offsets, kind="stable")
        wanted = offsets[order]
        parts: list[Batch] = []
        done = 0
        while done < len(wanted) or not parts:
            place = int(wanted[done]) if len(wanted) else 0
            self._seek(place)
            until = int(np.searchsorted(wanted, self._stop))
            here = wanted[done:until] - self._start
            parts.append(trees.map_leaves(lambda a, at=here: a[at], self._held))
            done = until
        back = np.argsort(order, kind="stable")
        leaves = zip(*map(trees.leaves, parts), strict=True)
        whole = iter([np.concatenate(arrays)[back] for arrays in leaves])
        return trees.map_leaves(lambda _: next(whole), parts[0])

    def _seek(self, place: int) -> None:
        """Reads on to the batch with a row, and holds it."""
        if self._stream is None or place < self._start:
            self._stream, self._start, self._stop = self._open_stream(), 0, 0
        while place >= self._stop:
            batch = next(self._stream, _END)
            if batch is _END:
                raise DataError(
                    f"The {self._name} of the {self._packing.kind} ended after "
                    f"{self._stop:,} rows ({self._packing.where}). "
                    f"Expected {self._rows:,} rows, as counted before training. "
                    f"Pass fewer {self._packing.steps_name} or rows, or check that a "
                    "shard has as many rows whenever it is read."
                )
            self._start = self._stop
            name = f"batch from row {self._start:,} of {self._name}"
            if place < self._start + (rows := self._packing.rows_of(batch, name)):
                self._held = self._packing.chunk(batch, name).rows
            self._stop += rows
