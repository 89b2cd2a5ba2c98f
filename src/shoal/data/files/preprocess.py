"""Files that the user's code reads: `preprocess(keys, objects)`, chunk by chunk.

This file decides the contract, which is EasyDist's: `keys` are names in the bucket
(or local paths) in order, `objects` open binary streams of them; the result is
`(inputs, outputs, train_size)`.
"""

from __future__ import annotations

import inspect
import io
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Protocol, TypeAlias, cast, final

from shoal.data import trees
from shoal.data.arrays import Column, named_columns
from shoal.data.files.format import PART_BYTES, Part
from shoal.data.files.reader import Reader
from shoal.data.files.refusals import reading
from shoal.data.files.store import FileEntry, Store
from shoal.data.sources import Batch
from shoal.errors import ConfigError, DataError, a_kind


class Preprocessor(Protocol):
    """A class that turns files into arrays."""

    def preprocess(self, keys: list[str], objects: list[BinaryIO]) -> Any:
        """Returns (inputs, outputs, train_size)."""
        ...


Preprocess: TypeAlias = (
    "Preprocessor | type[Preprocessor] | Callable[[list[str], list[BinaryIO]], Any]"
)

BUFFER_BYTES = 8 << 20
"""Bytes fetched at a time of a file too large for memory."""

CONTRACT = (
    "Expected preprocess(keys, objects) to return (inputs, outputs, train_size): "
    "arrays (or dicts or lists of arrays) with train_size rows each."
)


@final
@dataclass(frozen=True, kw_only=True)
class PreprocessReader(Reader):
    r"""Reads files by a user's code.

    Args:
        preprocess: Class, object or function.
        store: Store of the files.
        floatx: Dtype in which floats are trained.

    Example:
        >>> import pathlib
        >>> import numpy as np
        >>> def lines(keys, objects):
        ...     x = np.array([[float(line)] for text in objects for line in text])
        ...     return x, None, len(x)
        >>> _ = pathlib.Path("a.txt").write_text("1\n2\n")
        >>> reader = PreprocessReader(
        ...     preprocess=lines, store=Store(), floatx="float32"
        ... )
        >>> reader.read([Part(file=FileEntry(url="a.txt", size_bytes=4), rows=2)])
        array([[1.], [2.]], dtype=float32)
    """

    preprocess: Preprocess
    store: Store
    floatx: str

    def read(self, parts: Sequence[Part]) -> Batch:
        """Runs it for the files of one chunk."""
        # A worker reads one chunk at a time: no other thread holds this lock.
        return self.run([part.file for part in parts], threading.Lock())

    def with_floatx(self, floatx: str) -> Reader:
        """Returns a reader of the same data with floats in another dtype."""
        return replace(self, floatx=floatx)

    def run(self, files: Sequence[FileEntry], one_at_a_time: Any) -> Batch:
        """Fetches files, then runs the user's code, which need not be thread-safe.

        Args:
            files: Files of one chunk.
            one_at_a_time: A lock.

        Raises:
            DataError: A file cannot be read, the code fails, or breaks the contract.
        """
        where = names_of(files)
        objects = self._objects(files)
        try:
            with one_at_a_time:
                function = entry_point(self.preprocess)
                keys = [_key(file, self.store) for file in files]
                try:
                    found = function(keys, objects)
                except Exception as error:
                    raise DataError(
                        f"preprocess failed on {where} "
                        f"({type(error).__name__}: {error}). {CONTRACT} Correct it, "
                        "or pass on_bad_file='skip' to leave such files out."
                    ) from error
                return _packed(found, where, self.floatx)
        finally:
            for stream in objects:
                stream.close()

    def _objects(self, files: Sequence[FileEntry]) -> list[BinaryIO]:
        """Opens small files in memory, fetched together, and large ones as streams."""
        small = [file for file in files if file.size_bytes <= PART_BYTES]
        with reading(files[0].url, "file"):
            found = dict(
                zip((f.url for f in small), self.store.read_all(small), strict=True)
            )
        streams: list[BinaryIO] = []
        for file in files:
            with reading(file.url, "file"):
                data = found.get(file.url)
                if isinstance(data, Exception):
                    raise data
                streams.append(
                    self.store.open(file, BUFFER_BYTES)
                    if data is None
                    else io.BytesIO(data)
                )
        return streams


