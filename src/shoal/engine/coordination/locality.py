"""Positions where each worker continues to read. Pure.

The cost of samples in chunks is that of opening chunks. Workers that take their
leases in turn from one place each open every chunk; here each continues where its
last lease ended, and one at the end of its stretch takes over a part of the longest
stretch that is left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from shoal.engine.coordination.ledger import Ledger, Piece

Borders: TypeAlias = Callable[[int], Sequence[int]]
"""Positions in an epoch where chunks that are read together begin, in order."""


@final
class Locality:
    """The last position of each worker, and where it continues.

    It is no part of a checkpoint: without it every sample is still leased, only to
    other workers.

    Args:
        borders: Positions where chunks begin.
        batch: Rows of a step; a worker begins at a multiple of it.
        starts: Positions where the data's own batches begin in an epoch, None if there
            are none.

    Example:
        >>> ledger, places = Ledger(), Locality(lambda epoch: (0, 40, 70), batch=4)
        >>> ledger.open(0, rows=100)
        >>> for rank in (0, 1, 0):
        ...     start = places.next(rank, 0, ledger, workers=2)
        ...     places.took(rank, ledger.lease(rank, 0, 8, start))
        >>> ledger.held(0), ledger.held(1)[0].start
        ([Piece(epoch=0, start=0, stop=8, step_rows=0),
          Piece(epoch=0, start=8, stop=16, step_rows=0)], 40)
    """

    def __init__(
        self,
        borders: Borders,
        batch: int,
        starts: Callable[[int], Sequence[int] | None] = lambda epoch: None,
    ) -> None:
        self._borders, self._batch, self._starts = borders, batch, starts
        self._last: dict[int, tuple[int, int]] = {}

    def next(self, rank: int, epoch: int, ledger: Ledger, workers: int) -> int:
        """Returns a free position for a worker's next lease.

        Args:
            rank: Rank of the worker.
            epoch: Epoch with at least one free sample.
            ledger: Ledger with the free samples.
            workers: Number of workers that share the epoch.
        """
        runs = ledger.runs(epoch)
        at_work = {rank: stop for rank, (e, stop) in self._last.items() if e == epoch}
        mine = at_work.pop(rank, None)
        if mine is not None and any(start <= mine < stop for start, stop in runs):
            return mine
        # Workers without a place get even parts of a stretch that is in use.
        parts = max(1, workers - len(at_work)) + 1
        taken = set(at_work.values())

        def gain(run: tuple[int, int]) -> float:
            start, stop = run
            return (stop - start) * (1 - 1 / parts if start in taken else 1)

        start, stop = max(runs, key=gain)
        if start not in taken:
            return start
        return self._begin(epoch, start, stop, start + (stop - start) // parts)

    def _begin(self, epoch: int, start: int, stop: int, asked: int) -> int:
        """A position of a stretch near a wished one: the start of a chunk, if any."""
        own = self._starts(epoch)
        if own is not None:  # the data's own batches: a step is one of them
            near = bisect_left(own, asked)
            inside = [
                at for at in own[max(0, near - 1) : near + 1] if start < at < stop
            ]
            return min(inside, key=lambda place: abs(place - asked), default=start)
        borders = self._borders(epoch)
        near = bisect_left(borders, asked)
        # A step does not begin within another one: the next whole one behind the
        # border.
        whole = [
            -(-b // self._batch) * self._batch
            for b in borders[max(0, near - 1) : near + 1]
        ]
        inside = [place for place in whole if start < place < stop]
        if inside:
            return min(inside, key=lambda place: abs(place - asked))
        return max(start, asked - (asked - start) % self._batch)

    def took(self, rank: int, piece: Piece) -> None:
        """Records a worker's new lease."""
        self._last[rank] = piece.epoch, piece.stop

    def forget(self, rank: int) -> None:
        """Forgets a lost worker: its stretch is free."""
        self._last.pop(rank, None)
