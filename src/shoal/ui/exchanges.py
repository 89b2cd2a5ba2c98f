"""Numbers of the exchanges of a run, in columns: a run has up to millions of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

N = TypeVar("N", np.float64, np.int32)


@final
class Column(Generic[N]):
    """An array that grows at its end.

    Args:
        kind: Type of its numbers.
    """

    def __init__(self, kind: type[N]) -> None:
        self._buffer: NDArray[N] = np.empty(64, dtype=kind)
        self._count = 0

    def __len__(self) -> int:
        """Returns how many numbers it has."""
        return self._count

    @property
    def values(self) -> NDArray[N]:
        """The numbers, shape `(numbers,)`; later ones do not change this array."""
        return self._buffer[: self._count]

    def extend(self, values: NDArray[N]) -> None:
        """Adds numbers at the end."""
        count = self._count + len(values)
        if count > len(self._buffer):
            buffer = np.empty(
                max(count, len(self._buffer) * 5 // 4), self._buffer.dtype
            )
            buffer[: self._count] = self.values
            self._buffer = buffer
        self._buffer[self._count : count] = values
        self._count = count


@final
class Exchanges:
    """Numbers of the exchanges so far.

    Attributes:
        t: Seconds of the run.
        time: Unix seconds.
        samples: Samples committed until then, those of the exchange included.
        rows: Samples of the exchange.
        loss: Mean loss of the exchange, NaN if it has none.
        rank: Rank of the worker, -1 if it is not known.
        staleness: Staleness.
        first: Rank -> place of its first exchange with a loss.
    """

    def __init__(self) -> None:
        self.t, self.time = Column(np.float64), Column(np.float64)
        self.samples, self.rows = Column(np.float64), Column(np.float64)
        self.loss = Column(np.float64)
        self.rank, self.staleness = Column(np.int32), Column(np.int32)
        self.first: dict[int, int] = {}

    def __len__(self) -> int:
        """Returns how many exchanges there are."""
        return len(self.t)

    def add(
        self,
        *,
        t: ArrayLike,
        time: ArrayLike,
        samples: ArrayLike,
        rows: ArrayLike,
        loss: ArrayLike,
        rank: ArrayLike,
        staleness: ArrayLike,
    ) -> None:
        """Adds exchanges; each argument has shape `(exchanges,)`."""
        losses, ranks = np.asarray(loss, np.float64), np.asarray(rank, np.int32)
        known = np.isfinite(losses)
        for one in set(ranks[known].tolist()) - self.first.keys():
            at = int(np.argmax(known & (ranks == one)))
            self.first[one] = len(self) + at
        self.t.extend(np.asarray(t, np.float64))
        self.time.extend(np.asarray(time, np.float64))
        self.samples.extend(np.asarray(samples, np.float64))
        self.rows.extend(np.asarray(rows, np.float64))
        self.loss.extend(losses)
        self.rank.extend(ranks)
        self.staleness.extend(np.asarray(staleness, np.int32))


@final
class TimeSpent:
    """Seconds that each worker spent, by what it spent them on.

    Args:
        parts: Number of things that time is spent on.

    Example:
        >>> spent = TimeSpent(parts=2)
        >>> spent.add(np.array([3, 0, 3]), [np.array([1, 2, 4]), np.array([0, 0, 1])])
        >>> spent.by_rank()
        {0: [2.0, 0.0], 3: [5.0, 1.0]}
    """

    def __init__(self, *, parts: int) -> None:
        self._rows: dict[int, int] = {}
        self._sums = np.zeros((4, parts))

    def add(self, ranks: NDArray[Any], seconds: Sequence[NDArray[Any]]) -> None:
        """Adds the times of exchanges.

        Args:
            ranks: Rank of the worker of each, shape `(exchanges,)`.
            seconds: What each of them spent, one array of that shape a part.
        """
        known, at = np.unique(ranks, return_inverse=True)
        rows = [
            self._rows.setdefault(rank, len(self._rows))
            for rank in known.astype(int).tolist()
        ]
        while len(self._rows) > len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
        sums = [np.bincount(at, weights=part, minlength=len(rows)) for part in seconds]
        self._sums[rows] += np.stack(sums, axis=1)

    def by_rank(self) -> dict[int, list[float]]:
        """Returns what each worker spent on each part, by rank."""
        return {
            rank: self._sums[self._rows[rank]].tolist() for rank in sorted(self._rows)
        }
