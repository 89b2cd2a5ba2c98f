"""Rows that do not fit in memory, as Keras' own `evaluate` and `predict` take them.

A source in chunks is read forwards, batch by batch; few chunks are open at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from shoal.data.chunks import ChunkedSource
from shoal.data.read_ahead import AHEAD, ReadAhead
from shoal.data.sources import Batch, Source


def take_forwards(source: Source, start: int, stop: int) -> Batch:
    """Returns rows `start` to `stop`; what follows is read meanwhile, in chunks."""
    if isinstance(source, ReadAhead):
        source.expect(0, source.starts_from(stop)[:AHEAD])
    return source.take(slice(start, stop))


@contextmanager
def batches(
    source: ChunkedSource, rows: int, batch_size: int, *, is_input: bool = False
) -> Generator[Any]:
    """Opens a source as a `keras.utils.PyDataset`; yields it.

    Args:
        source: Of the rows.
        rows: The first ones, so many.
        batch_size: Rows of each batch but perhaps the last.
        is_input: Give x alone, as for `model.predict`.
    """
    keras: Any = import_module("keras")
    reader = ReadAhead(source)

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return -(-rows // batch_size)

        def __getitem__(self, index: int) -> Batch:
            start = index * batch_size
            found = take_forwards(reader, start, min(rows, start + batch_size))
            if is_input:
                return keras.utils.unpack_x_y_sample_weight(found)[0]
            return found if isinstance(found, tuple) else (found,)

    try:
        yield Batches()
    finally:
        reader.close()
