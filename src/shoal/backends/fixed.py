"""What a worker has beside weights, statistics and optimizer: random state, mostly.

Keras keeps two words for each layer that draws: a seed, and a counter that grows with
each draw. Workers have seeds of their own, and all their counters grow alike: one
worker's counters tell where any other's stand. So a run that goes on, or a worker
that joins a gang, draws what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

Arrays: TypeAlias = Sequence[Any]
Copies: TypeAlias = list[npt.NDArray[Any]]


@final
class Fixed:
    """Where variables that are neither trained nor averaged began.

    Args:
        values: When the worker began.
        is_random: Which of them are random state.
    """

    def __init__(self, values: Arrays, is_random: Sequence[bool]) -> None:
        self._began = [np.array(value) for value in values]
        self._is_random = list(is_random)
        self._draws: list[Any] | None = None
        self.counting = [
            place
            for place, began in enumerate(self._began)
            if self._is_random[place] or began.dtype.kind in "iub"
        ]
        """Places of what draws or counts."""

    def pack(self, values: Arrays) -> bytes:
        """Returns values, the counters since the beginning in place of random state."""
        found = [np.asarray(value) for value in values]
        return b"".join(
            (now - began if is_random else now).tobytes()
            for now, began, is_random in self._with_began(found)
        )

    def _with_began(self, values: Copies) -> Iterator[tuple[Any, Any, bool]]:
        return zip(values, self._began, self._is_random, strict=True)

    def unpack(self, blob: bytes | memoryview) -> Copies:
        """Returns this worker's values where another one's are `blob`."""
        values: Copies = []
        at = 0
        for began, is_random in zip(self._began, self._is_random, strict=True):
            value = np.frombuffer(blob, began.dtype, began.size, at)
            value = value.reshape(began.shape)
            at += value.nbytes
            moved = began + value if is_random else value.copy()
            values.append(np.asarray(moved, began.dtype))
        return values

    @property
    def is_measured(self) -> bool:
        """Whether it is known how far the counters grow in a step."""
        return self._draws is not None

    def measure(self, before: Arrays, after: Arrays) -> None:
        """Takes note of how far the counters grew in one step."""
        pairs = zip(before, after, self._is_random, strict=True)
        self._draws = [
            np.asarray(b) - np.asarray(a) if is_random else None
            for a, b, is_random in pairs
        ]

    def skip(self, values: Arrays) -> list[Any]:
        """Returns values after a step that only others took; what stays, as it is."""
        if self._draws is None:
            return list(values)
        pairs = zip(values, self._draws, strict=True)
        return [v if d is None else np.asarray(v) + d for v, d in pairs]


def is_random_state(variable: Any) -> bool:
    """Whether a variable is the seed and the counter of a `SeedGenerator`.

    Of unsigned words on JAX, of signed ones elsewhere.
    """
    is_named = str(variable.name) == "seed_generator_state"
    return is_named and tuple(variable.shape) == (2,)


def reseeded(values: Arrays, is_random: Sequence[bool], rank: int) -> Copies:
    """Mixes the rank into random state; rank 0 keeps Keras' own."""
    pairs = zip(values, is_random, strict=True)
    return [_reseeded(np.array(v), rank if drawn else 0) for v, drawn in pairs]


def _reseeded(value: npt.NDArray[Any], rank: int) -> npt.NDArray[Any]:
    if rank:
        words = np.random.SeedSequence([word_of(value[0]), rank])
        value[0] = words.generate_state(1).astype(value.dtype)[0]
    return value


def word_of(seed: Any) -> int:
    """A seed as the unsigned word that it is, whatever holds it."""
    return int(seed) & 0xFFFFFFFF
