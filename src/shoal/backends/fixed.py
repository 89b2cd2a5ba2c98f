"""What a worker has beside weights, statistics and optimizer: random state, mostly.

Keras keeps two words for each layer that draws: a seed, and a counter that grows with
each draw. Workers have seeds of their own, and all their counters grow alike: one
worker's counters tell where any other's stand. So a run that goes on, or a worker
that joins a gang, draws what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """

    def __init__(self, values: Arrays) -> None:
        self._began = [np.array(value) for value in values]
        self._draws: list[Any] | None = None

    def pack(self, values: Arrays) -> bytes:
        """Returns values, the counters since the beginning in place of random state."""
        found = [np.asarray(value) for value in values]
        return b"".join(
            (now - began if is_random_state(now) else now).tobytes()
            for now, began in zip(found, self._began, strict=True)
        )

    def unpack(self, blob: bytes | memoryview) -> Copies:
        """Returns this worker's values where another one's are `blob`."""
        values: Copies = []
        at = 0
        for began in self._began:
            value = np.frombuffer(blob, began.dtype, began.size, at)
            value = value.reshape(began.shape)
            at += value.nbytes
            moved = began + value if is_random_state(began) else value.copy()
            values.append(np.asarray(moved, began.dtype))
        return values

    @property
    def is_measured(self) -> bool:
        """Whether it is known how far the counters grow in a step."""
        return self._draws is not None

    def measure(self, before: Arrays, after: Arrays) -> None:
        """Takes note of how far the counters grew in one step."""
        pairs = zip(before, after, strict=True)
        self._draws = [
            np.asarray(b) - np.asarray(a) if is_random_state(a) else None
            for a, b in pairs
        ]

    def skip(self, values: Arrays) -> list[Any]:
        """Returns values after a step that only others took; what stays, as it is."""
        if self._draws is None:
            return list(values)
        pairs = zip(values, self._draws, strict=True)
        return [v if d is None else np.asarray(v) + d for v, d in pairs]


def is_random_state(value: Any) -> bool:
    """Whether a value is the seed and the counter of a `SeedGenerator`."""
    return "uint32" in str(value.dtype) and tuple(value.shape) == (2,)


def reseeded(value: Any, rank: int) -> Any:
    """Mixes the rank into random state; rank 0 keeps Keras' own."""
    if not is_random_state(value) or not rank:
        return value
    seed = np.asarray(value).copy()
    words = np.random.SeedSequence([int(seed[0]), rank])
    seed[0] = words.generate_state(1)[0]
    return seed
