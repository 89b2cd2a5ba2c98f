"""`class_weight` for data that comes in chunks: weights of rows from their classes."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
import numpy.typing as npt

from shoal.data.chunks import Chunk, ChunkedSource, Offsets
from shoal.data.sources import Batch, default_floatx
from shoal.data.weights import check_class_weight, class_weights


@final
class ClassWeighted(ChunkedSource):
    """Another source, whose rows have the weights of their classes.

    Args:
        source: Gives (x, y), y being one array of labels.
        class_weight: Class -> weight; classes not in it weigh 1.
        floatx: Dtype of the weights; default None means Keras' floatx.

    Raises:
        ConfigError: `class_weight` does not fit, or there are weights already.

    Example:
        >>> from shoal.data.adapting import source_of
        >>> from shoal.data.reading import Reading
        >>> batches = iter([(np.zeros((2, 1)), np.array([0, 2]))])
        >>> source = source_of(batches, reading=Reading(steps_per_epoch=1))
        >>> ClassWeighted(source, {2: 9.0}).take(slice(0, 2))[2]
        array([1., 9.], dtype=float32)
    """

    def __init__(
        self,
        source: ChunkedSource,
        class_weight: Mapping[int, float],
        floatx: str | None = None,
    ) -> None:
        self.kind, self.mixing = source.kind, source.mixing
        self.is_exactly_once = source.is_exactly_once
        self.batch_size, self.notes = source.batch_size, source.notes
        self.travels_alone = source.travels_alone
        self.differs_by_epoch = source.differs_by_epoch
        self.later_rows = source.later_rows
        self.are_batches = source.are_batches
        self._source: ChunkedSource = source
        self._weights = class_weight
        self._floatx = floatx or default_floatx()
        sample = source.take(np.zeros(1, np.int64))
        is_tuple = isinstance(sample, tuple)
        parts = cast("tuple[Any, ...]", sample) if is_tuple else (sample,)
        y = parts[1] if len(parts) > 1 else None
        check_class_weight(class_weight, y, has_sample_weight=len(parts) == 3)

    @property
    def inner(self) -> ChunkedSource:
        """The source whose rows are weighted."""
        return self._source

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Returns the chunk sizes of the other source."""
        return self._source.chunk_rows

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of the other source, and of the weights."""
        return self._source.size_bytes + len(self) * np.dtype(np.float32).itemsize

    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns rows of the other source with their weights."""
        x, y = self._source.take(indices)
        return x, y, class_weights(y, self._weights, self._floatx)

    def serving(self) -> AbstractContextManager[None]:
        """Returns the context of the other source."""
        return self._source.serving()

    @contextmanager
    def serving_many(self) -> Generator[ClassWeighted]:
        """Yields a copy over what the other source yields."""
        with self._source.serving_many() as source:
            found = copy.copy(self)
            found._source = cast("ChunkedSource", source)
            yield found

    def leave(self) -> None:
        """Has the other source leave what it has written."""
        self._source.leave()

    def reopen(self) -> None:
        """Has the other source take over what it has left."""
        self._source.reopen()

    def state_of(self, epoch: int) -> Mapping[str, str]:
        """Returns the state of the other source."""
        return self._source.state_of(epoch)

    def read(self, chunk: int, epoch: int) -> Chunk:
        """Opens a chunk of the other source."""
        found = self._source.read(chunk, epoch)
        return _WeightedChunk(found, self._weights, self._floatx)


@final
@dataclass(frozen=True)
class _WeightedChunk:
    """A chunk whose rows get weights when they are taken."""

    chunk: Chunk
    class_weight: Mapping[int, float]
    floatx: str

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of the chunk; weights are made when rows are taken."""
        return self.chunk.size_bytes

    def take(self, offsets: Offsets) -> Batch:
        """Returns rows with their weights."""
        x, y = self.chunk.take(offsets)
        return x, y, class_weights(y, self.class_weight, self.floatx)
