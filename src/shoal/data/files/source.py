"""The source that reads files: chunks of parts, opened again in every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.arrays import dtype_of
from shoal.data.chunks import ArrayChunk, ChunkedSource
from shoal.data.files.format import Part
from shoal.data.files.reader import Reader, Sample, check_sample, sample_of
from shoal.data.files.store import FileEntry
from shoal.data.sources import Batch
from shoal.errors import DataError, StoreFailed

OnBadFile: TypeAlias = Literal["raise", "skip"]

SHOWN_FILES = 5
HEAD_ROWS = 8
"""Rows kept from counting, so that reading a few rows opens no file again."""


@final
@dataclass(frozen=True, kw_only=True)
class FilePortion:
    """The files of one chunk.

    Args:
        parts: Parts of files, in order.
        rows: Rows of all parts.
    """

    parts: tuple[Part, ...]
    rows: int

    @property
    def url(self) -> str:
        """Returns the files, for messages."""
        urls = list(dict.fromkeys(part.file.url for part in self.parts))
        return urls[0] if len(urls) == 1 else f"{urls[0]} to {urls[-1]}"


@final
@dataclass(frozen=True, kw_only=True)
class Search:
    """The places where files were looked for, to search them again.

    Args:
        urls: Paths, folders, patterns and URLs.
        unread: Files found there that are not read: bad, or without rows.
    """

    urls: tuple[str, ...]
    unread: tuple[FileEntry, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class FileSource(ChunkedSource):
    r"""Samples in files. Made by `open_files`; holds only names, sizes and settings.

    It is pickled to workers (with cloudpickle, if `preprocess=` comes from a script),
    where files are opened again. Rows of a chunk are the same however often it is
    read, as long as the files stay as they are.

    A file that turns bad after it was counted is an error, with `on_bad_file="skip"`
    as well: its rows were counted into the epoch, which trains each row once, and no
    other row can replace them. Opening the files again leaves it out.

    Args:
        reader: Reads parts.
        portions: One for each chunk.
        sample: Kind of a row.
        kind: Plural name for users: "Parquet files".
        skipped: (URL, reason) of files that are left out.
        empty: URLs of files without rows.
        classes: Names of the classes of images, in the order of their labels.
        on_bad_file: The option of `open_files`, for messages.
        search: How its files were found; None in the folders of older runs.
        head: The first rows of the first chunk, if counting read it; they are not
            pickled.

    Example:
        >>> from shoal.data.files import open_files
        >>> import pathlib
        >>> _ = pathlib.Path("a.csv").write_text("size,price\n1.5,10\n2.5,20\n")
        >>> source = open_files("a.csv", label="price")
        >>> source.kind, len(source), source.take(slice(1, 2))
        ('CSV files', 2, (array([[2.5]], dtype=float32), array([20])))
    """

    reader: Reader
    portions: tuple[FilePortion, ...]
    sample: Sample
    kind: str = "files"
    differs_by_epoch: bool = False
    skipped: tuple[tuple[str, str], ...] = ()
    empty: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    on_bad_file: OnBadFile = "raise"
    search: Search | None = field(default=None, repr=False, compare=False)
    head: Batch | None = field(default=None, repr=False, compare=False)
    _rows: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Read very often, by every worker's order of rows.
        rows = tuple(portion.rows for portion in self.portions)
        object.__setattr__(self, "_rows", rows)

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Rows of each chunk."""
        return self._rows

    @property
    def left_out(self) -> str:
        """Returns which files are left out because they are bad; empty for none."""
        if not self.skipped:
            return ""
        shown, rest = self.skipped[:SHOWN_FILES], len(self.skipped) - SHOWN_FILES
        named = "; ".join(f"{url}: {why.rstrip('.')}" for url, why in shown)
        more = f"; and {rest:,} more" if rest > 0 else ""
        return f"{len(self.skipped):,} file(s) are left out. {named}{more}."

    @property
    def files(self) -> tuple[str, ...]:
        """URLs of all files that are read, in order."""
        parts = (part for portion in self.portions for part in portion.parts)
        return tuple(dict.fromkeys(part.file.url for part in parts))

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all rows as they are read; files may differ in size."""
        return len(self) * row_bytes(self.sample)

    def take(self, indices: slice | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns rows in the order of `indices`; the first few from memory."""
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        if self.head is not None and len(indices):
            kept = len(trees.leaves(self.head)[0])
            if 0 <= indices.min() <= indices.max() < kept:
                return trees.map_leaves(lambda rows: rows[indices], self.head)
        return super().take(indices)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "head": None}

    def with_floatx(self, floatx: str) -> FileSource:
        """Returns the same samples with floats in another dtype."""
        sample = tuple(
            (name, floatx if "float" in dtype else dtype, shape)
            for name, dtype, shape in self.sample
        )
        reader = self.reader.with_floatx(floatx)
        return replace(self, reader=reader, sample=sample, head=None)

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        """Reads a chunk; the same in every epoch.

        Raises:
            DataError: A file is damaged, gone or not the one that was counted.
        """
        del epoch
        portion = self.portions[chunk]
        try:
            batch = self.reader.read(portion.parts)
            self._check(batch, portion)
        except DataError as error:
            if self.on_bad_file == "raise" or isinstance(error, StoreFailed):
                raise
            raise DataError(
                f"{error}\n  on_bad_file='skip' cannot leave it out any more: its "
                f"{portion.rows:,} rows were counted into the epochs when files were "
                "opened. Start again; opening the files leaves it out then."
            ) from error
        return ArrayChunk(batch)

    def _check(self, batch: Batch, portion: FilePortion) -> None:
        first = self.portions[0].parts[0].file.url
        check_sample(sample_of(batch), self.sample, portion.url, first)
        for leaf in trees.leaves(batch):
            if len(leaf) != portion.rows:
                raise DataError(
                    f"{portion.url} gave {len(leaf):,} rows where {portion.rows:,} "
                    "were counted when it was opened. Expected the same rows each time "
                    "it is read. Write new data under new names; let preprocess= give "
                    "the same rows for the same files."
                )


def head_of(batch: Batch) -> Batch:
    """Copies the first rows, so that the others can be freed.

    Example:
        >>> head_of((np.arange(100), np.ones(100)))[0]
        array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    return trees.map_leaves(lambda rows: np.array(rows[:HEAD_ROWS]), batch)


def row_bytes(sample: Sample) -> int:
    """Returns the memory of one row.

    Example:
        >>> row_bytes((("x", "float32", (3,)), ("y", "int64", ())))
        20
    """
    return sum(
        dtype_of(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        for _, dtype, shape in sample
    )
