"""The wire format of `tf.train.Example`, read without TensorFlow.

It is three nested messages: Example.features, a map of names to Feature, and in each
Feature one list of bytes, floats or whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Kind: TypeAlias = Literal["bytes", "float", "int64", "nothing"]
Feature: TypeAlias = tuple[Kind, npt.NDArray[Any]]

Span: TypeAlias = tuple[Kind, int, int]
"""Kind of a list, its first byte, and the byte after its last."""

KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
EMPTY = np.empty(0, np.float32)


def parse_example(data: bytes) -> dict[str, Feature]:
    r"""Returns the features of one serialized `tf.train.Example`.

    For lists of bytes only the kind is returned.

    Args:
        data: Bytes of one record.

    Raises:
        ValueError: It is truncated, or not an Example.

    Example:
        >>> parse_example(b"\n\x0c\n\n\n\x01a\x12\x05\x1a\x03\n\x01\x07")
        {'a': ('int64', array([7]))}
    """
    return {
        name: _values(kind, data, start, stop)
        for name, (kind, start, stop) in feature_spans(data).items()
    }


def feature_spans(data: bytes) -> dict[str, Span]:
    r"""Returns the kind of each feature's list, and the bytes it occupies.

    Raises:
        ValueError: It is truncated, or not an Example.

    Example:
        >>> feature_spans(b"\n\x0c\n\n\n\x01a\x12\x05\x1a\x03\n\x01\x07")
        {'a': ('int64', 11, 14)}
    """
    found: dict[str, Span] = {}
    for number, start, stop in _fields(data, 0, len(data)):
        if number != 1:
            continue
        for entry, first, last in _fields(data, start, stop):
            if entry == 1:
                name, span = _entry(data, first, last)
                found[name] = span
    return found


def _entry(data: bytes, start: int, stop: int) -> tuple[str, Span]:
    name = ""
    span: Span = "nothing", start, start
    for number, first, last in _fields(data, start, stop):
        if number == 1:
            name = data[first:last].decode()
        elif number == 2:
            for kind, inner, end in _fields(data, first, last):
                span = KINDS[kind], inner, end
    return name, span


def packed_span(data: bytes, span: Span) -> tuple[int, int] | None:
    """Returns the span of packed numbers; None if each number has a tag of its own."""
    inner = list(_fields(data, span[1], span[2]))
    return inner[0][1:] if len(inner) == 1 else None


def _values(kind: Kind, data: bytes, start: int, stop: int) -> Feature:
    if kind in ("bytes", "nothing"):
        return kind, EMPTY
    parts: list[npt.NDArray[Any]] = []
    for _, first, last in _fields(data, start, stop):
        if kind == "float":
            size, odd = divmod(last - first, 4)
            if odd:
                raise ValueError(
                    "a list of floats has a number of bytes that is not a multiple of 4"
                )
            parts.append(np.frombuffer(data, "<f4", size, first))
        else:
            parts.append(varints(data, first, last))
    empty = np.empty(0, np.float32 if kind == "float" else np.int64)
    return kind, parts[0] if len(parts) == 1 else np.concatenate([empty, *parts])


def varints(data: bytes, start: int, stop: int) -> npt.NDArray[np.int64]:
    r"""Decodes numbers of 7 bits a byte, the highest bit meaning that more follow.

    Example:
        >>> varints(b"\x01\xac\x02" + b"\xff" * 9 + b"\x01", 0, 13)
        array([  1, 300,  -1])
    """
    raw = np.frombuffer(data, np.uint8, stop - start, start)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a list of whole numbers is cut short")
    firsts = np.concatenate([[0], ends[:-1] + 1])
    shifts = np.arange(len(raw)) - np.repeat(firsts, ends - firsts + 1)
    if shifts.max() > 9:
        raise ValueError("a whole number has more than ten bytes")
    bits = (raw & 0x7F).astype(np.uint64) << (7 * shifts).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, firsts).view(np.int64)


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields (number, start, stop) of the fields of a message."""
    while start < stop:
        tag, start = _varint(data, start)
        wire = tag & 7
        begin = start
        if wire == LENGTH:
            size, begin = _varint(data, start)
            start = begin + size
        elif wire == VARINT:
            _, start = _varint(data, start)
        elif wire in (FIXED32, FIXED64):
            start += 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} is no part of a tf.train.Example")
        if start > stop:
            raise ValueError("a message is cut short")
        yield tag >> 3, begin, start


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if start >= len(data) or shift > 63:
            raise ValueError("a message is cut short")
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7