def entry_point(preprocess: Preprocess) -> Callable[[list[str], list[BinaryIO]], Any]:
    """Returns the function to call; a class is instantiated without arguments.

    Raises:
        ConfigError: There is no such function.

    Example:
        >>> entry_point(print) is print
        True
        >>> entry_point(dict)
        Traceback (most recent call last):
        shoal.errors.ConfigError: preprocess=<class 'dict'> has no method ...
    """
    is_class = inspect.isclass(preprocess)
    if is_class or not callable(preprocess) or hasattr(preprocess, "preprocess"):
        if not callable(getattr(preprocess, "preprocess", None)):
            raise ConfigError(
                f"preprocess={preprocess!r} has no method preprocess(keys, objects). "
                "Expected a class with it, an object of such a class, or a function. "
                "Name the method preprocess."
            )
        owner = cast("type[Preprocessor]", preprocess)
        if not is_class:
            return cast("Preprocessor", preprocess).preprocess
        try:
            inspect.signature(owner).bind()
        except TypeError as error:
            raise ConfigError(
                f"preprocess={preprocess!r} cannot be made without arguments: {error}. "
                "Expected a class that needs none. Pass an object of it instead: "
                f"preprocess={owner.__name__}(...)."
            ) from None
        except ValueError:  # its signature is unknown
            pass
        return owner().preprocess
    return preprocess


def groups(
    files: Sequence[FileEntry], files_per_chunk: int
) -> list[tuple[FileEntry, ...]]:
    """Groups files to chunks: by number, and by their bytes.

    Example:
        >>> files = [FileEntry(url=str(i), size_bytes=40 << 20) for i in range(3)]
        >>> [len(group) for group in groups(files, 256)]
        [1, 1, 1]
        >>> [len(group) for group in groups([file for file in files][:2], 1)]
        [1, 1]
    """
    found: list[list[FileEntry]] = []
    used = 0
    for file in files:
        is_full = not found or len(found[-1]) >= files_per_chunk
        if is_full or used + file.size_bytes > PART_BYTES:
            found.append([])
            used = 0
        found[-1].append(file)
        used += file.size_bytes
    return [tuple(group) for group in found]


def names_of(files: Sequence[FileEntry]) -> str:
    """Names files in a message: all of a few, first and last of many."""
    urls = [file.url for file in files]
    if len(urls) <= 3:
        return ", ".join(urls)
    return f"{urls[0]} to {urls[-1]} ({len(urls):,} files)"


def _key(file: FileEntry, store: Store) -> str:
    """Returns the store's name of a file: on S3 without the bucket."""
    path = store.path(file.url)
    return path.partition("/")[2] if file.url.startswith(("s3:", "s3a:")) else path


def _packed(found: Any, where: str, floatx: str) -> Batch:
    if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 3:
        what = f"{a_kind(found)}"
        if isinstance(found, (tuple, list)):
            what += f" of {len(cast('Sequence[Any]', found))}"
        raise DataError(
            f"preprocess returned {what} for {where}. {CONTRACT} "
            "Return these three, in this order."
        )
    inputs, outputs, train_size = cast("tuple[Any, Any, Any]", found)
    rows = _whole_number(train_size, where)
    place = f"preprocess of {where}"
    x, y = (
        named_columns(tree, name, floatx, place)
        for name, tree in (("inputs", inputs), ("outputs", outputs))
    )
    named = [*trees.named_leaves(x, "inputs"), *trees.named_leaves(y, "outputs")]
    if not trees.leaves(x):
        raise DataError(
            f"preprocess returned no inputs for {where}. {CONTRACT} Return them first."
        )
    for name, column in named:
        if len(column.values) != rows:
            raise DataError(
                f"{name} of preprocess has {len(column.values):,} rows for {where}, "
                f"but train_size={rows:,}. {CONTRACT} Count the rows of {name}, "
                f"for example with len({name.partition('[')[0]})."
            )
    x, y = (trees.map_leaves(_values, tree) for tree in (x, y))
    return x if y is None else (x, y)


def _values(column: Column) -> Any:
    return column.take(slice(None))


def _whole_number(train_size: Any, where: str) -> int:
    try:
        if isinstance(train_size, bool):
            raise TypeError
        rows = operator.index(train_size)
    except TypeError:
        rows = -1
    if rows < 0:
        raise DataError(
            f"preprocess returned train_size={train_size!r} of type "
            f"{type(train_size).__name__} for {where}. {CONTRACT} Return a whole "
            "number, as len() gives it."
        )
    return rows
