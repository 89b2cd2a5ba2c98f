"""Writes files of each format, the way their own libraries do."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.crc32c import masked_crc32c


def parquet_bytes(columns: Mapping[str, Any], **options: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), out, **options)
    return out.getvalue()


def arrow_bytes(columns: Mapping[str, Any], rows: int = 1000, **options: Any) -> bytes:
    """A file of record batches of so many rows."""
    import pyarrow as pa

    out = io.BytesIO()
    table = pa.table(dict(columns))
    with pa.ipc.new_file(
        out, table.schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table, max_chunksize=rows)
    return out.getvalue()


def csv_bytes(columns: Mapping[str, Any]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def npz_bytes(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def npy_bytes(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def image_bytes(pixels: Any, form: str = "PNG") -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features: Mapping[str, Any]) -> bytes:
    """A serialized tf.train.Example."""
    entries = b""
    for name, values in features.items():
        if isinstance(values, bytes):
            kind = field(1, field(1, values))
        else:
            array = np.atleast_1d(values)
            if array.dtype.kind == "f":
                kind = field(2, field(1, array.astype("<f4").tobytes()))
            else:
                kind = field(3, field(1, b"".join(map(varint, array.tolist()))))
        entries += field(1, field(1, name.encode()) + field(2, kind))
    return field(1, entries)


def checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


def record(data: bytes) -> bytes:
    """A record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


def tfrecord_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(record(example(row)) for row in rows)
