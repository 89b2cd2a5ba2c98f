"""Batches of another library: their conversion to rows as Keras packs them.

This file decides which forms a batch may have (x, `(x,)`, `(x, y)` or
`(x, y, sample_weight)`, in any nesting), how many rows it has, and the errors about
others. It recognises tensors by names alone, so that no library is imported needlessly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np

from shoal.data import trees
from shoal.data.arrays import FIT, Array, Column, check_lengths, named_columns
from shoal.data.chunks import ArrayChunk
from shoal.data.tensors import as_arrays
from shoal.errors import DataError

STEPS = "steps_per_epoch"
PARTS = ("x", "y", "sample_weight")


def _copy(column: Column) -> Array:
    return np.array(column.take(slice(None)))


@final
@dataclass(frozen=True, kw_only=True)
class Packing:
    """Settings that make chunks of batches of one kind of data. Small, to be pickled.

    Args:
        kind: The user's name for the data: "torch DataLoader".
        floatx: Dtype that floats are trained in.
        where: The origin of the data, for messages.
        steps_name: Name of the argument with the number of batches of a pass.

    Example:
        >>> packing = Packing(kind="list", floatx="float32")
        >>> packing.chunk([np.ones((2, 1)), np.arange(2)], "batch 0").rows[1]
        array([0, 1])
    """

    kind: str
    floatx: str
    where: str = FIT
    steps_name: str = STEPS

    def chunk(self, batch: Any, name: str, rows: int | None = None) -> ArrayChunk:
        """Makes a chunk of one batch; the chunk shares no memory with the batch.

        Args:
            batch: Batch from the data.
            name: Which batch, for messages: "batch 7".
            rows: Number of rows it must have; default None means any number.

        Raises:
            DataError: It is not a batch, its arrays differ in length, or its
                number of rows is wrong.
        """
        packed = self.parts(batch, name)
        where = f"{name} of the {self.kind}, {self.where}"
        columns = [
            named_columns(part, what, self.floatx, where)
            for part, what in zip(packed, PARTS, strict=False)
        ]
        named = [
            pair
            for column, what in zip(columns, PARTS, strict=False)
            for pair in trees.named_leaves(column, what)
        ]
        if not named:
            raise self._empty(name)
        found = check_lengths(named, where)
        if rows is not None and rows != found:
            raise self.odd_size(name, found, rows)
        arrays = tuple(trees.map_leaves(_copy, column) for column in columns)
        is_bare = len(arrays) == 1 and not isinstance(batch, (list, tuple))
        return ArrayChunk(arrays[0] if is_bare else arrays)

    def parts(self, batch: Any, name: str) -> tuple[Any, ...]:
        """Splits a batch into inputs, targets and weights, as tensors NumPy can read.

        Raises:
            DataError: It has more parts than Keras knows.
        """
        if not isinstance(batch, (list, tuple)):
            return (as_arrays(batch),)
        parts = tuple(cast("tuple[Any, ...]", batch))
        if not 1 <= len(parts) <= len(PARTS):
            raise DataError(
                f"{name} of the {self.kind} has {len(parts)} parts ({self.where}). "
                "Expected x, (x,), (x, y) or (x, y, sample_weight). "
                "Put several inputs or outputs into one list or dict."
            )
        return tuple(as_arrays(part) for part in parts)

    def rows_of(self, batch: Any, name: str) -> int:
        """Counts the rows of a batch without converting it.

        Raises:
            DataError: It has no rows.
        """
        for leaf in trees.leaves(batch):
            shape = getattr(leaf, "shape", None)
            found = int(shape[0]) if shape is not None and len(shape) else 0
            if found:
                return found
            return len(trees.leaves(self.chunk(batch, name).rows)[0])
        raise self._empty(name)

    def _empty(self, name: str) -> DataError:
        return DataError(
            f"{name} of the {self.kind} has no arrays ({self.where}). "
            "Expected at least one array of inputs. Have it give (x, y)."
        )

    def odd_size(self, name: str, found: int, expected: int) -> DataError:
        """Returns the error about a batch of an unexpected size."""
        return DataError(
            f"{name} of the {self.kind} has {found:,} rows ({self.where}). "
            f"Expected {expected:,}, because sizes are settled before training, so "
            "that every sample is counted once. "
            "Give batches of one size; only the last one of a pass may be smaller."
        )


def bytes_per_row(chunk: ArrayChunk) -> float:
    """Returns the memory of a row, estimated from one chunk.

    Example:
        >>> bytes_per_row(ArrayChunk((np.ones((4, 2), "f4"), np.ones(4, "f4"))))
        12.0
    """
    return chunk.size_bytes / len(trees.leaves(chunk.rows)[0])
