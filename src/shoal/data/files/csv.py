"""CSV with a header line; gzip; big plain files in ranges that end at line ends.

Files are parsed once when they are opened: only this counts rows (a quoted
cell may hold line ends), finds text cells before machines are paid for, and
gives one type to columns that look whole in one file and not in another.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from shoal.data.files.format import (
    HOLES,
    PART_BYTES,
    Columns,
    Format,
    Part,
    Types,
    check_columns,
    text_column,
)
from shoal.data.files.libraries import library
from shoal.data.files.refusals import reading
from shoal.data.files.store import FileEntry, Store
from shoal.errors import DataError

BLOCK_BYTES = 8 << 20
"""Bytes of text that pyarrow parses at a time; no row may be longer."""
HEADER_BYTES = 1 << 20
"""Bytes in which a header line is looked for."""
GZIP = b"\x1f\x8b"
NULLS = frozenset(("", "NA", "N/A", "NaN", "nan", "null", "NULL", "#N/A", "n/a"))
NEWLINE = 10
SEPARATORS = (";", "\t", "|", ",")


@final
@dataclass(frozen=True, kw_only=True)
class Csv(Format):
    """Reads CSV (and TSV) files with a header line, plain or gzip.

    Empty cells are NaN and make a column floats. A gzip file cannot be cut: it is
    one part, of any size.

    Args:
        types: Column -> "int64", "float" or "bool", decided from all files together.
        part_bytes: Size above which plain files are cut.

    Example:
        >>> Csv().extensions
        ('.csv', '.tsv')
    """

    kind = "CSV files"
    extensions = (".csv", ".tsv")
    allows_nothing = True

    types: Mapping[str, str] = field(default_factory=dict[str, str])
    part_bytes: int = PART_BYTES

    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Reads the header line."""
        with reading(file.url, "CSV file"):
            return _header(_head(file, store), file)[0]

    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Parses the whole file."""
        with reading(file.url, "CSV file"):
            return tuple(self._count(file, store, columns))

    def _count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> Iterator[Part]:
        head = _head(file, store)
        names, length = _header(head, file)
        check_columns(file, columns, names)
        twice = [name for name in columns if names.count(name) > 1]
        if twice:
            raise DataError(
                f"{file.url} has {names.count(twice[0])} columns {twice[0]!r}. "
                "Expected a name of its own for each column. Rename them."
            )
        whole = Part(file=file, rows=0, names=names)
        line = 1 + head[:length].count(b"\n")
        for start, stop, text in _pieces(file, store, length, self.part_bytes):
            table = _parse(text, names, columns, file)
            types = tuple(
                (name, _type(table[name], name, whole, text, line)) for name in columns
            )
            if table.num_rows:
                yield replace(
                    whole, rows=table.num_rows, start=start, stop=stop, types=types
                )
            line += int(np.count_nonzero(np.frombuffer(text, np.uint8) == NEWLINE))

    def agree(self, one: Types, other: Types) -> bool:
        """Whole numbers and floats agree; bools agree with neither."""
        return all(
            (a == "bool") == (b == "bool")
            for (_, a), (_, b) in zip(one, other, strict=True)
        )

    def settle(self, types: Sequence[Types]) -> Format:
        """Makes a column whole only if it is so in all files."""
        found: dict[str, str] = {}
        for name, own in (pair for one in set(types) for pair in one):
            kind = own.removesuffix(HOLES)
            found[name] = kind if found.get(name, kind) == kind else "float"
        return replace(self, types=found)

    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Parses one range."""
        arrow = library("pyarrow", "CSV files")
        kinds = {
            "int64": arrow.int64(),
            "float": arrow.float64(),
            "bool": arrow.bool_(),
        }
        with reading(part.file.url, "CSV file"):
            if part.stop is None:
                text = _plain(store.read(part.file))[part.start :]
            else:
                text = memoryview(store.read(part.file, part.start, part.stop))
            types = {name: kinds[self.types[name]] for name in columns}
            table = _parse(text, part.names, columns, part.file, types)
            return {
                name: table[name].to_numpy(zero_copy_only=False) for name in columns
            }


def _head(file: FileEntry, store: Store) -> bytes:
    """Returns the beginning of a file, decompressed."""
    stop = min(file.size_bytes, HEADER_BYTES)
    head = store.read(file, 0, stop)
    if not head.startswith(GZIP):
        return head
    with gzip.open(io.BytesIO(head)) as stream:
        try:
            return stream.read1(HEADER_BYTES)
        except EOFError:
            return _plain(store.read(file))[:HEADER_BYTES].tobytes()


def _plain(data: bytes) -> memoryview:
    return memoryview(gzip.decompress(data) if data.startswith(GZIP) else data)


def _delimiter(file: FileEntry) -> str:
    return "\t" if ".tsv" in file.name.lower() else ","


def _header(head: bytes, file: FileEntry) -> tuple[tuple[str, ...], int]:
    """Returns the names of the columns, and the bytes of the header line."""
    length = _record_end(head, 0)
    if length < 0:
        if len(head) >= HEADER_BYTES:
            raise DataError(
                f"{file.url} has no line end in its first {HEADER_BYTES:,} bytes. "
                "Expected a header line and rows. Write it as text, one line a row."
            )
        length = len(head)
    line = head[:length].decode("utf-8-sig")
    names = tuple(next(csv.reader([line], delimiter=_delimiter(file)), []))
    _check_separator(names, file)
    if names and all(_is_number(name) for name in names):
        raise DataError(
            f"{file.url} begins with numbers ({line.strip()[:60]}), not with names of "
            "columns. Expected a header line. Write one: "
            "sed -i '1i a,b,c' file.csv"
        )
    return names, length


