"""Predictions of a task: Arrow arrays in, Arrow arrays out.

Rows are computed in batches. The last batch of an Arrow batch is filled up to a power
of two, so that a compiled model sees few sizes, however many rows a stream brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.data import trees
from shoal.data.files.selection import Selection
from shoal.data.frame_writing import fixed
from shoal.errors import DataError
from shoal.spark.sent_model import SentModel


@final
@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Function of a task that predicts.

    Args:
        model: The model.
        selection: Roles of the columns.
        outputs: Names of the model's outputs, in the order of Keras' `tree.flatten`.
        batch_size: Rows of a step.
    """

    model: SentModel
    selection: Selection
    outputs: tuple[str, ...]
    batch_size: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields a struct of lists, one for each output, for each batch of columns.

        Args:
            batches: Structs with the columns of the selection, in its order.
        """
        first = 0
        for batch in batches:
            yield self._predicted(batch, first)
            first += len(batch)

    def _predicted(self, batch: Any, first: int) -> Any:
        if not len(batch):
            lists = [pa.array([], pa.list_(pa.float64())) for _ in self.outputs]
        else:
            x = rows_of(batch, self.selection, first)
            lists = list(map(_lists, self._arrays(x)))
        if len(lists) != len(self.outputs):
            raise DataError(
                f"the model has {len(lists)} outputs for {len(self.outputs)} columns "
                f"({', '.join(self.outputs)}). Expected a column for each. Pass their "
                "names as a list."
            )
        names = [f"o{number}" for number in range(len(lists))]
        return pa.StructArray.from_arrays(lists, names=names)

    def _arrays(self, x: Any) -> list[npt.NDArray[Any]]:
        model = self.model.open()
        try:
            return predict_rows(model, x, self.batch_size)
        except Exception:  # the backend's, which says little of columns
            import_module("shoal.models.inspection").check_inputs(model, x)
            raise

    def of_frames(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Does the same for frames of pandas, which PySpark before 4.1 gives.

        Args:
            batches: Frames with the columns of the selection, and for each whether it
                has a null in a row: pandas shows nulls as NaN.
        """
        pandas = import_module("pandas")
        for found in self(map(_struct_of, batches)):
            columns = zip(found.type, found.flatten(), strict=True)
            yield pandas.DataFrame(
                {f.name: list(c.to_numpy(False)) for f, c in columns}
            )


def _struct_of(frame: Any) -> Any:
    """Makes a struct of the first columns; the others tell where those have nulls."""
    columns = [frame[name] for name in frame]
    half = len(columns) // 2
    arrays = [
        pa.array(values, mask=is_null.to_numpy(bool), from_pandas=False)
        for values, is_null in zip(columns[:half], columns[half:], strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, names=list(frame)[:half])


@final
@dataclass(frozen=True)
class _Rows:
    """Rows of a column, for messages."""

    name: str
    first: int

    def row(self, offset: int) -> str:
        return f"row {self.first + offset:,} of a partition"


def rows_of(batch: Any, selection: Selection, first: int = 0) -> Any:
    """Packs columns as Keras packs x, y and sample_weight.

    Args:
        batch: Struct array with the columns of the selection, in its order.
        selection: Roles of the columns.
        first: Number of the first row, for messages.

    Raises:
        DataError: A cell is null, or lists differ in length.

    Example:
        >>> chosen = Selection(x="a", y=None, weight=None, floatx="float32")
        >>> rows_of(pa.array([{"c0": [1.0, 2.0]}, {"c0": [3.0, 4.0]}]), chosen)
        array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    names = selection.columns
    columns = dict(zip(names, batch.flatten(), strict=True))
    return selection.pack(
        {name: _array(columns[name], _Rows(name, first)) for name in names}
    )


def _array(column: Any, place: _Rows) -> npt.NDArray[Any]:
    nested, flat = fixed(column, place)
    shape = [len(column)]
    kind = nested.type
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return flat.to_numpy(zero_copy_only=False).reshape(shape)


def predict_rows(model: Any, x: Any, batch_size: int) -> list[npt.NDArray[Any]]:
    """Returns predictions of rows, an array for each output.

    Args:
        model: A Keras model.
        x: Rows of its inputs.
        batch_size: Rows of a step; a model with a fixed batch size has its own.
    """
    keras = import_module("keras")
    if type(model).predict is not keras.Model.predict:  # a method of the user's
        found = model.predict(x, batch_size=batch_size, verbose=0)
        return [np.asarray(leaf) for leaf in keras.tree.flatten(found)]
    fixed_rows = import_module("shoal.models.fixed_batch").fixed_batch(model)
    size = fixed_rows or batch_size
    rows = len(trees.leaves(x)[0])
    parts: list[list[npt.NDArray[Any]]] = []
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        whole = fixed_rows or filled_size(stop - start, size)
        step = trees.map_leaves(lambda a: _filled(a[start:stop], whole), x)  # noqa: B023
        found = keras.tree.flatten(model.predict_on_batch(step))
        parts.append([np.asarray(leaf)[: stop - start] for leaf in found])
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def filled_size(rows: int, size: int) -> int:
    """Returns the rows of a batch to which fewer rows are filled up.

    Example:
        >>> [filled_size(rows, 100) for rows in (1, 3, 64, 65, 100)]
        [1, 4, 64, 100, 100]
    """
    return min(size, 1 << (rows - 1).bit_length())


def _filled(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    missing = size - len(array)
    return np.concatenate([array, array[-1:].repeat(missing, 0)]) if missing else array


def _lists(array: npt.NDArray[Any]) -> Any:
    """Makes a list of doubles of each row, flat."""
    values = np.ascontiguousarray(array, np.float64).reshape(len(array), -1)
    ends = np.arange(0, values.size + 1, max(1, values.shape[1]), dtype=np.int32)
    return pa.ListArray.from_arrays(ends, values.reshape(-1))
