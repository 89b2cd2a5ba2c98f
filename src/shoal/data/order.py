"""The order of samples. Pure index arithmetic: no data, no clock.

This file decides the order of an epoch's samples from a seed, how a pass over
the data is cut into epochs and batches, and how a batch of all workers is shared.
All processes compute the same answers, so that no indices are sent.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data.chunk_order import ChunkOrder
from shoal.errors import ConfigError
from shoal.facts import Chunking

Indices: TypeAlias = npt.NDArray[np.int64]
Shuffle: TypeAlias = Literal[True, False, "batch"]

# One more than the current epoch: e + 1 may be leased while e drains.
_KEPT_PERMUTATIONS = 2


class Span(NamedTuple):
    """Position of an epoch: rows `start` to `start + rows` of pass number `turn`."""

    turn: int
    start: int
    rows: int


def steps(rows: int, batch_size: int) -> int:
    """Counts the batches of `rows` samples, a short last one included.

    Example:
        >>> steps(100, 32), steps(96, 32), steps(0, 32)
        (4, 3, 0)
    """
    return -(-rows // batch_size)


def short_batch(rows: int, batch_size: int) -> int:
    """Returns the rows of a short last batch, 0 when all batches are full.

    Example:
        >>> short_batch(100, 32), short_batch(96, 32)
        (4, 0)
    """
    return rows % batch_size


def shares(batch: int, workers: int) -> list[int]:
    """Splits a common batch into one size for each rank, at most one row apart.

    Example:
        >>> shares(100, 8)
        [13, 13, 13, 13, 12, 12, 12, 12]
    """
    each, left = divmod(batch, workers)
    return [each + (rank < left) for rank in range(workers)]


def share(batch: int, workers: int, rank: int) -> tuple[int, int]:
    """Returns (start, stop) of one rank's rows within a common batch.

    Example:
        >>> [share(5, 3, rank) for rank in range(3)]
        [(0, 2), (2, 4), (4, 5)]
    """
    each, left = divmod(batch, workers)
    start = rank * each + min(rank, left)
    return start, start + each + (rank < left)


@final
class Order:
    """The order of samples in every epoch, known to all processes from a seed.

    An epoch is one pass over the data. With `steps_per_epoch` it is that many
    batches, and the next epoch continues where the last one stopped, as in Keras;
    if a pass ends within an epoch, that epoch is shorter, also as in Keras.
    The first epoch of a run begins a new pass, whatever its number.

    Args:
        rows: Samples in the data, at least 1.
        seed: Any integer of at least 0; one seed gives one order.
        shuffle: True for a full permutation of each pass, False for the order of
            the data, "batch" to shuffle within each batch only.
        batch_size: Samples of one step, at least 1, used by "batch" and
            `steps_per_epoch`.
        steps_per_epoch: Steps of an epoch, at least 1, None for a whole pass.
        first_epoch: The epoch the run starts with.
        chunking: How the rows lie in chunks; a shuffle then mixes as far as it allows,
            and "batch" means True.

    Raises:
        ConfigError: `rows`, `batch_size` or `steps_per_epoch` is below 1.

    Example:
        >>> order = Order(rows=10, seed=7, batch_size=2, steps_per_epoch=3)
        >>> [order.rows_of(epoch) for epoch in range(4)]
        [6, 4, 6, 4]
        >>> both = [*order.indices(0, 0, 6), *order.indices(1, 0, 4)]
        >>> sorted(map(int, both))
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        *,
        rows: int,
        seed: int = 0,
        shuffle: Shuffle = True,
        batch_size: int = 32,
        steps_per_epoch: int | None = None,
        first_epoch: int = 0,
        chunking: Chunking | None = None,
    ) -> None:
        if (
            rows < 1
            or batch_size < 1
            or (steps_per_epoch is not None and steps_per_epoch < 1)
        ):
            raise ConfigError(
                f"no order for rows={rows}, batch_size={batch_size}, "
                f"steps_per_epoch={steps_per_epoch}. "
                "Expected positive numbers. Correct the one that is not."
            )
        self.rows = rows
        self.seed = seed
        self.shuffle = shuffle
        self.batch_size = batch_size
        self.steps_per_epoch = steps_per_epoch
        self.first_epoch = first_epoch
        self.later_rows = None if chunking is None else chunking.later_rows
        self._first_rows = rows
        self.has_batches = chunking is not None and chunking.are_batches
        if chunking is not None and chunking.are_batches:
            self._first_rows = chunking.rows[0]
            self.has_batches = set(chunking.rows) != {batch_size}
        self._starts: dict[int, tuple[int, ...] | None] = {}
        self._kept: dict[int, npt.NDArray[np.int64]] = {}
        self._chunks: ChunkOrder | None = None
        if chunking is not None:
            self._chunks = ChunkOrder(
                chunking, seed, shuffle=shuffle is not False, batch_size=batch_size
            )

    def span(self, epoch: int) -> Span:
        """Returns the pass an epoch belongs to and its rows there."""
        if self.steps_per_epoch is None:
            is_later = self.later_rows is not None and epoch != self.first_epoch
            return Span(epoch, 0, (is_later and self.later_rows) or self.rows)
        epoch_rows = self.steps_per_epoch * self.batch_size
        since = epoch - self.first_epoch
        turn, place = divmod(since, steps(self.rows, epoch_rows))
        start = place * epoch_rows
        # Counted from there too, so that another run does not repeat this one's order.
        return Span(self.first_epoch + turn, start, min(epoch_rows, self.rows - start))

    @property
    def epochs_per_pass(self) -> int:
        """Returns the number of epochs after which sizes repeat; large if never."""
        if self.steps_per_epoch is None and self.later_rows is not None:
            return sys.maxsize
        if self.steps_per_epoch is None:
            return 1
        return steps(self.rows, self.steps_per_epoch * self.batch_size)

    def rows_of(self, epoch: int) -> int:
        """Counts the samples of one epoch."""
        return self.span(epoch).rows

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """Returns the rows of the data at positions `start` to `stop` of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            start: First position, from 0.
            stop: One past the last position, at most `rows_of(epoch)`.

        Raises:
            IndexError: The positions are not all in the epoch.
        """
        span = self.span(epoch)
        if not 0 <= start <= stop <= span.rows:
            raise IndexError(f"[{start}, {stop}) is outside epoch {epoch}: {span}")
        first, last = span.start + start, span.start + stop
        if self._chunks is not None:
            return self._chunks.indices(span.turn, first, last)
        if self.shuffle is False:
            return np.arange(first, last, dtype=np.int64)
        return self._permutation(span.turn)[first:last]

    def borders(self, epoch: int) -> tuple[int, ...]:
        """Returns the positions of an epoch at which groups of chunks begin.

        Args:
            epoch: Number of the epoch.
        """
        if self._chunks is None:
            return (0,)
        span = self.span(epoch)
        found = self._chunks.borders(span.turn) - span.start
        return tuple(found[(found >= 0) & (found < span.rows)].tolist())

    def batch_starts(self, epoch: int) -> tuple[int, ...] | None:
        """Returns the positions of an epoch where the data's own batches begin.

        None if batches are cut from the samples, all of one size but the last.

        Args:
            epoch: Number of the epoch.
        """
        if not self.has_batches:
            return None
        if epoch not in self._starts:
            span = self.span(epoch)
            found = [at for at in self.borders(epoch) if at > 0]
            starts = (0, *found)
            usual = tuple(range(0, span.rows, self.batch_size))
            kept = dict(list(self._starts.items())[-_KEPT_PERMUTATIONS + 1 :])
            self._starts = {**kept, epoch: None if starts == usual else starts}
        return self._starts[epoch]

    def batch_rows(self, epoch: int) -> set[int]:
        """Returns the sizes that batches of an epoch have.

        Example:
            >>> sorted(Order(rows=10, batch_size=4).batch_rows(0))
            [2, 4]
        """
        rows, starts = self.rows_of(epoch), self.batch_starts(epoch)
        if starts is None:
            full, last = divmod(rows, self.batch_size)
            return {*([self.batch_size] if full else []), *([last] if last else [])}
        return {stop - start for start, stop in pairwise((*starts, rows))}

    def steps_within(self, epoch: int, rows: int) -> int:
        """Counts the steps of the first `rows` samples of an epoch.

        Example:
            >>> own = Chunking(rows=(4, 2, 4, 1), mixing="nothing", are_batches=True)
            >>> order = Order(rows=11, batch_size=4, chunking=own)
            >>> order.batch_starts(0), order.steps_within(0, 11)
            ((0, 4, 6, 10), 4)
        """
        starts = self.batch_starts(epoch)
        if starts is None:
            return steps(rows, self.batch_size)
        return bisect_left(starts, rows)

    @property
    def sample_rows(self) -> int:
        """Returns how many first rows of the data are known to have one shape."""
        return self._first_rows

    @property
    def can_be_spread(self) -> bool:
        """Whether workers may read at several positions of an epoch at once.

        False for arrays, where every row is equally near, and for data with an order of
        its own, which several workers keep as well as they can.
        """
        return self._chunks is not None and self._chunks.is_mixed

    def turn(self, epoch: int) -> int:
        """Returns which pass over the data an epoch belongs to."""
        return self.span(epoch).turn

    def upcoming(
        self, epoch: int, start: int, stop: int, batch: tuple[int, int] = (0, 0)
    ) -> Indices:
        """Returns rows that stand for the chunks that are needed next, none for arrays.

        Args:
            epoch: Number of the epoch.
            start: First position that is being read.
            stop: One past the last position that is being read.
            batch: Start and rows of the batch of which this is a share; rows 0
                for no share.
        """
        if self._chunks is None:
            return np.zeros(0, np.int64)
        span, (begin, rows) = self.span(epoch), batch
        part = ((start - begin) / rows, (stop - begin) / rows) if rows else (0.0, 1.0)
        return self._chunks.upcoming(span.turn, span.start + stop - 1, part)

    def _permutation(self, turn: int) -> Indices:
        """Returns the order of a whole pass; the last two are kept."""
        found = self._kept.get(turn)
        if found is None:
            found = self._shuffled(turn)
            # Complete before it is stored, and never changed: threads may share it.
            found.flags.writeable = False
            self._kept = {**self._newest(), turn: found}
        return found

    def _newest(self) -> dict[int, Indices]:
        """Returns the permutations that stay beside a new one."""
        kept = list(self._kept.items())
        return dict(kept[len(kept) - _KEPT_PERMUTATIONS + 1 :]) if kept else {}

    def _shuffled(self, turn: int) -> Indices:
        """Permutes all rows, or each batch in itself."""
        random = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence([self.seed, turn]))
        )
        rows = np.arange(self.rows, dtype=np.int64)
        if self.shuffle != "batch":
            random.shuffle(rows)
            return rows
        full = self.rows - short_batch(self.rows, self.batch_size)
        batches = rows[:full].reshape(-1, self.batch_size)
        random.permuted(batches, axis=1, out=batches)
        random.shuffle(rows[full:])
        return rows
