"""A worker's local state: all it has besides weights, statistics and optimizer.

Frozen weights, counters, booleans and random state: all variables that are neither
trained nor averaged. They travel once, in the model; afterwards only the variables
that differ from the model's initial values travel. So a frozen backbone costs nothing,
and a layer's counters are not lost. The changed variables are found by comparison.

Keras keeps two words for each layer that draws: a seed, and a counter that grows with
each draw. Workers have seeds of their own, and all their counters grow alike, so one
worker's counters determine those of any other. A run that is resumed, or a worker
that joins a gradient exchange, therefore draws what it would have drawn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

Arrays: TypeAlias = Sequence[Any]
Changes: TypeAlias = dict[int, npt.NDArray[Any]]
"""By index of the variable: its value, or the growth of its random state."""

MAGIC = b"SHOALFX1"
HEADER = struct.Struct("<8sQ")  # magic, number of entries
ENTRY = struct.Struct("<QQ")  # index of the variable, bytes of its value
SMALL = 1 << 16  # bytes: smaller variables are copied in each step
PART = 1 << 20  # bytes that are compared at a time


@final
class Fixed:
    """Initial values of the variables that are neither trained nor averaged.

    Args:
        came: Initial values from the model; kept by reference, must not change.
        is_random: For each variable, whether it is random state.
        rank: Rank of the worker; its random state begins at words of its own.
    """

    def __init__(self, came: Arrays, is_random: Sequence[bool], rank: int = 0) -> None:
        self.came = list(came)
        self._is_random = list(is_random)
        self._began = self.seeded(rank)
        self._draws: list[Any] | None = None
        self._has_moved = False
        self._may_move = [began.nbytes <= SMALL for began in self._began]

    def seeded(self, rank: int) -> list[Any]:
        """Returns another worker's initial values; only random state differs."""
        pairs = zip(self.came, self._is_random, strict=True)
        return [_reseeded(v, rank) if drawn else v for v, drawn in pairs]

    def pack(self, values: Arrays) -> bytes:
        """Returns the changes since the beginning as bytes; random state as growth."""
        return pack_changes(self.changes(values))

    def changes(self, values: Arrays) -> Changes:
        """Returns the changes since the beginning; random state as growth."""
        found: Changes = {}
        for place, (value, began, is_random) in enumerate(self._with_began(values)):
            if not is_same(value, began):
                now = np.asarray(value)
                found[place] = np.asarray(now - began) if is_random else now
        return found

    def _with_began(self, values: Arrays) -> Iterator[tuple[Any, Any, bool]]:
        return zip(values, self._began, self._is_random, strict=True)

    def unpack(self, blob: bytes | memoryview) -> list[Any]:
        """Returns this worker's values from the packed changes of another worker.

        Unchanged values are the same array objects as the initial ones.

        Raises:
            ValueError: The bytes belong to another model.
        """
        values = list(self._began)
        for place, value in read_changes(blob, self._began).items():
            began = self._began[place]
            moved = began + value if self._is_random[place] else value
            values[place] = np.array(moved, began.dtype)
        return values

    def settled(self, values: Arrays) -> list[Any]:
        """Returns copies of values; unchanged ones are shared."""
        return [
            began if is_same(value, began) else np.array(value)
            for value, began in zip(values, self._began, strict=True)
        ]

    @property
    def is_measured(self) -> bool:
        """Whether the growth of the counters in a step is known."""
        return self._draws is not None

    @property
    def has_to_step(self) -> bool:
        """Whether only a real step can tell the state after it.

        Random state grows alike in each step; counters of layers need not.
        """
        return bool(self.came) and (self._has_moved or not self.is_measured)

    def measure(self, before: Arrays, after: Arrays) -> None:
        """Notes the growth of counters in one step, and which other values changed."""
        self._draws = []
        pairs = zip(before, after, self._is_random, strict=True)
        for place, (value, now, is_random) in enumerate(pairs):
            drawn = np.asarray(now) - np.asarray(value) if is_random else None
            self._draws.append(drawn)
            if not is_same(now, value):
                self._may_move[place] = True
                self._has_moved |= not is_random

    def before_step(self, values: Arrays) -> dict[int, Any]:
        """Returns copies of the values that the next step may change, by index.

        These are all small values, and those that changed in the measured step.
        """
        places = enumerate(zip(values, self._may_move, strict=True))
        copied = [
            (p, v) for p, (v, may_move) in places if may_move or self._draws is None
        ]
        return {
            place: value if value is self.came[place] else np.array(value)
            for place, value in copied
        }

    def skip(self, values: Arrays) -> list[Any]:
        """Returns values after a step of other workers; unchanged ones are shared."""
        if self._draws is None:
            return list(values)
        pairs = zip(values, self._draws, strict=True)
        return [v if d is None else np.asarray(v) + d for v, d in pairs]


