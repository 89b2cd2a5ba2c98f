"""Arrays: conversion to NumPy, and the checks before training.

This file decides which arrays are accepted, in which dtype they are trained on (as
in Keras' own array adapter), and the errors about others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.streams import refuse_streams
from shoal.data.tensors import host_array, is_a
from shoal.errors import DataError, a_kind

Array: TypeAlias = npt.NDArray[Any]

FIT = "data of fit"
"""Default origin of arrays, for messages."""


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """One array of samples, rows first, and the dtype in which it is read.

    The cast happens as rows are read, so that float64 data is never held twice.

    Args:
        values: Rows first, any strides.
        dtype: Dtype that `take` returns.

    Example:
        >>> column = Column(values=np.array([1.0, 2.0]), dtype=np.dtype("f4"))
        >>> column.take(slice(0, 1)), column.size_bytes
        (array([1.], dtype=float32), 8)
    """

    values: Array
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of the whole array in the dtype of `take`."""
        return self.values.size * self.dtype.itemsize

    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Array:
        """Returns rows; a view for a slice that needs no cast."""
        if isinstance(indices, slice):
            return self.values[indices].astype(self.dtype, copy=False)
        return self.values.take(indices, axis=0).astype(self.dtype, copy=False)

    def take_into(self, indices: npt.NDArray[np.integer[Any]], out: Array) -> None:
        """Writes rows into `out`, without a temporary where no cast is needed."""
        if self.dtype != self.values.dtype:
            out[...] = self.values.take(indices, axis=0)
            return
        if len(indices) and not (
            0 <= int(indices.min()) <= int(indices.max()) < len(self.values)
        ):
            raise IndexError(f"rows outside 0 to {len(self.values) - 1}")
        # "raise" would write to a buffer first, so that a bad index leaves `out` as
        # it was (numpy.take); checked above instead.
        self.values.take(indices, axis=0, out=out, mode="clip")


def column(value: Any, *, name: str, floatx: str, where: str = FIT) -> Column:
    """Checks an array of the user's and decides its dtype.

    Args:
        value: NumPy, JAX, pandas, or anything with `__array__`.
        name: The user's name for it, for messages: "x['age']".
        floatx: Dtype that floats are trained in, as `keras.config.floatx()`.
        where: Its origin, for messages.

    Raises:
        DataError: It is not an array, has no rows axis, is ragged or not numeric.
    """
    array = _to_numpy(value, name, floatx, where)
    if array.ndim == 0:
        raise DataError(
            f"{name} is a single value of dtype {array.dtype} ({where}). "
            "Expected an array with samples along its first axis. "
            f"Pass {name} as an array of shape (samples, ...)."
        )
    if _is_float(array.dtype):
        return Column(values=array, dtype=dtype_of(floatx))
    if array.dtype.kind not in "biuc":
        raise _not_numeric(array, name, where)
    return Column(values=array, dtype=array.dtype)


def _to_numpy(value: Any, name: str, floatx: str, where: str) -> Array:
    """Converts anything array-like to NumPy, with the shape that Keras uses."""
    if isinstance(value, np.ndarray):
        return value
    # Found by name, so that pandas is not imported for users without it.
    kind = {
        c.__name__ for c in type(value).__mro__ if c.__module__.startswith("pandas")
    }
    if "DataFrame" in kind:
        is_mixed = any(getattr(d, "kind", "O") == "f" for d in value.dtypes)
        try:
            return (value.astype(floatx) if is_mixed else value).to_numpy()
        except (TypeError, ValueError) as error:
            raise _no_numbers(value, name, where, error) from error
    if "Series" in kind:
        return np.expand_dims(value.to_numpy(), axis=-1)
    if is_a(value, "torch", "Tensor"):
        return host_array(value)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    refuse_streams(value, name, where)
    raise DataError(
        f"{name} is {a_kind(value)} ({where}). Expected arrays: NumPy, "
        "JAX, pandas, or nested dicts, lists and tuples of them. "
        f"Convert it, for example with np.asarray({name.split('[')[0]})."
    )


