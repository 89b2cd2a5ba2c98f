"""Digests of values that a user's code makes, to compare two copies.

This file decides what two copies of a data set are compared by. Large arrays and long
lists are sampled, so that a digest costs little compared with reading the data.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast, final

import cloudpickle
import numpy as np

from shoal.data.tensors import as_arrays, is_a

MOST_ITEMS = 1 << 16
"""Number of items of an array or list that are read; of more, evenly spaced ones."""
MOST_DEPTH = 32
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def digest(value: Any) -> str:
    """Returns a digest of a value, by its content and not by its address.

    Sets are equal whatever their order; generators of random numbers are equal when
    their next numbers are.

    Args:
        value: Value of any type.

    Example:
        >>> digest({"a": np.arange(3)}) == digest({"a": np.arange(3)})
        True
        >>> digest(np.random.default_rng(1)) == digest(np.random.default_rng(2))
        False
    """
    return _Walk().of(value, 0).hex()


@final
class _Walk:
    """Walks through a value once; an object that is met again is not walked again."""

    def __init__(self) -> None:
        # Kept alive, so that no id is reused.
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any, depth: int) -> bytes:
        """Returns the digest of a part."""
        kind = type(value)
        if isinstance(value, (*_PLAIN, np.generic)):
            return _hash(kind.__name__, repr(value).encode())
        if id(value) in self._seen or depth > MOST_DEPTH:
            number = self._seen.get(id(value), (-1, None))[0]
            return _hash("again", str(number).encode())
        self._seen[id(value)] = len(self._seen), value
        if is_a(value, "torch", "Tensor"):
            value = as_arrays(value)
        if isinstance(value, np.ndarray):
            return self._array(cast("np.ndarray[Any, Any]", value), depth)
        parts = self._parts(value)
        if parts is None:
            return _hash(kind.__qualname__, _pickled(value))
        found = [self.of(part, depth + 1) for part in parts]
        if isinstance(value, AbstractSet):
            found.sort()
        return _hash(kind.__qualname__, *found)

    def _array(self, array: np.ndarray[Any, Any], depth: int) -> bytes:
        head = f"{array.dtype} {array.shape}"
        step = -(-array.size // MOST_ITEMS) or 1
        some = np.ascontiguousarray(array.reshape(-1)[::step])
        if array.dtype.hasobject:
            return _hash(head, *(self.of(item, depth + 1) for item in some.tolist()))
        return _hash(head, some.tobytes())

    def _parts(self, value: Any) -> list[Any] | None:
        """Returns the parts of a value; None if they are unknown."""
        if isinstance(value, Mapping):
            return _some([*cast("Mapping[Any, Any]", value).items()])
        if isinstance(value, list | tuple | deque):
            return _some(cast("Sequence[Any]", value))
        if isinstance(value, AbstractSet):
            return list(cast("AbstractSet[Any]", value))
        if isinstance(value, range | slice):
            return [repr(value)]
        if isinstance(value, np.random.Generator):
            return [value.bit_generator.state]
        if isinstance(value, np.random.RandomState):
            return [value.get_state()]
        if isinstance(value, random.Random):
            return [value.getstate()]
        if is_a(value, "torch", "Generator"):
            return [value.get_state()]
        is_plain = type(value).__reduce_ex__ is object.__reduce_ex__ and (
            type(value).__reduce__ is object.__reduce__
        )
        if is_plain and hasattr(value, "__dict__"):
            return _some([*vars(value).items()])
        return None


def _some(items: Sequence[Any]) -> list[Any]:
    """Returns all items with their index, or evenly spaced ones."""
    step = -(-len(items) // MOST_ITEMS) or 1
    return [len(items), *(items[at] for at in range(0, len(items), step))]


def _pickled(value: Any) -> bytes:
    """Returns the digest of an object with private content, by pickling."""
    try:
        return cloudpickle.dumps(value)
    except Exception:  # pickling runs code of any object
        return b""


def _hash(head: str, *parts: bytes) -> bytes:
    found = hashlib.blake2b(head.encode(), digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()