def _check_separator(names: Sequence[str], file: FileEntry) -> None:
    """Refuses a header that is one name here and several in another program.

    Raises:
        DataError: Its columns are separated in another way.
    """
    usual = _delimiter(file)
    found = [mark for mark in SEPARATORS if mark != usual and mark in "".join(names)]
    if len(names) > 1 or not found:
        return
    mark = found[0]
    known = ", ".join(map(repr, names[0].split(mark)[:6]))
    comma = " and commas in numbers by points (decimal=',')" if mark == ";" else ""
    raise DataError(
        f"{file.url} separates its columns by {mark!r}: {known}. Expected "
        f"{usual!r}{' in a .csv file, tabs in a .tsv file' if usual == ',' else ''}. "
        f"Write it anew, with {usual!r}{comma}: "
        f"pandas.read_csv(path, sep={mark!r}).to_csv(path, index=False)."
    )


def _record_end(text: bytes, start: int) -> int:
    """Returns the end of the first row that begins at `start`; -1 if it has none."""
    end, quotes = start, 0
    while True:
        found = text.find(b"\n", end)
        if found < 0:
            return -1
        quotes += text.count(b'"', end, found)
        end = found + 1
        if quotes % 2 == 0:
            return end


def _pieces(
    file: FileEntry, store: Store, start: int, part_bytes: int
) -> Iterator[tuple[int, int | None, memoryview]]:
    """Cuts a file after its header into whole rows: (start, stop, text)."""
    first = store.read(file, 0, min(2, file.size_bytes))
    if first == GZIP or file.size_bytes <= part_bytes:
        yield start, None, _plain(store.read(file))[start:]
        return
    rest = b""
    while start < file.size_bytes:
        fresh = start + len(rest)
        text = rest + store.read(file, fresh, min(file.size_bytes, fresh + part_bytes))
        is_last = start + len(text) >= file.size_bytes
        stop = len(text) if is_last else last_record_end(text)
        if stop:
            yield start, start + stop, memoryview(text)[:stop]
        start, rest = start + stop, text[stop:]
        if len(rest) > part_bytes:
            raise DataError(
                f"{file.url} has a row of more than {part_bytes:,} bytes (from byte "
                f"{start:,}). Expected shorter rows; a quote that is opened "
                "and never closed has this effect. Check that place of the file."
            )


def last_record_end(text: bytes) -> int:
    r"""Returns the end of the last whole row, in text that begins with a row.

    A line end inside quotes does not end a row.

    Example:
        >>> last_record_end(b'1,2\n3,"a\nb"\n4,"c\nd')
        12
    """
    quotes, end = text.count(b'"'), len(text)
    while True:
        found = text.rfind(b"\n", 0, end)
        if found < 0:
            return 0
        quotes -= text.count(b'"', found, end)
        if quotes % 2 == 0:
            return found + 1
        end = found


def _parse(
    text: memoryview,
    names: Sequence[str],
    columns: Sequence[str],
    file: FileEntry,
    types: Mapping[str, Any] | None = None,
) -> Any:
    arrow, table = library("pyarrow", "CSV files"), library("pyarrow.csv", "CSV files")
    if not text.nbytes:
        return arrow.table({name: arrow.array([], arrow.null()) for name in columns})
    return table.read_csv(
        arrow.BufferReader(arrow.py_buffer(text)),
        table.ReadOptions(column_names=_unique(names), block_size=BLOCK_BYTES),
        table.ParseOptions(delimiter=_delimiter(file), newlines_in_values=True),
        table.ConvertOptions(
            include_columns=list(columns), column_types=dict(types or {})
        ),
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Makes names unique: columns that are not read may share a name, or have none."""
    return [
        name if names.index(name) == place else f"{name}#{place}"
        for place, name in enumerate(names)
    ]


def _type(column: Any, name: str, part: Part, text: memoryview, line: int) -> str:
    """Returns the type of a column in one piece; raises for text, naming the cell."""
    types = library("pyarrow", "CSV files").types
    kind = column.type
    holed = f"float{HOLES}" if column.null_count else "float"
    if types.is_floating(kind) or types.is_null(kind):
        return holed
    if types.is_integer(kind):
        return holed if column.null_count else "int64"
    if types.is_boolean(kind) and not column.null_count:
        return "bool"
    raise _bad_cell(name, part, text, line)


def _bad_cell(name: str, part: Part, text: memoryview, line: int) -> DataError:
    """Finds the first cell that is not a number; `line` is the text's first line."""
    place = part.names.index(name)
    stream = io.TextIOWrapper(io.BytesIO(text), "utf-8", "replace", newline="")
    rows = csv.reader(stream, delimiter=_delimiter(part.file))
    first = line
    for row in rows:
        cell = row[place].strip() if place < len(row) else ""
        if not (_is_number(cell) or cell in NULLS):
            return DataError(
                f"column {name!r} of {part.file.url} has the text {cell[:60]!r} in "
                f"line {first:,}. Expected a number in every cell. Correct it, encode "
                "the column before training (np.unique(..., return_inverse=True)), "
                "leave it out with features=, or pass on_bad_file='skip'."
            )
        first = line + rows.line_num
    return text_column(part.file, name, "cells that are no numbers")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
