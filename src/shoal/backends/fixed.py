"""What a worker has beside weights, statistics and optimizer: its local state.

Frozen weights, counters, booleans, random state: all variables that are neither
trained nor averaged. They travel once, in the model; afterwards only those of them
travel that differ from what the model came with. So a frozen backbone costs nothing,
and what a layer counts is not lost. Nobody has to know beforehand which of them move.

Keras keeps two words for each layer that draws: a seed, and a counter that grows with
each draw. Workers have seeds of their own, and all their counters grow alike: one
worker's counters tell where any other's stand. So a run that goes on, or a worker
that joins a gang, draws what it would have drawn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

Arrays: TypeAlias = Sequence[Any]
Changes: TypeAlias = dict[int, npt.NDArray[Any]]
"""By place: the value, or by how much random state grew."""

MAGIC = b"SHOALFX1"
HEADER = struct.Struct("<8sQ")  # magic, number of entries
ENTRY = struct.Struct("<QQ")  # place of the variable, bytes of its value
SMALL = 1 << 16  # bytes of what may well be copied in each step
PART = 1 << 20  # bytes that are compared at a time


@final
class Fixed:
    """Where variables that are neither trained nor averaged began.

    Args:
        came: What the model came with; it is kept, and must stay as it is.
        is_random: Which of them are random state.
        rank: Of the worker; its random state begins at words of its own.
    """

    def __init__(self, came: Arrays, is_random: Sequence[bool], rank: int = 0) -> None:
        self.came = list(came)
        self._is_random = list(is_random)
        self._began = self.seeded(rank)
        self._draws: list[Any] | None = None
        self._has_moved = False
        self._may_move = [began.nbytes <= SMALL for began in self._began]

    def seeded(self, rank: int) -> list[Any]:
        """What another worker begins with; all but random state is what came."""
        pairs = zip(self.came, self._is_random, strict=True)
        return [_reseeded(v, rank) if drawn else v for v, drawn in pairs]

    def pack(self, values: Arrays) -> bytes:
        """Returns what differs from the beginning; of random state, by how much."""
        return pack_changes(self.changes(values))

    def changes(self, values: Arrays) -> Changes:
        """What differs from the beginning; of random state, by how much."""
        found: Changes = {}
        for place, (value, began, is_random) in enumerate(self._with_began(values)):
            if not is_same(value, began):
                now = np.asarray(value)
                found[place] = np.asarray(now - began) if is_random else now
        return found

    def _with_began(self, values: Arrays) -> Iterator[tuple[Any, Any, bool]]:
        return zip(values, self._began, self._is_random, strict=True)

    def unpack(self, blob: bytes | memoryview) -> list[Any]:
        """Returns this worker's values where another one's are `blob`.

        Those that do not differ from the beginning are the very arrays it has.

        Raises:
            ValueError: It is of another model.
        """
        values = list(self._began)
        for place, value in read_changes(blob, self._began).items():
            began = self._began[place]
            moved = began + value if self._is_random[place] else value
            values[place] = np.array(moved, began.dtype)
        return values

    def settled(self, values: Arrays) -> list[Any]:
        """Copies of values; those that do not differ from the beginning are shared."""
        return [
            began if is_same(value, began) else np.array(value)
            for value, began in zip(values, self._began, strict=True)
        ]

    @property
    def is_measured(self) -> bool:
        """Whether it is known how far the counters grow in a step."""
        return self._draws is not None

    @property
    def has_to_step(self) -> bool:
        """Whether nothing less than a step tells what one leaves behind.

        Random state grows alike in each; what a layer counts or keeps need not.
        """
        return bool(self.came) and (self._has_moved or not self.is_measured)

    def measure(self, before: Arrays, after: Arrays) -> None:
        """Takes note of how far the counters grew in one step, and what else moved."""
        self._draws = []
        pairs = zip(before, after, self._is_random, strict=True)
        for place, (value, now, is_random) in enumerate(pairs):
            drawn = np.asarray(now) - np.asarray(value) if is_random else None
            self._draws.append(drawn)
            if not is_same(now, value):
                self._may_move[place] = True
                self._has_moved |= not is_random

    def before_step(self, values: Arrays) -> dict[int, Any]:
        """Copies of what the next step may move, by place.

        That is all that is small, and what moved in the step that was measured.
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
        """Returns values after a step that only others took; what stays, as it is."""
        if self._draws is None:
            return list(values)
        pairs = zip(values, self._draws, strict=True)
        return [v if d is None else np.asarray(v) + d for v, d in pairs]


def pack_changes(found: Changes) -> bytes:
    """What differs, as bytes: places and sizes, then values."""
    entries = [ENTRY.pack(place, value.nbytes) for place, value in found.items()]
    header = HEADER.pack(MAGIC, len(found))
    return b"".join([header, *entries, *(value.tobytes() for value in found.values())])


def read_changes(blob: bytes | memoryview, like: Arrays) -> Changes:
    """The inverse of `pack_changes`; of runs before it, all values one by one.

    Args:
        blob: Behind the state of an optimizer.
        like: Arrays of the shapes and dtypes of all variables, in their order; only
            those are looked at of which the blob tells.

    Returns:
        Views of `blob`.

    Raises:
        ValueError: It is of another model.
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
    """Most that `pack_changes` makes of these variables, should all of them move."""
    sizes = sum(ENTRY.size + size_bytes(variable) for variable in variables)
    return HEADER.size + sizes


def size_bytes(variable: Any) -> int:
    """Most bytes of the value of a Keras variable, as any backend gives it."""
    try:
        # Where NumPy has no such floats, they are given as float32.
        each = max(4, np.dtype(str(variable.dtype)).itemsize)
    except TypeError:
        each = 8
    return each * int(np.prod(tuple(variable.shape), dtype=np.int64))


def is_same(first: Any, second: Any) -> bool:
    """Whether two arrays hold the same bytes; NaN equals itself."""
    if first is second:  # not looked at: it may be large, or on a GPU
        return True
    one, other = np.asarray(first), np.asarray(second)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    ours, theirs = _bytes_of(one), _bytes_of(other)
    # In parts: what differs is found early, and no large array of truths is made.
    return all(
        np.array_equal(ours[at : at + PART], theirs[at : at + PART])
        for at in range(0, ours.size, PART)
    )


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array's bytes, as the widest words that they make."""
    flat = np.ascontiguousarray(array).reshape(-1)
    wide = flat.nbytes % 8 == 0 and flat.ctypes.data % 8 == 0
    return flat.view(np.uint64 if wide else np.uint8)


def is_random_state(variable: Any) -> bool:
    """Whether a variable is the seed and the counter of a `SeedGenerator`.

    Of unsigned words on JAX, of signed ones elsewhere.
    """
    is_named = str(variable.name) == "seed_generator_state"
    return is_named and tuple(variable.shape) == (2,)


def _reseeded(value: Any, rank: int) -> npt.NDArray[Any]:
    """A copy with the rank mixed in; rank 0 keeps Keras' own."""
    value = np.array(value)
    if rank:
        words = np.random.SeedSequence([word_of(value[0]), rank])
        value[0] = words.generate_state(1).astype(value.dtype)[0]
    return value


def word_of(seed: Any) -> int:
    """A seed as the unsigned word that it is, whatever holds it."""
    return int(seed) & 0xFFFFFFFF
