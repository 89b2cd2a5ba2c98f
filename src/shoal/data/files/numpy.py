"""NumPy's own files: .npy in ranges of rows; .npz whole, with keys as columns."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shoal.data.files.format import (
    PART_BYTES,
    Columns,
    Format,
    Part,
    check_columns,
    rows_of,
    text_column,
    type_name,
)
from shoal.data.files.refusals import reading
from shoal.data.files.store import FileEntry, Store
from shoal.errors import DataError

HEADER_BYTES = 1 << 16
"""Bytes in which the header of an array, or of an archive, is looked for."""


@final
@dataclass(frozen=True, kw_only=True)
class Npy(Format):
    """Reads .npy files: one array, called "x", or the fields of a structured one.

    Args:
        part_bytes: Size above which arrays are cut into ranges of rows.

    Example:
        >>> Npy().features
        'x'
    """

    kind = "NumPy files"
    extensions = (".npy",)
    features = "x"
    needs_label = False

    part_bytes: int = PART_BYTES

    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Reads the header."""
        with reading(file.url, "NumPy file"):
            return _fields(_header(file, store)[1])

    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Reads the header."""
        with reading(file.url, "NumPy file"):
            shape, dtype, is_fortran, start = _header(file, store)
        check_columns(file, columns, _fields(dtype))
        fields = {name: _field(dtype, name) for name in columns}
        types = _types(file, fields, dict.fromkeys(columns, shape))
        rows = rows_of(file, {"x": shape})
        row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        if file.size_bytes < start + rows * row_bytes:
            raise DataError(
                f"{file.url} is cut short: {file.size_bytes:,} bytes, where its header "
                f"promises {start + rows * row_bytes:,}. Expected a whole NumPy file. "
                "Write it again, or pass on_bad_file='skip'."
            )
        if is_fortran and len(shape) > 1:  # rows are not contiguous
            return (Part(file=file, rows=rows, types=types),) if rows else ()
        step = max(1, self.part_bytes // max(1, row_bytes))
        return tuple(
            Part(file=file, rows=stop - i, start=i, stop=stop, types=types)
            for i in range(0, rows, step)
            for stop in [min(rows, i + step)]
        )

    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Reads a range of rows; also the header again, for their type."""
        with reading(part.file.url, "NumPy file"):
            if part.stop is None:
                whole = io.BytesIO(store.read(part.file))
                array = np.load(whole, allow_pickle=False)
            else:
                shape, dtype, _, begin = _header(part.file, store)
                row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
                data = store.read(
                    part.file,
                    begin + part.start * row_bytes,
                    begin + part.stop * row_bytes,
                )
                array = np.frombuffer(data, dtype).reshape(part.rows, *shape[1:])
        fields = array.dtype.names
        return {name: array[name] if fields else array for name in columns}


@final
@dataclass(frozen=True, kw_only=True)
class Npz(Format):
    """Reads .npz files: keys are columns, `x` and `y` those of a model.

    A file is one part, because its arrays may be compressed.

    Example:
        >>> Npz().label
        'y'
    """

    kind = "NPZ files"
    extensions = (".npz",)
    features = "x"
    label = "y"
    needs_label = False

    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Reads the directory of the archive."""
        with reading(file.url, "NPZ file"), store.open(file, HEADER_BYTES) as stream:
            members = zipfile.ZipFile(stream).namelist()
        return tuple(member.removesuffix(".npy") for member in members)

    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Reads the directory and the headers of arrays, without the arrays."""
        check_columns(file, columns, self.names(file, store))
        shapes: dict[str, tuple[int, ...]] = {}
        dtypes: dict[str, np.dtype[Any]] = {}
        with (
            reading(file.url, "NPZ file"),
            store.open(file, HEADER_BYTES) as stream,
            zipfile.ZipFile(stream) as archive,
        ):
            for name in columns:
                with archive.open(f"{name}.npy") as member:
                    shapes[name], _, dtypes[name] = _read_header(member)
        types = _types(file, dtypes, shapes)
        rows = rows_of(file, shapes)
        return (Part(file=file, rows=rows, types=types),) if rows else ()

    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Reads the named columns."""
        with reading(part.file.url, "NPZ file"):
            whole = io.BytesIO(store.read(part.file))
            with np.load(whole, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in columns}


def _header(
    file: FileEntry, store: Store
) -> tuple[tuple[int, ...], np.dtype[Any], bool, int]:
    """Returns shape, dtype, order, and the offset of the rows."""
    head = io.BytesIO(store.read(file, 0, min(file.size_bytes, HEADER_BYTES)))
    shape, is_fortran, dtype = _read_header(head)
    return shape, dtype, is_fortran, head.tell()


def _read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def _fields(dtype: np.dtype[Any]) -> tuple[str, ...]:
    return dtype.names or ("x",)


def _field(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    return dtype[name].base if dtype.names else dtype


def _types(
    file: FileEntry,
    dtypes: dict[str, np.dtype[Any]],
    shapes: dict[str, tuple[int, ...]],
) -> tuple[tuple[str, str], ...]:
    """Returns the types of columns, with a row's shape if it is not one number."""
    for name, dtype in dtypes.items():
        if dtype.kind not in "biuf":
            is_text = dtype.kind in "USO"
            what = f"{'text or objects' if is_text else 'no real numbers'} ({dtype})"
            raise text_column(file, name, what)
    rows = {name: shape[1:] for name, shape in shapes.items()}
    return tuple(
        (name, type_name(dtype) + (f" of shape {rows[name]}" if rows[name] else ""))
        for name, dtype in dtypes.items()
    )
