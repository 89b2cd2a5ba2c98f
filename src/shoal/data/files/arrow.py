"""Arrow IPC files (`.arrow`, `.feather`): a record batch is a part.

Lists of a fixed length become arrays without a copy. Files are read, and not mapped: a
file that is cut off while it is mapped would end the process.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from shoal.data.files.format import Columns, Format, Part, check_columns
from shoal.data.files.libraries import library
from shoal.data.files.parquet import column_type, dense
from shoal.data.files.refusals import reading
from shoal.data.files.store import FileEntry, Store

ONE = "Arrow file"
LOCAL = ("file", "local")


@final
@dataclass(frozen=True, kw_only=True)
class Arrow(Format):
    """Reads files of record batches, LZ4 and ZSTD included.

    Lists of one length become rows of an array. Empty cells of float columns are NaN;
    in columns of whole numbers they are an error.

    Example:
        >>> Arrow().one
        'Arrow file'
    """

    kind = "Arrow files"
    extensions = (".arrow", ".feather")

    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Reads the schema."""
        with _opened(file, store) as batches:
            return tuple(batches.schema.names)

    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Reads the heads of all record batches, which lie between their data."""
        with _opened(file, store) as batches:
            schema = batches.schema
        check_columns(file, columns, schema.names)
        types = tuple((name, column_type(schema.field(name), file)) for name in columns)
        with _opened(file, store, is_counted=True) as batches:
            rows = [
                batches.get_batch(number).num_rows
                for number in range(batches.num_record_batches)
            ]
        return tuple(
            Part(file=file, rows=count, start=number, stop=number + 1, types=types)
            for number, count in enumerate(rows)
            if count
        )

    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Reads one record batch."""
        return next(self.read_parts([part], store, columns))

    def read_parts(
        self, parts: Sequence[Part], store: Store, columns: Sequence[str]
    ) -> Iterator[Columns]:
        """Reads record batches; opens a file once for those that follow each other."""
        place = 0
        while place < len(parts):
            file = parts[place].file
            with _opened(file, store) as batches:
                while place < len(parts) and parts[place].file == file:
                    batch = batches.get_batch(parts[place].start)
                    yield {name: dense(batch[name], name, file) for name in columns}
                    place += 1


@contextmanager
def _opened(
    file: FileEntry, store: Store, *, is_counted: bool = False
) -> Generator[Any]:
    """Opens the reader of a file.

    Args:
        file: The file.
        store: Store of the file.
        is_counted: Whether only the numbers of rows are wanted: one column is read
            then, and only the heads of a file on a local disk.
    """
    arrow = library("pyarrow", "Arrow files")
    ipc = library("pyarrow.ipc", "Arrow files")
    with reading(file.url, ONE):
        protocol = store.filesystem(file.url).protocol
        names = (protocol,) if isinstance(protocol, str) else protocol
        if any(name in LOCAL for name in names):
            opened = arrow.memory_map if is_counted else arrow.OSFile
            stream: Any = opened(store.path(file.url))
        else:
            stream = store.open(file)
        few = ipc.IpcReadOptions(included_fields=[0]) if is_counted else None
        with stream, ipc.open_file(stream, options=few) as batches:
            yield batches
