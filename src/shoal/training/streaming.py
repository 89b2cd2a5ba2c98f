"""Rows that do not fit in memory, in the form of Keras' `evaluate` and `predict`.

A chunked source is read forwards, batch by batch; few chunks are open at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate
from typing import Any

from shoal.data.chunks import ChunkedSource
from shoal.data.read_ahead import AHEAD, ReadAhead
from shoal.data.sources import Batch, Source


def take_forwards(source: Source, start: int, stop: int) -> Batch:
    """Returns rows `start` to `stop`; the next chunks are read meanwhile."""
    if isinstance(source, ReadAhead):
        source.expect(0, source.starts_from(stop)[:AHEAD])
    return source.take(slice(start, stop))


def edges(source: Source, rows: int, batch_size: int) -> list[int]:
    """Returns the starts of batches, and the end of the last one.

    Args:
        source: Source of the rows. Its own batches stay unchanged.
        rows: Number of rows, from the first.
        batch_size: Rows of each batch except perhaps the last, if it has no own ones.
    """
    if isinstance(source, ChunkedSource) and source.are_batches:
        ends = accumulate(source.chunk_rows)
        return [0, *(end for end in ends if end < rows), rows]
    return [*range(0, rows, batch_size), rows]


def rows_of_steps(source: Source, steps: int | None, batch_size: int) -> int:
    """Counts the rows of so many batches, None for all."""
    if steps is None:
        return len(source)
    if isinstance(source, ChunkedSource) and source.are_batches:
        return sum(source.chunk_rows[:steps])
    return min(len(source), steps * batch_size)


@contextmanager
def batches(
    source: ChunkedSource, rows: int, batch_size: int, *, is_input: bool = False
) -> Generator[Any]:
    """Opens a source as a `keras.utils.PyDataset`; yields it.

    Args:
        source: Source of the rows.
        rows: Number of rows, from the first.
        batch_size: Rows of each batch except perhaps the last.
        is_input: Whether to yield x alone, as for `model.predict`.
    """
    keras: Any = import_module("keras")
    # TensorFlow keeps what a dataset calls until the process ends: this list is what
    # stays, and not the rows.
    readers, bounds = [ReadAhead(source)], edges(source, rows, batch_size)

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(bounds) - 1

        def __getitem__(self, index: int) -> Batch:
            found = take_forwards(readers[0], bounds[index], bounds[index + 1])
            if is_input:
                return keras.utils.unpack_x_y_sample_weight(found)[0]
            return found if isinstance(found, tuple) else (found,)

    try:
        yield Batches()
    finally:
        readers.pop().close()
