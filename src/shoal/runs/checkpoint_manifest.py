"""Manifests: the one small file that makes a set of files a checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast, final

import numpy as np

from shoal.errors import CheckpointError, a_kind
from shoal.runs.checkpoint_files import Damage, Part

FORMAT = 1
PARTS = "parts"

NUMBERS = "biufc"
"""NumPy's kinds that bytes define completely: booleans, integers, floats, complex."""

MOST = 1 << 62
MOST_DIMENSIONS = 64  # limit of a NumPy array

_DTYPE = re.compile(rf"[<>|][{NUMBERS}]\d{{1,2}}")
_MANIFEST = re.compile(r"(\d{6,})-(\d{12,})\.manifest")
_PART = re.compile(r"\.?(\d{6,})-(\d{12,})-[0-9a-f]+-\d+-\d+\.part(\.partial)?")
_LEFTOVER = re.compile(r"\.(\d{6,})-(\d{12,})\.manifest\.partial")


@final
@dataclass(frozen=True, kw_only=True, order=True)
class CheckpointNumber:
    """Position of a checkpoint in the order of all of a run.

    The writer's generation comes first: checkpoints of a replaced writer
    are older than all of its successor's, whatever their numbers.

    Args:
        generation: Generation of the writer, from 1.
        number: Number of the checkpoint, from 0.

    Example:
        >>> later = CheckpointNumber(generation=2, number=7)
        >>> CheckpointNumber(generation=1, number=99) < later
        True
        >>> later.manifest
        '000002-000000000007.manifest'
    """

    generation: int
    number: int

    @property
    def manifest(self) -> str:
        """Returns the name of its manifest."""
        return f"{self.generation:06}-{self.number:012}.manifest"

    def part(self, writer: str, attempt: int, index: int) -> str:
        """Returns a file name that no other writer or attempt uses."""
        start = f"{self.generation:06}-{self.number:012}"
        return f"{PARTS}/{start}-{writer}-{attempt:04}-{index:04}.part"


@final
@dataclass(frozen=True, kw_only=True)
class ArrayPart:
    """An array's file, and the type of its bytes.

    Args:
        part: The file.
        dtype: NumPy's short form, such as "<f4".
        shape: Its dimensions; the bytes are in C order.
    """

    part: Part
    dtype: str
    shape: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint.

    Args:
        place: Position among the other checkpoints.
        document: The file with the JSON document.
        arrays: One for each array, by name.
        blobs: One for each blob, by name.
    """

    place: CheckpointNumber
    document: Part
    arrays: Mapping[str, ArrayPart]
    blobs: Mapping[str, Part]

    @property
    def parts(self) -> list[Part]:
        """Returns all its files."""
        arrays = [array.part for array in self.arrays.values()]
        return [self.document, *arrays, *self.blobs.values()]


def encode(manifest: Manifest) -> bytes:
    """Returns two lines of JSON: a checksum, and the checked content."""
    body = {"format": FORMAT, **asdict(manifest)}
    return _seal(json.dumps(body).encode())


def decode(content: bytes, place: CheckpointNumber) -> Manifest:
    """Reads a manifest; everything in it is covered by its checksum.

    Args:
        content: Content of the manifest's file.
        place: Position in the file's name.

    Raises:
        Damage: It is truncated, changed, or has the name of another.
        CheckpointError: Another version of Shoal wrote it.
    """
    body = content.partition(b"\n")[2].removesuffix(b"\n")
    if _seal(body) != content:
        raise Damage(f"{place.manifest} is cut off or was changed")
    try:
        fields = _mapping(json.loads(body))
        _check_format(fields["format"], place)
        written = _mapping(fields["place"])
        if (
            CheckpointNumber(**{name: _whole(n) for name, n in written.items()})
            != place
        ):
            raise Damage(f"{place.manifest} is a copy of another manifest")
        return Manifest(
            place=place,
            document=_part(fields["document"]),
            arrays={name: _array(a) for name, a in _mapping(fields["arrays"]).items()},
            blobs={name: _part(one) for name, one in _mapping(fields["blobs"]).items()},
        )
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise Damage(
            f"{place.manifest} is not a manifest of Shoal's ({error})"
        ) from error


def places(names: Iterable[str]) -> list[CheckpointNumber]:
    """Returns the positions of the manifests among file names, newest first.

    Example:
        >>> found = places(["000001-000000000007.manifest", "parts", "owners"])
        >>> [place.number for place in found]
        [7]
    """
    found = (_MANIFEST.fullmatch(name) for name in names)
    return sorted((_place(match) for match in found if match), reverse=True)


def place_of_part(name: str) -> CheckpointNumber | None:
    """Returns the checkpoint for which a file in `parts` was written, if any."""
    match = _PART.fullmatch(name)
    return _place(match) if match else None


def place_of_leftover(name: str) -> CheckpointNumber | None:
    """Returns the checkpoint of a partial manifest, if it is one."""
    match = _LEFTOVER.fullmatch(name)
    return _place(match) if match else None


def _place(match: re.Match[str]) -> CheckpointNumber:
    return CheckpointNumber(generation=int(match[1]), number=int(match[2]))


def _seal(body: bytes) -> bytes:
    head = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode()
    return head + b"\n" + body + b"\n"


def _check_format(found: object, place: CheckpointNumber) -> None:
    if _whole(found) != FORMAT:
        raise CheckpointError(
            f"checkpoint {place.number} has another format: "
            f"format={found!r} ({place.manifest}). "
            f"Expected format={FORMAT}, the one this version of Shoal reads. "
            "Resume with the version of Shoal that wrote it."
        )


def _mapping(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"{a_kind(found)} stands where an object belongs")
    return cast("dict[str, Any]", found)


def _whole(found: object) -> int:
    """Returns a whole number that counts something; refuses booleans and fractions."""
    if type(found) is not int or not 0 <= found < MOST:
        raise TypeError(f"{found!r:.40} stands where a whole number belongs")
    return found


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{a_kind(found)} stands where a text belongs")
    return found


def _part(found: object) -> Part:
    fields = _mapping(found)
    part = Part(
        name=_text(fields["name"]),
        size_bytes=_whole(fields["size_bytes"]),
        sha256=_text(fields["sha256"]),
    )
    # The folder may be another user's: a manifest must not lead out of it.
    if place_of_part(part.name.removeprefix(f"{PARTS}/")) is None:
        raise Damage(
            f"its manifest names a file that is not a part: {part.name!r:.200}"
        )
    return part


def _array(found: object) -> ArrayPart:
    fields = _mapping(found)
    shape = fields["shape"]
    if not isinstance(shape, list):
        raise TypeError(f"{a_kind(shape)} stands where a shape belongs")
    sizes = tuple(map(_whole, cast("list[object]", shape)))
    array = ArrayPart(
        part=_part(fields["part"]), dtype=_text(fields["dtype"]), shape=sizes
    )
    # Verified before anything is allocated, and never an array of Python objects.
    is_number = _DTYPE.fullmatch(array.dtype) is not None
    size = math.prod(sizes) * np.dtype(array.dtype).itemsize if is_number else -1
    if len(sizes) > MOST_DIMENSIONS or size != array.part.size_bytes:
        raise Damage(f"{array.part.name} does not hold {array.dtype:.40}{sizes[:8]}")
    return array
