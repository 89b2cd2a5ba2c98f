"""Sources of samples: rows are requested by number.

This file decides the contract between data and workers, and its first
implementation: arrays in memory, or mapped from another process's blob.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.arrays import FIT, Column, check_lengths, named_columns
from shoal.data.blob import Buffer, blob_size, read_blob, write_blob
from shoal.errors import DataError

Batch: TypeAlias = Any
"""Data as Keras' `train_step` takes it: x, `(x,)`, `(x, y)`, `(x, y, weight)`."""


class Source(ABC):
    """Samples by number. Subclass it for a new kind of indexed data.

    Sources are read by one thread at a time and know nothing of order: callers ask
    for row numbers.

    Example:
        >>> class Squares(Source):
        ...     def __len__(self):
        ...         return 100
        ...     def take(self, indices):
        ...         x = np.arange(100, dtype="float32")[indices]
        ...         return x[:, None], x**2
        ...     @property
        ...     def size_bytes(self):
        ...         return 800
        >>> Squares().take(np.array([3, 0]))[1]
        array([9., 0.], dtype=float32)
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns rows in the order of `indices`, packed as Keras packs them."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all samples."""

    def serving(self) -> AbstractContextManager[None]:
        """Context in the driver's process while workers read; mostly empty."""
        return nullcontext()

    def serving_many(self) -> AbstractContextManager[Source]:
        """Context in which several runs enter `serving` of what it yields."""
        return nullcontext(self)

    def close(self) -> None:
        """Releases threads and files; mostly nothing to do."""
        return


@final
class ArraySource(Source):
    """Arrays in memory, in any nesting that Keras takes.

    Choose it for data that fits one machine's memory; workers on that machine
    map one blob of it and hold no copy.

    Args:
        x: Array, or dict, list or tuple of arrays; rows first.
        y: Targets, in any nesting, or None.
        sample_weight: Weights, one array or nested as `y`, or None.
        floatx: Dtype in which floats are read; default None means Keras' floatx.
        where: Origin of the arrays, for messages.

    Raises:
        DataError: An array is missing, ragged, not numeric, or of another length.

    Example:
        >>> source = ArraySource([[1.0], [2.0], [3.0]] @ np.ones((1, 2)), np.arange(3))
        >>> x, y = source.take(np.array([2, 0]))
        >>> x.dtype, x[:, 0], y, len(source)
        (dtype('float32'), array([3., 1.], dtype=float32), array([2, 0]), 3)
    """

    def __init__(
        self,
        x: trees.Tree,
        y: trees.Tree = None,
        sample_weight: trees.Tree = None,
        *,
        floatx: str | None = None,
        where: str = FIT,
    ) -> None:
        kind = floatx or default_floatx()
        parts = {"x": x, "y": y, "sample_weight": sample_weight}
        if not trees.leaves(x):
            raise DataError(
                f"x is {x!r} ({where}). Expected at least one array of inputs. "
                "Pass the inputs of the model as x."
            )
        found = {n: named_columns(t, n, kind, where) for n, t in parts.items()}
        named = [n for name in found for n in trees.named_leaves(found[name], name)]
        self._rows = check_lengths(named, where)
        self._tree = _pack(found["x"], found["y"], found["sample_weight"])
        self._columns: list[Column] = trees.leaves(self._tree)

    @classmethod
    def from_blob(cls, blob: Buffer) -> ArraySource:
        """Maps what `write_blob` wrote, read-only and without a copy.

        The arrays keep `blob` alive; close a mapping only after the source is gone.

        Raises:
            DataError: The blob is truncated, or has another format.
        """
        source = cls.__new__(cls)
        source._tree = read_blob(blob)
        source._columns = trees.leaves(source._tree)
        source._rows = len(source._columns[0].values)
        return source

    def __len__(self) -> int:
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Bytes of all samples, as they are read."""
        return sum(column.size_bytes for column in self._columns)

    def take(
        self,
        indices: slice | npt.NDArray[np.integer[Any]],
        out: Batch | None = None,
    ) -> Batch:
        """Returns rows, packed as Keras packs them.

        Args:
            indices: Row numbers, or a slice, which costs no copy where dtypes allow.
            out: Result of an earlier `take` of as many rows, which is overwritten
                and returned; saves an allocation for each array.

        Raises:
            IndexError: A row is outside the data.
        """
        if out is None:
            return trees.map_leaves(lambda column: column.take(indices), self._tree)
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(self._rows))
        for column, target in zip(self._columns, trees.leaves(out), strict=True):
            column.take_into(indices, target)
        return out

    def blob_size(self) -> int:
        """Bytes that `write_blob` needs."""
        return blob_size(self._tree)

    def write_blob(self, out: Buffer) -> None:
        """Writes everything into a writable buffer of `blob_size` bytes or more.

        Casts and strides are resolved piece by piece: nothing is in memory
        twice. The buffer may be a mapped file.
        """
        write_blob(self._tree, out)

    def to_blob(self) -> bytearray:
        """Returns everything as one buffer; a copy, so for small data and tests."""
        blob = bytearray(self.blob_size())
        self.write_blob(blob)
        return blob


def _pack(x: trees.Tree, y: trees.Tree, sample_weight: trees.Tree) -> trees.Tree:
    """Packs like `keras.utils.pack_x_y_sample_weight`."""
    if y is None:
        return (x,) if isinstance(x, (list, tuple)) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def default_floatx() -> str:
    """Returns Keras' float type; read late, so that mapping a blob needs no Keras."""
    import keras

    return keras.config.floatx()
