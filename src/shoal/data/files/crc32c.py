"""CRC-32C (Castagnoli) of many pieces of bytes at once, in NumPy.

A CRC is linear: bytes are cut in lanes of equal length, padded with zeros in front,
which do not change it; all lanes go in step, and are then put together.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[Any]
"""Of 32 bits."""
Places = npt.NDArray[np.int64]

LANE = 256
POLYNOMIAL = 0x82F63B78
MASK_DELTA = 0xA282EAD8
ONES = 0xFFFFFFFF


def masked_crc32c(
    data: npt.NDArray[np.uint8], starts: Places, lengths: Places
) -> Words:
    """Returns the masked CRC-32C of pieces of `data`, as TFRecord files store it.

    Args:
        data: All bytes.
        starts: Where pieces begin.
        lengths: Of the pieces.

    Example:
        >>> text = np.frombuffer(b"123456789", np.uint8)
        >>> crc = unmasked(masked_crc32c(text, np.array([0]), np.array([9])))
        >>> hex(crc[0])
        '0xe3069283'
    """
    crc = np.empty(len(starts), np.uint32)
    lanes = -(-lengths // LANE)
    for count in np.unique(lanes):
        which = np.flatnonzero(lanes == count)
        # Some MB at a time: small enough for the processor's caches.
        step = max(1, (4 << 20) // max(1, int(count) * LANE))
        for begin in range(0, len(which), step):
            some = which[begin : begin + step]
            crc[some] = _equal_lanes(data, starts[some], lengths[some], int(count))
    crc = crc ^ np.uint32(ONES)
    return ((crc >> 15) | (crc << 17)) + np.uint32(MASK_DELTA)


def unmasked(crc: Words) -> Words:
    """Returns the plain CRC of a masked one."""
    turned = crc - np.uint32(MASK_DELTA)
    return (turned >> 17) | (turned << 15)


def _equal_lanes(
    data: npt.NDArray[np.uint8], starts: Places, lengths: Places, lanes: int
) -> Words:
    """Pieces that take the same number of lanes."""
    pieces = len(starts)
    if lanes == 0:
        return np.full(pieces, ONES, np.uint32)
    width = lanes * LANE
    padded = np.zeros((pieces, width), np.uint8)
    for row, (start, length) in enumerate(
        zip(starts.tolist(), lengths.tolist(), strict=True)
    ):
        padded[row, width - length :] = data[start : start + length]
    # A register that starts with ones is one that starts with zeros, if the first
    # four bytes are turned over; of shorter pieces some ones are left at the end.
    rows = np.arange(pieces)
    for place in range(4):
        has = lengths > place
        padded[rows[has], (width - lengths + place)[has]] ^= 0xFF
    ones = np.uint64(ONES) >> (8 * np.minimum(lengths, 4)).astype(np.uint64)
    table = _tables()
    steps = padded.reshape(pieces * lanes, LANE).view("<u2").T.copy()
    crc = np.zeros(pieces * lanes, np.uint32)
    for pair in steps:
        crc = table[(crc ^ pair) & 0xFFFF] ^ (crc >> 16)
    each = crc.reshape(pieces, lanes)
    whole = each[:, 0]
    shift = _shift()
    for lane in range(1, lanes):
        whole = _apply(shift, whole) ^ each[:, lane]
    return whole ^ ones.astype(np.uint32)


@cache
def _tables() -> Words:
    """The register after 16 zero bits, from its lower 16 bits."""
    crc = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(POLYNOMIAL), crc >> 1)
    return crc.astype(np.uint32)


@cache
def _shift() -> Words:
    """What a lane of zeros makes of each byte of the register: shape (4, 256)."""
    places = np.array([[0], [8], [16], [24]], np.uint32)
    crc = np.arange(256, dtype=np.uint32)[None] << places
    table = _tables()
    for _ in range(LANE // 2):
        crc = table[crc & 0xFFFF] ^ (crc >> 16)
    return crc


def _apply(shift: Words, crc: Words) -> Words:
    return (
        shift[0][crc & 0xFF]
        ^ shift[1][(crc >> 8) & 0xFF]
        ^ shift[2][(crc >> 16) & 0xFF]
        ^ shift[3][crc >> 24]
    )
