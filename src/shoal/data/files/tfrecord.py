"""TFRecord files of `tf.train.Example`, plain or gzip; checksums are verified."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.crc32c import masked_crc32c
from shoal.data.files.alike import alike
from shoal.data.files.example import Feature, parse_example
from shoal.data.files.format import (
    PART_BYTES,
    Columns,
    Format,
    Part,
    Types,
    check_columns,
    missing_column,
    text_column,
)
from shoal.data.files.refusals import reading
from shoal.data.files.store import FileEntry, Store
from shoal.errors import DataError

GZIP = b"\x1f\x8b"
HEAD, TAIL = 12, 4
"""Bytes around a record: its length and that length's checksum; its own checksum."""
FIRST_BYTES = 1 << 20
"""Bytes in which the first record is looked for; longer ones are fetched by length."""


@final
@dataclass(frozen=True, kw_only=True)
class TfRecord(Format):
    """Reads TFRecord files. A feature of one number is a column, of k one of rows of k.

    Args:
        part_bytes: Size above which plain files are cut between records; gzip files are
            not.

    Example:
        >>> TfRecord().one
        'TFRecord file'
    """

    kind = "TFRecord files"
    extensions = (".tfrecord", ".tfrecords", ".tfrec")
    allows_nothing = True

    part_bytes: int = PART_BYTES

    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Reads the first record."""
        with reading(file.url, "TFRecord file"):
            first = _first(file, store)
            return () if first is None else tuple(sorted(parse_example(first)))

    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Walks from record to record; checks lengths, not yet the contents."""
        with reading(file.url, "TFRecord file"):
            first = _first(file, store)
            if first is None:
                return ()
            example = parse_example(first)
            check_columns(file, columns, tuple(sorted(example)))
            types = tuple((name, _type(example[name], name, file)) for name in columns)
            return tuple(self._parts(file, store, types))

    def _parts(self, file: FileEntry, store: Store, types: Types) -> Iterator[Part]:
        start = store.read(file, 0, min(2, file.size_bytes))
        if start == GZIP or file.size_bytes <= self.part_bytes:
            data = _plain(store.read(file))
            starts, _ = frames(data, file, is_whole=True)
            yield Part(file=file, rows=len(starts), types=types)
            return
        position, size = 0, self.part_bytes
        while position < file.size_bytes:
            stop = min(file.size_bytes, position + size)
            data = store.read(file, position, stop)
            starts, lengths = frames(data, file, is_whole=stop == file.size_bytes)
            if not len(starts):  # one record is longer than a part
                size *= 2
                continue
            end = position + int(starts[-1] + lengths[-1]) + TAIL
            yield Part(
                file=file, rows=len(starts), start=position, stop=end, types=types
            )
            position, size = end, self.part_bytes

    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Reads records, and checks their contents."""
        with reading(part.file.url, "TFRecord file"):
            data = store.read(part.file, part.start, part.stop)
            if part.stop is None:
                data = _plain(data)
            starts, lengths = frames(data, part.file, is_whole=True)
            _check(data, starts, lengths, "data", part.file)
            return _columns(data, starts, lengths, columns, part)


def _columns(
    data: bytes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    columns: Sequence[str],
    part: Part,
) -> Columns:
    """Reads records of common layouts together, the rest one by one."""
    kinds = dict(part.types)
    whole: Columns = {}
    is_left = np.ones(len(starts), bool)
    for some, found in alike(data, starts, lengths, columns):
        for name in columns:
            kind = "float" if found[name].dtype.kind == "f" else "int64"
            _check_kind(part.file, name, kind, kinds[name])
            _fill(whole, name, some, found[name], len(starts), part.file)
        is_left[some] = False
    for place in np.flatnonzero(is_left):
        start = starts[place]
        example = parse_example(data[start : start + lengths[place]])
        for name in columns:
            if name not in example:
                raise missing_column(part.file, name, tuple(example))
            kind = _type(example[name], name, part.file)
            _check_kind(part.file, name, kind, kinds[name])
            _fill(whole, name, place, example[name][1], len(starts), part.file)
    return {
        name: array[:, 0] if array.shape[1] == 1 else array
        for name, array in whole.items()
    }


def frames(
    data: bytes, file: FileEntry, *, is_whole: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds records: the start and length of each.

    Args:
        data: Bytes that begin with a record.
        file: File of the data, for messages.
        is_whole: Whether the data must end with the end of a record.

    Raises:
        DataError: It is cut short, or the checksum of a length is wrong.
    """
    starts: list[int] = []
    lengths: list[int] = []
    position, end = 0, len(data)
    unpack = struct.Struct("<Q").unpack_from
    while position + HEAD <= end:
        (length,) = unpack(data, position)
        after = position + HEAD + length + TAIL
        if after > end:
            break
        starts.append(position + HEAD)
        lengths.append(length)
        position = after
    first, sizes = np.array(starts, np.int64), np.array(lengths, np.int64)
    _check(data, first - HEAD, np.full(len(first), 8), "length", file)
    if is_whole and position != end:
        if position + HEAD <= end:  # truncated, or an impossible length
            last = np.array([position])
            _check(data, last, np.array([8]), "length", file, len(starts))
        raise DataError(
            f"{file.url} is cut short in record {len(starts) + 1:,} (byte "
            f"{position:,} of {end:,}). Expected whole records. Write the file again, "
            "or pass on_bad_file='skip'."
        )
    return first, sizes


