"""The contract of a file format. Each format has a file of its own.

A file is cut into parts that can be read by themselves: row groups, ranges of bytes
or rows, or the whole file. Parts are counted once, when data is opened, and joined
to chunks of a source.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data.files.store import FileEntry, Store
from shoal.errors import DataError

Columns: TypeAlias = dict[str, npt.NDArray[Any]]
"""Arrays by name, rows first."""
Types: TypeAlias = tuple[tuple[str, str], ...]
"""Types of columns before they are read: (name, dtype), floats as "float"."""

HOLES = " with empty cells"
"""Suffix of the type of a column with empty cells."""
PART_BYTES = 64 << 20
"""Limit of the bytes of one part, and size to which chunks are filled."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Rows of one file that are read together.

    Args:
        file: File of the part.
        rows: Number of rows.
        start: First byte, row or row group, as the format counts.
        stop: One past the last; None for the whole file.
        names: Columns of the file, if a part does not hold them itself.
        types: Types of the columns to read, if they are known before reading.
    """

    file: FileEntry
    rows: int
    start: int = 0
    stop: int | None = None
    names: tuple[str, ...] = ()
    types: Types = ()


class Format(ABC):
    """Reads one kind of file. Subclass it for a new kind, and name it in `formats`.

    It holds settings alone, so that it can be pickled, and is used by several threads.
    """

    kind: str
    """Plural name for users: "Parquet files"."""
    extensions: tuple[str, ...]
    """Ends of file names, with the dot and in lower case."""
    parts_per_chunk: int = 1
    """Default number of parts that make a chunk."""
    features: str | None = None
    """The column that is x if none is named; None: all but the others."""
    label: str | None = None
    """The column that is y if none is named, if there is such a column."""
    needs_label: bool = True
    """Whether a table without a label is probably a mistake."""
    allows_nothing: bool = False
    """Whether a file of 0 bytes is complete, with no rows."""
    opens_to_count: bool = True
    """Whether files are opened when they are counted."""

    @property
    def one(self) -> str:
        """Returns the singular name for users: "Parquet file"."""
        return self.kind.removesuffix("s")

    def begin(self, files: Sequence[FileEntry]) -> Format:
        """Looks at all names together; returns the format that reads them."""
        del files
        return self

    def misplaced(self, files: Sequence[FileEntry]) -> dict[str, DataError]:
        """Returns the files that lie where none are expected, by URL."""
        del files
        return {}

    @abstractmethod
    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Returns the columns of a file."""

    @abstractmethod
    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Cuts a file into parts and counts their rows; parts of 0 rows are left out.

        Raises:
            DataError: The file is damaged, or a column is missing or not numeric.
        """

    def agree(self, one: Types, other: Types) -> bool:
        """Whether files with such columns go together."""
        return not (one and other) or one == other

    def settle(self, types: Sequence[Types]) -> Format:
        """Decides types that depend on all files; returns the reading format."""
        del types
        return self

    @abstractmethod
    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Reads columns of one part."""

    def read_parts(
        self, parts: Sequence[Part], store: Store, columns: Sequence[str]
    ) -> Iterator[Columns]:
        """Reads parts one after another; override it to fetch them together."""
        for part in parts:
            yield self.read(part, store, columns)


def extension(name: str) -> str:
    """Returns the ending of a name, without compression and number of a shard.

    Example:
        >>> extension("a.csv.gz"), extension("train.tfrecord-00001-of-00010")
        ('.csv', '.tfrecord')
    """
    plain = re.sub(r"\.(gz|gzip)$", "", name.lower())
    plain = re.sub(r"-\d+-of-\d+$", "", plain)
    return re.sub(r"^.*(?=\.)|^[^.]*$", "", plain, count=1)


def type_name(dtype: np.dtype[Any]) -> str:
    """Returns the name of a type; floats of any width are "float".

    Example:
        >>> type_name(np.dtype("f8")), type_name(np.dtype("i4"))
        ('float', 'int32')
    """
    return "float" if dtype.kind == "f" else dtype.name


def missing_column(file: FileEntry, name: str, known: Sequence[str]) -> DataError:
    """Returns the error about a file that lacks a column."""
    shown = ", ".join(map(repr, list(known)[:20])) or "none"
    return DataError(
        f"{file.url} has no column {name!r}; it has {shown}. Expected the same "
        "columns in all files. Complete the file, or name columns that all have "
        "with features= and label=."
    )


def text_column(file: FileEntry, name: str, what: str) -> DataError:
    """Returns the error about a column of text, or of another type no model takes.

    Args:
        file: File of the column.
        name: Name of the column.
        what: Content of the column: "text (string)".
    """
    return DataError(
        f"column {name!r} of {file.url} holds {what}. Expected numbers or bools. "
        "Encode it before training (np.unique(..., return_inverse=True), or "
        "keras.layers.StringLookup in preprocess=), or leave it out with features=."
    )


def check_columns(
    file: FileEntry, columns: Sequence[str], known: Sequence[str]
) -> None:
    """Raises a `DataError` if a file lacks a column."""
    for name in columns:
        if name not in known:
            raise missing_column(file, name, known)


def rows_of(file: FileEntry, arrays: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the rows that all arrays of a file have, by their shapes.

    Raises:
        DataError: They differ, or an array has no rows.
    """
    for name, shape in arrays.items():
        if not shape:
            raise DataError(
                f"{name!r} in {file.url} is a single value. Expected an array with "
                "samples along its first axis. Write it as an array of shape "
                "(samples, ...), or leave it out with features= and label=."
            )
    lengths = {name: shape[0] for name, shape in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} {rows:,}" for name, rows in lengths.items())
        raise DataError(
            f"arrays in {file.url} differ in their rows: {shown}. Expected one row "
            "for each sample in every array. Write the file again, or name arrays "
            "that belong together with features= and label=."
        )
    return next(iter(lengths.values()))
