"""Changes that callbacks made in the model beside its trainable weights. Pure.

The driver counts changes with serial numbers, and keeps the newest of each variable.
The server sends each worker those that it lacks. The server has the statistics itself:
it changes them at once, and a message that was computed before its sender got a change
does not restore the old value.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from shoal.backends.base import Backend
from shoal.models.attributes import write_attributes
from shoal.models.closed_over import write_closed_over
from shoal.vectors import Vector

STATISTICS, FIXED, OPTIMIZER = "statistics", "fixed", "optimizer"
CLOSED_OVER, ATTRIBUTE = "closed_over", "attribute"
"""The place of a variable: an offset in the statistics, a number among the other
variables of the model that are not trained, a number among those of the optimizer, a
path among those that code of the model closes over. An attribute is a plain value of an
object of the model."""

MARK = b"shoal: changes\0\0"
STAMP = struct.Struct("<Q16s")
WORDS = struct.Struct("<Q")


class Key(NamedTuple):
    """Identifies what was changed.

    Args:
        kind: One of the kinds above.
        place: Number, or path.
    """

    kind: str
    place: str

    @property
    def number(self) -> int:
        """The place of a variable that has a number."""
        return int(self.place)


class Change(NamedTuple):
    """One variable's newest value.

    Args:
        serial: Number of the change; later ones are higher.
        value: Value in the dtype of the variable; for an attribute, JSON text as bytes.
    """

    serial: int
    value: npt.NDArray[Any]


@final
@dataclass
class Changes:
    """The newest change of each variable.

    Args:
        found: Changes by key.

    Example:
        >>> changes = Changes()
        >>> changes.add({Key(FIXED, "2"): np.float32(0.5)})
        >>> again = Changes.read(changes.pack())
        >>> again.serial, again.found[Key(FIXED, "2")].value
        (1, array(0.5, dtype=float32))
        >>> list(again.after(1).found)
        []
    """

    found: dict[Key, Change] = field(default_factory=dict[Key, Change])

    @property
    def serial(self) -> int:
        """Number of the newest change, 0 for none."""
        return max((change.serial for change in self.found.values()), default=0)

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, values: dict[Key, Any]) -> None:
        """Adds changes of now, under the next serial number."""
        serial = self.serial + 1
        for key, value in values.items():
            self.found[key] = Change(serial, np.array(value))

    def absorb(self, others: Changes) -> Changes:
        """Adds changes that are newer than all of these; returns the added ones."""
        # Numbers grow with time: a change that is not newer is known here.
        fresh = others.after(self.serial)
        self.found.update(fresh.found)
        return fresh

    def after(self, serial: int, statistics: int | None = None) -> Changes:
        """Returns changes with higher numbers.

        Args:
            serial: The newest known number.
            statistics: The newest known number of statistics, None for `serial`.
        """
        least = serial if statistics is None else statistics
        return Changes(
            {
                key: change
                for key, change in self.found.items()
                if change.serial > (least if key.kind == STATISTICS else serial)
            }
        )

    def since(self, serial: int) -> Changes:
        """Returns changes that a worker's state with this number lacks.

        Variables that code closes over are no part of a state.
        """
        beside = (CLOSED_OVER, ATTRIBUTE)
        return Changes(
            {
                key: change
                for key, change in self.found.items()
                if change.serial > serial or key.kind in beside
            }
        )

    def without(self, kind: str) -> Changes:
        """Returns all but those of one kind."""
        return Changes({k: c for k, c in self.found.items() if k.kind != kind})

    def only(self, kind: str) -> Changes:
        """Returns those of one kind."""
        return Changes({k: c for k, c in self.found.items() if k.kind == kind})

    def by_number(self, kind: str) -> dict[int, npt.NDArray[Any]]:
        """Values of a kind whose variables have numbers."""
        return {key.number: value for key, value in self.of(kind)}

    def of(self, kind: str) -> Iterator[tuple[Key, npt.NDArray[Any]]]:
        """Keys of one kind, with their values."""
        return ((k, c.value) for k, c in self.found.items() if k.kind == kind)

    def write_statistics(self, out: Vector) -> None:
        """Writes the values of statistics into a vector."""
        for key, value in self.of(STATISTICS):
            out[key.number : key.number + value.size] = value.reshape(-1)

    # ---------------------------------------------------------------- as bytes

    def pack(self) -> bytes:
        """Returns these as bytes, a table first; empty for none."""
        if not self.found:
            return b""
        arrays = [np.ascontiguousarray(change.value) for change in self.found.values()]
        table = [
            [*key, change.serial, str(array.dtype), list(change.value.shape)]
            for (key, change), array in zip(self.found.items(), arrays, strict=True)
        ]
        head = json.dumps(table).encode()
        return b"".join(
            [WORDS.pack(len(head)), head, *(array.tobytes() for array in arrays)]
        )

    @classmethod
    def read(cls, data: bytes | memoryview) -> Changes:
        """The inverse of `pack`.

        Raises:
            ValueError: `pack` did not make it.
        """
        if not len(data):
            return cls()
        try:
            return cls(_read(memoryview(data)))
        except WRONG as error:
            raise ValueError(f"no changes ({error!s:.200})") from error


WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
         ValueError, struct.error)  # fmt: skip
"""Errors raised for bytes that are no changes."""


def _read(view: memoryview) -> dict[Key, Change]:
    (size,) = WORDS.unpack_from(view)
    at = WORDS.size + size
    found: dict[Key, Change] = {}
    for kind, place, serial, dtype, shape in json.loads(bytes(view[WORDS.size : at])):
        kept = _dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        end = at + count * kept.itemsize
        # Copied: a server receives the next frame into the same memory.
        array = np.frombuffer(bytes(view[at:end]), kept).reshape(shape)
        found[Key(str(kind), str(place))] = Change(int(serial), array)
        at = end
    if at != len(view):
        raise ValueError(f"changes of {at:,} bytes in {len(view):,}")
    return found


def _dtype(name: str) -> np.dtype[Any]:
    """A dtype by name; NumPy knows some only after a library registers them."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def write(backend: Backend, changes: Changes) -> None:
    """Writes changed values into a worker's model and its code.

    Statistics are left out: they are loaded with the weights.
    """
    backend.change(changes.by_number(FIXED), changes.by_number(OPTIMIZER))
    closed_over = {key.place: value for key, value in changes.of(CLOSED_OVER)}
    if closed_over:
        write_closed_over(backend.model, closed_over)
    attributes = {key.place: value for key, value in changes.of(ATTRIBUTE)}
    if attributes:
        write_attributes(backend.model, attributes)


# ---------------------------------------------------------- a worker's own state


def stamped(blob: bytes, serial: int) -> bytes:
    """A worker's state with the number of its newest change; 0 adds no mark.

    Example:
        >>> unstamped(stamped(b"state", 3)), unstamped(b"state")
        ((b'state', 3), (b'state', 0))
    """
    return blob + STAMP.pack(serial, MARK) if serial and blob else blob


def unstamped(blob: bytes) -> tuple[bytes, int]:
    """The inverse of `stamped`."""
    if not blob.endswith(MARK):
        return blob, 0
    serial, _ = STAMP.unpack(blob[-STAMP.size :])
    return blob[: -STAMP.size], int(serial)
