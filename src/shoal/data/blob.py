"""A tree of arrays as one buffer, which workers map instead of copying.

    offset 0    magic, 8 bytes
           8    length of the head, 8 bytes, little endian
          16    head: JSON with the tree, and shape, dtype and offset of each array
           ...  arrays in C order, each at a multiple of 64 bytes

Arrays start at multiples of 64 so that backends may use them in place
(XLA takes aligned host memory without a copy). Nothing in it is ever executed.
"""

from __future__ import annotations

import json
import mmap
from typing import Any, TypeAlias

import numpy as np

from shoal.data import trees
from shoal.data.arrays import Column, dtype_of
from shoal.errors import DataError

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

MAGIC = b"shoal\x00d1"
ALIGNMENT = 64
_PREFIX = len(MAGIC) + 8


def blob_size(columns: trees.Tree) -> int:
    """Counts the bytes that a tree of columns takes.

    Example:
        >>> ones = Column(values=np.ones((2, 3)), dtype=np.dtype("f4"))
        >>> blob_size({"a": ones}) % 64
        24
    """
    return _layout(columns)[1]


def write_blob(columns: trees.Tree, out: Buffer) -> None:
    """Writes a tree of columns into a writable buffer, casting on the way."""
    head, size = _layout(columns)
    target = np.frombuffer(out, np.uint8, count=size)
    target[:_PREFIX] = bytearray(MAGIC + len(head).to_bytes(8, "little"))
    target[_PREFIX : _PREFIX + len(head)] = bytearray(head)
    entries: list[dict[str, Any]] = json.loads(head)["arrays"]
    for entry, column in zip(entries, trees.leaves(columns), strict=True):
        np.copyto(_view(target, entry), column.values, casting="unsafe")


def read_blob(blob: Buffer) -> trees.Tree:
    """Returns the tree of columns in a blob: read-only views, no copies.

    Raises:
        DataError: The blob is truncated, or has another format.

    Example:
        >>> tree = ({"a": Column(values=np.arange(3), dtype=np.dtype("i8"))},)
        >>> blob = bytearray(blob_size(tree))
        >>> write_blob(tree, blob)
        >>> read_blob(blob)[0]["a"].values
        array([0, 1, 2])
    """
    whole = np.frombuffer(blob, np.uint8)
    whole.flags.writeable = False
    prefix = whole[:_PREFIX].tobytes()
    length = int.from_bytes(prefix[len(MAGIC) :], "little")
    if prefix[: len(MAGIC)] != MAGIC or _PREFIX + length > len(whole):
        raise _damaged(len(whole))
    head: dict[str, Any] = json.loads(whole[_PREFIX : _PREFIX + length].tobytes())
    if head["size"] > len(whole):
        raise _damaged(len(whole))
    views = [_view(whole, entry) for entry in head["arrays"]]
    found = [Column(values=view, dtype=view.dtype) for view in views]
    return trees.map_leaves(lambda place: found[place], trees.from_json(head["tree"]))


def _layout(columns: trees.Tree) -> tuple[bytes, int]:
    """Returns the head, and the size of the blob with it."""
    found: list[Column] = trees.leaves(columns)
    places = iter(range(len(found)))
    plain = _described(trees.map_leaves(lambda _: next(places), columns))
    # Offsets depend on the head's length and the head on the offsets: it is
    # written once with the widest ones, and padded to that length.
    widest = len(_head(plain, found, 10**15)[0])
    head, size = _head(plain, found, _aligned(_PREFIX + widest))
    return head.ljust(widest), size


def _head(plain: Any, columns: list[Column], start: int) -> tuple[bytes, int]:
    """Returns the head for arrays that begin at `start`, and their end."""
    entries: list[dict[str, Any]] = []
    stop = start
    for column in columns:
        start = _aligned(stop)
        shape, dtype = list(column.values.shape), column.dtype.name
        entries.append({"shape": shape, "dtype": dtype, "offset": start})
        stop = start + column.size_bytes
    head = {"tree": plain, "arrays": entries, "size": stop}
    return json.dumps(head).encode(), stop


def _described(tree: trees.Tree) -> Any:
    try:
        return trees.to_json(tree)
    except TypeError as error:
        raise DataError(
            f"a dict of inputs or targets has the key {error}. "
            "Expected the names of the model's inputs or outputs as keys. "
            "Rename them to strings."
        ) from error


def _view(whole: np.ndarray[Any, np.dtype[np.uint8]], entry: dict[str, Any]) -> Any:
    """Returns one array of a blob as a view."""
    dtype = dtype_of(entry["dtype"])
    stop = entry["offset"] + dtype.itemsize * int(np.prod(entry["shape"], dtype=int))
    return whole[entry["offset"] : stop].view(dtype).reshape(entry["shape"])


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _damaged(size: int) -> DataError:
    return DataError(
        f"{size:,} bytes of shared data cannot be read. "
        "Expected the blob that the driver wrote, whole. "
        "Start the run again; if it repeats, look for a full disk or /dev/shm."
    )
