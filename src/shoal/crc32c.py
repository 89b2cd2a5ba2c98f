"""The checksum of TFRecord files: a masked CRC-32C, which TensorBoard reads as well.

References:
    CRC-32C: RFC 3720, appendix B.4; the mask: tensorflow/core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import google_crc32c

_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Returns the masked CRC-32C of some bytes.

    A checksum of data that contain checksums is weak, so the mask rotates and shifts
    it.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e4'
    """
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _DELTA) & 0xFFFFFFFF