def pack_changes(found: Changes) -> bytes:
    """Returns changes as bytes: indices and sizes, then values."""
    entries = [ENTRY.pack(place, value.nbytes) for place, value in found.items()]
    header = HEADER.pack(MAGIC, len(found))
    return b"".join([header, *entries, *(value.tobytes() for value in found.values())])


def read_changes(blob: bytes | memoryview, like: Arrays) -> Changes:
    """The inverse of `pack_changes`; also reads older runs, with all values in turn.

    Args:
        blob: Bytes that follow the state of an optimizer.
        like: Arrays of the shapes and dtypes of all variables, in their order; only
            arrays whose variables are in the blob are read.

    Returns:
        Views into `blob`.

    Raises:
        ValueError: The bytes belong to another model.
    """
    data, counts = memoryview(blob), range(len(like))
    if bytes(data[: len(MAGIC)]) == MAGIC:
        _, number = HEADER.unpack_from(data)
        at = HEADER.size
        entries = [ENTRY.unpack_from(data, at + i * ENTRY.size) for i in range(number)]
        at += number * ENTRY.size
    else:
        entries, at = [(place, like[place].nbytes) for place in counts], 0
    if len(data) != at + sum(size for _, size in entries):
        raise ValueError(f"local state of {len(data):,} bytes is of another model")
    found: Changes = {}
    for place, size in entries:
        began = like[place] if place in counts else None
        if began is None or began.nbytes != size:
            raise ValueError(f"local state of {size:,} bytes for variable {place}")
        value = np.frombuffer(data[at : at + size], began.dtype)
        found[place] = value.reshape(began.shape)
        at += size
    return found


def most_bytes(variables: Sequence[Any]) -> int:
    """Returns the most bytes that `pack_changes` makes of these variables."""
    sizes = sum(ENTRY.size + size_bytes(variable) for variable in variables)
    return HEADER.size + sizes


def size_bytes(variable: Any) -> int:
    """Returns the most bytes of the value of a Keras variable, on any backend."""
    try:
        # If NumPy lacks the float type, backends return float32.
        each = max(4, np.dtype(str(variable.dtype)).itemsize)
    except TypeError:
        each = 8
    return each * int(np.prod(tuple(variable.shape), dtype=np.int64))


def is_same(first: Any, second: Any) -> bool:
    """Whether two arrays hold the same bytes; NaN equals itself."""
    if first is second:  # no comparison: it may be large, or on a GPU
        return True
    one, other = np.asarray(first), np.asarray(second)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    ours, theirs = _bytes_of(one), _bytes_of(other)
    # In parts: a difference is found early, and no large boolean array is made.
    return all(
        np.array_equal(ours[at : at + PART], theirs[at : at + PART])
        for at in range(0, ours.size, PART)
    )


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns an array's bytes as the widest possible words."""
    flat = np.ascontiguousarray(array).reshape(-1)
    wide = flat.nbytes % 8 == 0 and flat.ctypes.data % 8 == 0
    return flat.view(np.uint64 if wide else np.uint8)


def is_random_state(variable: Any) -> bool:
    """Whether a variable is the seed and the counter of a `SeedGenerator`.

    The words are unsigned on JAX and signed elsewhere.
    """
    is_named = str(variable.name) == "seed_generator_state"
    return is_named and tuple(variable.shape) == (2,)


def _reseeded(value: Any, rank: int) -> npt.NDArray[Any]:
    """Returns a copy with the rank mixed in; rank 0 keeps Keras' own."""
    value = np.array(value)
    if rank:
        words = np.random.SeedSequence([word_of(value[0]), rank])
        value[0] = words.generate_state(1).astype(value.dtype)[0]
    return value


def word_of(seed: Any) -> int:
    """Returns a seed as an unsigned word, from any array type."""
    return int(seed) & 0xFFFFFFFF
