"""From parts of files to a chunk: read, joined, checked, packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, final

import numpy as np

from shoal.data import trees
from shoal.data.files.format import PART_BYTES, Columns, Format, Part
from shoal.data.files.selection import Selection
from shoal.data.files.store import FileEntry, Store
from shoal.data.sources import Batch
from shoal.errors import DataError

Leaf: TypeAlias = tuple[str, str, tuple[int, ...]]
"""Name, dtype, and shape of a row."""
Sample: TypeAlias = tuple[Leaf, ...]
"""The kind of a row: all chunks must have the same."""

Item = TypeVar("Item")
Result = TypeVar("Result")

MEMORY_BYTES = 4 * PART_BYTES
"""Number of files that are counted at the same time."""
THREADS = 16


class Reader(ABC):
    """Reads a chunk's parts. Subclass it for other kinds of files."""

    @abstractmethod
    def read(self, parts: Sequence[Part]) -> Batch:
        """Returns data as Keras takes it.

        Raises:
            DataError: A file cannot be read; it is named.
        """

    @abstractmethod
    def with_floatx(self, floatx: str) -> Reader:
        """Returns a reader of the same data with floats in another dtype."""


@final
@dataclass(frozen=True, kw_only=True)
class ColumnReader(Reader):
    """Reads files that hold columns.

    Args:
        form: Format of the files.
        store: Store of the files.
        selection: Roles of the columns.

    Example:
        >>> from shoal.data.files.csv import Csv
        >>> chosen = Selection(x="a", y=None, weight=None, floatx="float32")
        >>> ColumnReader(form=Csv(), store=Store(), selection=chosen).read([])
        Traceback (most recent call last):
        ValueError: a chunk has at least one part
    """

    form: Format
    store: Store
    selection: Selection

    def read(self, parts: Sequence[Part]) -> Batch:
        """Reads parts one after another into arrays of their common length."""
        if not parts:
            raise ValueError("a chunk has at least one part")
        names = self.selection.columns
        rows, filled = sum(part.rows for part in parts), 0
        whole: Columns = {}
        found = self.form.read_parts(parts, self.store, names)
        for part, columns in zip(parts, found, strict=True):
            _check_rows(columns, part)
            if len(parts) == 1:
                return self.selection.pack(columns)
            for name in names:
                array = columns[name]
                if name not in whole:
                    whole[name] = np.empty((rows, *array.shape[1:]), array.dtype)
                _check_alike(array, whole[name], name, part.file, parts[0].file)
                whole[name][filled : filled + part.rows] = array
            filled += part.rows
        return self.selection.pack(whole)

    def with_floatx(self, floatx: str) -> Reader:
        """Returns a reader of the same data with floats in another dtype."""
        return replace(self, selection=replace(self.selection, floatx=floatx))


def _check_rows(columns: Columns, part: Part) -> None:
    for name, array in columns.items():
        if len(array) != part.rows:
            raise DataError(
                f"{part.file.url} gave {len(array):,} rows of {name!r} where "
                f"{part.rows:,} were counted: it has changed since it was opened. "
                "Expected files that stay as they are while they are read. "
                "Write new data under new names, and open the files again."
            )


def _check_alike(
    array: Any, whole: Any, name: str, file: FileEntry, first: FileEntry
) -> None:
    if array.shape[1:] != whole.shape[1:] or array.dtype != whole.dtype:
        raise unlike(
            (name, array.dtype.name, array.shape[1:]),
            (name, whole.dtype.name, whole.shape[1:]),
            file.url,
            first.url,
        )


def unlike(found: Leaf, expected: Leaf, url: str, first: str) -> DataError:
    """Returns the error about a file that differs from the first.

    Args:
        found: The kind of its rows.
        expected: The kind of the first file's rows.
        url: URL of the file, or of the files.
        first: URL of the first file.
    """
    name, dtype, shape = found
    hint = (
        "Pass image_size=(height, width) to resize them all."
        if name in ("image", "x") and len(shape) == 3
        else "Write it again as the others, or leave it out."
    )
    return DataError(
        f"{name!r} in {url} has rows of {dtype} and shape {shape}, but in {first} of "
        f"{expected[1]} and shape {expected[2]}. Expected the same in all files. {hint}"
    )


def sample_of(batch: Batch) -> Sample:
    """Returns the kind of a row of a chunk.

    Example:
        >>> sample_of((np.zeros((3, 2)), np.zeros(3, "i4")))
        (('x', 'float64', (2,)), ('y', 'int32', ()))
    """
    parts = batch if isinstance(batch, tuple) and len(batch) > 1 else (batch,)
    named = zip(("x", "y", "sample_weight"), parts, strict=False)
    return tuple(
        (path, leaf.dtype.name, tuple(leaf.shape[1:]))
        for name, tree in named
        for path, leaf in trees.named_leaves(tree, name)
    )


def check_sample(found: Sample, expected: Sample, url: str, first: str) -> None:
    """Compares the rows of a chunk with those of the first.

    Raises:
        DataError: They differ; names the file.
    """
    if found == expected:
        return
    for one, other in zip(found, expected, strict=False):
        if one != other:
            raise unlike(one, other, url, first)
    raise DataError(
        f"{url} gives {len(found)} arrays, but {first} gives {len(expected)}. "
        "Expected the same arrays from all files. Make them alike."
    )


def in_parallel(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    item_bytes: int,
    is_lenient: bool,
) -> list[Result | DataError]:
    """Applies a function to all items, in threads.

    Args:
        function: Function that mostly waits for a store.
        items: Its arguments.
        item_bytes: Most memory of one call; decides the number of threads.
        is_lenient: Whether a `DataError` takes the place of a result. If not, the first
            item's error is raised, and later items are not begun.

    Example:
        >>> in_parallel(abs, [-1, 2], item_bytes=8, is_lenient=False)
        [1, 2]
    """

    def safely(item: Item) -> Result | DataError:
        try:
            return function(item)
        except DataError as error:
            if is_lenient:
                return error
            raise

    threads = min(THREADS, len(items), max(1, MEMORY_BYTES // max(1, item_bytes)))
    if threads <= 1:
        return [safely(item) for item in items]
    with ThreadPoolExecutor(threads, "shoal-files") as pool:
        try:
            return list(pool.map(safely, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