def _check(
    data: bytes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    what: str,
    file: FileEntry,
    records_before: int = 0,
) -> None:
    """Verifies checksums, which follow the bytes that they cover."""
    stops = (starts + lengths).tolist()
    for number, (start, stop) in enumerate(zip(starts.tolist(), stops, strict=True)):
        if masked_crc32c(data[start:stop]) == int.from_bytes(
            data[stop : stop + 4], "little"
        ):
            continue
        raise DataError(
            f"the checksum of the {what} of record {records_before + number + 1:,} "
            f"in {file.url} is wrong. Expected a TFRecord file as TensorFlow writes "
            "it, undamaged. Copy or write the file again, or pass on_bad_file='skip'."
        )


def _first(file: FileEntry, store: Store) -> bytes | None:
    """Returns the first record, unless it is damaged; None if there is none."""
    data = store.read(file, 0, min(file.size_bytes, FIRST_BYTES))
    if data.startswith(GZIP):
        data = _plain(store.read(file))
        if not data:
            return None
    if len(data) < HEAD:
        frames(data, file, is_whole=True)
    (length,) = struct.unpack_from("<Q", data)
    need = HEAD + length + TAIL
    if need > len(data):
        _check(data, np.array([0]), np.array([8]), "length", file)
        data = store.read(file, 0, min(file.size_bytes, need))
    starts, lengths = frames(data[:need], file, is_whole=True)
    return data[starts[0] : starts[0] + lengths[0]]


def _plain(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(GZIP) else data


def _type(feature: Feature, name: str, file: FileEntry) -> str:
    kind, _ = feature
    if kind == "bytes":
        raise text_column(file, name, "bytes or text")
    return kind


def _check_kind(file: FileEntry, name: str, kind: str, expected: str) -> None:
    if kind != expected:
        raise DataError(
            f"feature {name!r} of {file.url} is {kind} in one record and {expected} in "
            "another. Expected one kind in all records. Write the file again with one."
        )


def _fill(
    whole: Columns,
    name: str,
    records: Any,
    values: npt.NDArray[Any],
    rows: int,
    file: FileEntry,
) -> None:
    """Writes values to their places; the first record decides their number."""
    width = values.shape[-1]
    if name not in whole:
        whole[name] = np.empty((rows, width), values.dtype.newbyteorder("="))
    expected = whole[name].shape[1]
    if width != expected:
        raise DataError(
            f"feature {name!r} of {file.url} has {expected} values in one record and "
            f"{width} in another. Expected the same number in all records. "
            "Pad the lists when the file is written."
        )
    whole[name][records] = values
