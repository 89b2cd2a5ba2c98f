"""Parquet: a row group is a part; only the columns asked for are read.

A row group cannot be read in pieces without decoding it from its start, so the
writer of the file decides its size: `row_group_size=` of pandas and pyarrow. Groups
of 16 to 64 MB mix well and keep a worker's memory small.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.data.files.format import (
    Columns,
    Format,
    Part,
    check_columns,
    text_column,
    type_name,
)
from shoal.data.files.libraries import library
from shoal.data.files.refusals import reading
from shoal.data.files.store import FileEntry, Store
from shoal.errors import DataError


@final
@dataclass(frozen=True, kw_only=True)
class Parquet(Format):
    """Reads Parquet files; lists of one length become rows of an array.

    Empty cells of float columns are NaN; in columns of whole numbers they are an error.

    Example:
        >>> Parquet().one
        'Parquet file'
    """

    kind = "Parquet files"
    extensions = (".parquet", ".pq", ".parq")

    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Reads the footer."""
        with _opened(file, store) as table:
            return tuple(table.schema_arrow.names)

    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Reads the footer alone; damaged data is found when it is read."""
        with _opened(file, store) as table:
            schema = table.schema_arrow
            check_columns(file, columns, schema.names)
            types = tuple(
                (name, column_type(schema.field(name), file)) for name in columns
            )
            groups = [
                table.metadata.row_group(i).num_rows
                for i in range(table.metadata.num_row_groups)
            ]
        return tuple(
            Part(file=file, rows=rows, start=i, stop=i + 1, types=types)
            for i, rows in enumerate(groups)
            if rows
        )

    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Reads one row group."""
        # Arrow keeps memory that it has freed: here, that of the last chunk's columns.
        library("pyarrow", "Parquet files").default_memory_pool().release_unused()
        with _opened(part.file, store) as table:
            group = table.read_row_group(part.start, columns=list(columns))
            return {name: dense(group[name], name, part.file) for name in columns}


@contextmanager
def _opened(file: FileEntry, store: Store) -> Generator[Any]:
    parquet = library("pyarrow.parquet", "Parquet files")
    with (
        reading(file.url, "Parquet file"),
        store.open(file) as stream,
        # Ranges that are close to each other are fetched together.
        parquet.ParquetFile(stream, pre_buffer=True) as table,
    ):
        yield table


def column_type(field: Any, file: FileEntry) -> str:
    """Returns the dtype name of a field; refuses types that no model takes."""
    types = library("pyarrow", "Parquet files").types
    kind, lists = field.type, ""
    while True:
        if hasattr(kind, "storage_type"):
            kind = kind.storage_type
        elif types.is_dictionary(kind):
            kind = kind.value_type
        elif _is_list(types, kind):
            kind, lists = kind.value_type, lists + " of a list"
        else:
            break
    if types.is_floating(kind) or types.is_decimal(kind):
        return "float" + lists
    if types.is_integer(kind) or types.is_boolean(kind):
        return type_name(np.dtype(kind.to_pandas_dtype())) + lists
    is_text = "string" in str(kind) or "binary" in str(kind)
    what = "text" if is_text else "dates or times" if types.is_temporal(kind) else ""
    raise text_column(file, field.name, f"{what} ({kind})".strip())


def _is_list(types: Any, kind: Any) -> bool:
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def dense(column: Any, name: str, file: FileEntry) -> npt.NDArray[Any]:
    """Turns a column of Arrow into an array; lists must have one length.

    Raises:
        DataError: Cells are empty in a column of whole numbers, or lists differ in
            length.
    """
    arrow = library("pyarrow", "Parquet files")
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if isinstance(array, arrow.ChunkedArray):  # with no chunks at all
        array = arrow.concat_arrays(array.chunks or [arrow.array([], array.type)])
    kind = array.type
    if hasattr(kind, "storage_type"):
        shape: tuple[int, ...] = tuple(getattr(kind, "shape", ()))
        flat = dense(array.storage, name, file)
        return flat.reshape(len(flat), *shape) if shape else flat
    if arrow.types.is_dictionary(kind):
        array = array.cast(kind.value_type)
    elif arrow.types.is_decimal(kind):
        array = array.cast(arrow.float64())
    elif _is_list(arrow.types, kind):
        return _lists(array, name, file)
    if array.null_count and not arrow.types.is_floating(array.type):
        raise DataError(
            f"column {name!r} of {file.url} ({array.type}) has {array.null_count:,} "
            "empty cells. Expected a number in every cell of a column of whole "
            "numbers. Fill them, or store the column as floats, where empty is NaN."
        )
    return array.to_numpy(zero_copy_only=False)


def _lists(array: Any, name: str, file: FileEntry) -> npt.NDArray[Any]:
    compute = library("pyarrow.compute", "Parquet files")
    lengths = compute.unique(compute.list_value_length(array)).to_pylist()
    if len(lengths) > 1 or None in lengths:
        shown = ", ".join(map(str, sorted(lengths, key=str)[:5]))
        raise DataError(
            f"lists in column {name!r} of {file.url} differ in length: {shown}. "
            "Expected lists of one length in all rows. Pad them "
            "(keras.utils.pad_sequences), or turn them into arrays in preprocess=."
        )
    inner = dense(array.flatten(), name, file)
    width = lengths[0] if lengths else 0
    return inner.reshape(len(array), width, *inner.shape[1:])
