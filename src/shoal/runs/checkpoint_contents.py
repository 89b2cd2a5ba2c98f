"""The content of a checkpoint, and its form as bytes: JSON, numbers and blobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast, final

import numpy as np
import numpy.typing as npt

from shoal.errors import CheckpointError, a_kind
from shoal.runs.checkpoint_files import Damage, Part, check_size, read_part
from shoal.runs.checkpoint_manifest import (
    NUMBERS,
    ArrayPart,
    CheckpointNumber,
    Manifest,
)
from shoal.runs.folder import Folder

Bytes: TypeAlias = npt.NDArray[np.uint8]
Writer: TypeAlias = Callable[[memoryview], Part]
"""Stores bytes under a name of its choice and returns their description."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """The state of a run at one moment, as plain values.

    Args:
        number: Number that grows with each checkpoint of a writer, 0 or more.
        document: JSON: mappings with text as keys, lists, text, numbers, booleans,
            None. A tuple comes back as a list. NaN and infinity are kept.
        arrays: Booleans, integers, floats, complex numbers of any shape. They must
            not change while they are saved.
        blobs: Opaque bytes, such as a worker's optimizer state.

    Example:
        >>> taken = Checkpoint(number=3, arrays={"center": np.ones(2)})
        >>> taken.size_bytes
        16
    """

    number: int
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arrays: Mapping[str, npt.NDArray[Any]] = field(
        default_factory=dict[str, npt.NDArray[Any]]
    )
    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays and blobs."""
        arrays = sum(array.nbytes for array in self.arrays.values())
        return arrays + sum(len(blob) for blob in self.blobs.values())


def check(checkpoint: Checkpoint) -> bytes:
    """Refuses values that would not come back unchanged; returns the document's bytes.

    Raises:
        CheckpointError: The number is negative, or a value is of another kind.
    """
    if checkpoint.number < 0:
        raise _refused(checkpoint, "its number is negative", "0 or more")
    for name, array in checkpoint.arrays.items():
        if array.dtype.kind not in NUMBERS:
            raise _refused(
                checkpoint,
                f"arrays[{name!r}] has dtype={str(array.dtype)!r}",
                "booleans, integers, floats or complex numbers",
            )
    odd = _odd_key(checkpoint.document, "document")
    if odd:
        raise _refused(checkpoint, f"{odd} is not text", "keys that JSON keeps")
    try:
        return json.dumps(checkpoint.document).encode()
    except (TypeError, ValueError, RecursionError) as error:
        what = f"its document is not JSON ({error})"
        raise _refused(checkpoint, what, "plain JSON values") from error


def pack(
    checkpoint: Checkpoint, document: bytes, place: CheckpointNumber, write: Writer
) -> Manifest:
    """Writes every part of a checkpoint and returns the manifest that names them."""
    return Manifest(
        place=place,
        document=write(memoryview(document)),
        arrays={
            name: ArrayPart(
                part=write(_bytes_of(array).data),
                dtype=array.dtype.str,
                shape=array.shape,
            )
            for name, array in checkpoint.arrays.items()
        },
        blobs={
            name: write(memoryview(blob)) for name, blob in checkpoint.blobs.items()
        },
    )


def unpack(folder: Folder, manifest: Manifest) -> Checkpoint:
    """Reads every part of a checkpoint and checks it.

    Raises:
        Damage: A part is missing or has changed.
        OSError: The storage cannot be reached.
    """
    return Checkpoint(
        number=manifest.place.number,
        document=_document(_read("document", folder, manifest.document)),
        arrays={
            name: _read(f"arrays[{name!r}]", folder, array.part)
            .view(array.dtype)
            .reshape(array.shape)
            for name, array in manifest.arrays.items()
        },
        blobs={
            name: _read(f"blobs[{name!r}]", folder, part).tobytes()
            for name, part in manifest.blobs.items()
        },
    )


def _document(content: Bytes) -> dict[str, Any]:
    try:
        found = json.loads(content.tobytes())
    except (ValueError, RecursionError) as error:
        raise Damage(f"document: it is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise Damage(f"document: {a_kind(found)} stands where an object does")
    return cast("dict[str, Any]", found)


def _read(what: str, folder: Folder, part: Part) -> Bytes:
    try:
        check_size(folder, part)
        content = np.empty(part.size_bytes, np.uint8)
        read_part(folder, part, content.data)
    except Damage as damage:
        raise Damage(f"{what}: {damage}") from damage
    return content


def _bytes_of(array: npt.NDArray[Any]) -> Bytes:
    """Returns an array's bytes in C order, copied only if it has another order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _odd_key(value: object, where: str) -> str:
    """Returns the place of a key that JSON would turn into text, "" for none."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                return f"the key {key!r} in {where}"
            if odd := _odd_key(inner, f"{where}[{key!r}]"):
                return odd
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[object]", value):
            if odd := _odd_key(inner, f"{where}[]"):
                return odd
    return ""


def _refused(checkpoint: Checkpoint, what: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {checkpoint.number} cannot be kept: {what}. "
        f"Expected {expected}. "
        "Put opaque values into its blobs as bytes."
    )
