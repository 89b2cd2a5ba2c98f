"""Many records at once: records of one layout that differ in their numbers alone.

Parsing records one by one costs ten microseconds and more a record. Most files
hold records of few layouts: of each layout, the first record is parsed, and the others
are compared with it and cut at the same places, all in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.data.files.example import feature_spans, packed_span, varints

Places: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

FEW = 8
"""Minimum number of records of one length for which this pays off."""
SLAB_BYTES = 8 << 20
"""Number of records that are compared at a time."""


def alike(
    data: bytes, starts: Places, lengths: Places, columns: Sequence[str]
) -> Iterator[tuple[Places, dict[str, npt.NDArray[Any]]]]:
    """Yields indices of records, and the columns of these: (records, values).

    Records that are not like others are left out.

    Args:
        data: All records.
        starts: Start of each record.
        lengths: Length of each record.
        columns: Features to read, floats or whole numbers.

    Raises:
        ValueError: A record is not a tf.train.Example.
    """
    raw = np.frombuffer(data, np.uint8)
    for length in np.unique(lengths):
        which = np.flatnonzero(lengths == length)
        step = max(FEW, SLAB_BYTES // max(1, int(length)))
        for begin in range(0, len(which), step):
            some = which[begin : begin + step]
            if len(some) >= FEW:
                table = raw[starts[some][:, None] + np.arange(length)]
                is_alike, values = _cut(table, columns)
                if values:
                    yield some[is_alike], values


def _cut(
    table: Bytes, columns: Sequence[str]
) -> tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[Any]]]:
    """Cuts records, one a row of `table`, at the places of the first one's numbers."""
    first = table[0].tobytes()
    spans = feature_spans(first)
    is_fixed = np.ones(table.shape[1], bool)
    places: dict[str, tuple[int, int]] = {}
    for name, span in spans.items():
        where = span[1], span[2]
        if name in columns:
            packed = packed_span(first, span)
            if packed is None or span[0] not in ("float", "int64"):
                return np.zeros(len(table), bool), {}
            where = places[name] = packed
        is_fixed[where[0] : where[1]] = False
    if len(places) < len(columns):
        return np.zeros(len(table), bool), {}
    is_alike = (table[:, is_fixed] == table[0, is_fixed]).all(axis=1)
    for name, (start, stop) in places.items():
        if spans[name][0] == "int64":
            is_end = table[:, start:stop] < 0x80
            counts = is_end.sum(axis=1)
            is_alike &= (counts == counts[0]) & is_end[:, -1:].all(axis=1)
    values: dict[str, npt.NDArray[Any]] = {}
    for name, (start, stop) in places.items():
        flat = table[is_alike, start:stop].tobytes()
        numbers = (
            np.frombuffer(flat, "<f4")
            if spans[name][0] == "float"
            else varints(flat, 0, len(flat))
        )
        values[name] = numbers.reshape(int(is_alike.sum()), -1)
    return is_alike, values