def _no_numbers(table: Any, name: str, where: str, error: Exception) -> DataError:
    """Returns the error about a table of pandas with text in it."""
    kinds = table.dtypes if table.ndim > 1 else {name: table.dtype}
    odd = [str(key) for key, kind in kinds.items() if not _is_numeric(kind)]
    return DataError(
        f"{name} is a table whose columns are not all numbers ({where}): "
        f"{', '.join(map(repr, odd[:5])) or error}. Expected numbers or bools. Encode "
        "such a column before training (astype('category').cat.codes, or a layer as "
        "keras.layers.StringLookup on an input of its own), or leave it out."
    )


def _is_numeric(kind: Any) -> bool:
    return getattr(kind, "kind", "O") in "biuf"


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the dtype of a name, "bfloat16" included.

    Example:
        >>> dtype_of("bfloat16").itemsize, dtype_of("int32").itemsize
        (2, 4)
    """
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes  # Keras needs it too; NumPy does not know these names

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a float, also bfloat16, which NumPy knows as bytes."""
    return dtype.kind == "f" or dtype.name.startswith(("float", "bfloat"))


def _not_numeric(array: Array, name: str, where: str) -> DataError:
    """Returns the error about text, dates, missing values or ragged rows."""
    found, advice = _kind_of_entries(array)
    return DataError(
        f"{name} has {found}, dtype {array.dtype} ({where}). Expected numbers or "
        f"bools in rows of one shape. {advice}"
    )


def _kind_of_entries(array: Array) -> tuple[str, str]:
    """Returns the kind of the entries that are not numbers, and the remedy."""
    text = (
        "Encode it before training: for classes np.unique(..., return_inverse=True)[1] "
        "or .astype('category').cat.codes of pandas, for words the output of a "
        "keras.layers.StringLookup or TextVectorization that is called here, before "
        "fit. Workers take numbers only, also where the model begins with such a layer."
    )
    dates = (
        "Turn dates into numbers: .astype('datetime64[s]').astype('int64') gives "
        "seconds; or take parts such as month and weekday."
    )
    if array.dtype.kind in "UST" or array.dtype.name.startswith("StringDType"):
        return "text", text
    if array.dtype.kind in "mM":
        return "dates or times", dates
    entries = array.reshape(-1)[:1000].tolist()
    if any(isinstance(entry, (str, bytes)) for entry in entries):
        holes = " Fill missing values as well." if None in entries else ""
        return "text", text + holes
    if any(hasattr(entry, "isoformat") for entry in entries):
        return "dates or times", dates
    if any(hasattr(entry, "__len__") for entry in entries):
        return (
            "rows of different lengths",
            "Pad the rows to one length (keras.utils.pad_sequences), or give a "
            "PyDataset whose batches are padded.",
        )
    if any(entry is None for entry in entries):
        return (
            "missing values (None)",
            "Fill them in, or pass .astype('float32'), which makes them NaN.",
        )
    return "objects", "Convert it with .astype('float32')."


def check_lengths(named: list[tuple[str, Column]], where: str = FIT) -> int:
    """Returns the one number of samples all arrays have.

    Raises:
        DataError: They differ, or there are none.
    """
    first, head = named[0]
    rows = len(head.values)
    for name, column_ in named[1:]:
        if len(column_.values) != rows:
            raise DataError(
                f"{name} has {len(column_.values):,} rows but {first} has {rows:,} "
                f"({where}). Expected one row for each sample in every array. "
                f"Cut or complete {name}."
            )
    if rows == 0:
        raise DataError(
            f"{first} has no samples ({where}). Expected at least one row. "
            "Check how the data was loaded or filtered."
        )
    return rows


def named_columns(
    tree: trees.Tree, name: str, floatx: str, where: str = FIT
) -> trees.Tree:
    """Turns every leaf of a tree into a `Column`."""
    paths = iter(trees.named_leaves(tree, name))
    # Both walks have the same order, so that names and leaves match.
    return trees.map_leaves(
        lambda leaf: column(leaf, name=next(paths)[0], floatx=floatx, where=where),
        tree,
    )
