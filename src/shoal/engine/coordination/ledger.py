"""Leased and committed samples. Pure: no vectors, no clock.

The ledger hands out ranges of an epoch's order as leases, takes back those of lost
workers, and commits a range once. "Each sample is counted exactly once" is decided
here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """A range of positions in an epoch's order: `start <= position < stop`.

    `step_rows` is the number of rows all workers together consume in the step this
    piece belongs to; 0 when workers step on their own.
    """

    epoch: int
    start: int
    stop: int
    step_rows: int = 0

    @property
    def rows(self) -> int:
        """Samples in the piece."""
        return self.stop - self.start


@dataclass
class Ranges:
    """A set of integers kept as sorted, disjoint, non-touching ranges."""

    bounds: list[int] = field(default_factory=list[int])

    def __len__(self) -> int:
        bounds = self.bounds
        if len(bounds) == 2:  # the usual case
            return bounds[1] - bounds[0]
        return sum(bounds[1::2]) - sum(bounds[::2])

    def add(self, start: int, stop: int) -> None:
        """Adds a range; it may touch or overlap others, or be empty."""
        if start >= stop:
            return
        low, high = bisect_left(self.bounds, start), bisect_right(self.bounds, stop)
        head = [start] if low % 2 == 0 else []
        tail = [stop] if high % 2 == 0 else []
        self.bounds[low:high] = head + tail

    def remove(self, start: int, stop: int) -> None:
        """Removes a range, even if only parts of it are present."""
        if start >= stop:
            return
        low, high = bisect_left(self.bounds, start), bisect_right(self.bounds, stop)
        head = [start] if low % 2 == 1 else []
        tail = [stop] if high % 2 == 1 else []
        self.bounds[low:high] = head + tail

    @property
    def run(self) -> int:
        """Integers in the first range, 0 when there is none."""
        return self.bounds[1] - self.bounds[0] if self.bounds else 0

    def take(self, count: int, start: int | None = None) -> tuple[int, int] | None:
        """Removes and returns up to `count` integers from one range.

        Args:
            count: Most integers to remove.
            start: The first of them, default None: the first in the set.
        """
        if start is None:
            start = self.bounds[0] if self.bounds else 0
        # Starts and stops alternate in `bounds`: within a range the place is odd.
        place = bisect_right(self.bounds, start)
        if place % 2 == 0 or count < 1:
            return None
        stop = min(self.bounds[place], start + count)
        self.remove(start, stop)
        return start, stop


@dataclass
class EpochBook:
    """One epoch: its size, its free samples, its committed samples."""

    rows: int
    free: Ranges
    committed: Ranges = field(default_factory=Ranges)


class ClosedEpochs(NamedTuple):
    """Complete epochs, one after the other, of the same size: `first <= e < stop`."""

    first: int
    stop: int
    rows: int


class Ledger:
    """Leases and commits of every open epoch.

    Closed epochs are kept as ranges, so that a run of very many epochs costs
    checkpoints no more than one of few.

    Example:
        >>> ledger = Ledger()
        >>> ledger.open(0, rows=10)
        >>> piece = ledger.lease(owner=1, epoch=0, count=4)
        >>> piece, ledger.free(0)
        (Piece(epoch=0, start=0, stop=4, step_rows=0), 6)
        >>> ledger.commit(1, [piece]), ledger.commit(1, [piece])
        (True, False)
        >>> ledger.committed(0), ledger.is_done(0)
        (4, False)
    """

    def __init__(self) -> None:
        self._books: dict[int, EpochBook] = {}
        self._closed: list[ClosedEpochs] = []
        self._leases: dict[int, list[Piece]] = {}
        self._active: list[int] = []

    def open(self, epoch: int, rows: int) -> None:
        """Makes all samples of an epoch free to lease, unless it was opened before."""
        if not self._has(epoch):
            book = self._books[epoch] = EpochBook(rows=rows, free=Ranges())
            book.free.add(0, rows)
            insort(self._active, epoch)

    def _place(self, epoch: int) -> int | None:
        """Returns which range of closed epochs has this one."""
        place = bisect_right(self._closed, epoch, key=lambda run: run.first) - 1
        return place if place >= 0 and epoch < self._closed[place].stop else None

    def _book(self, epoch: int) -> EpochBook:
        """Returns the book of an epoch, made anew if it is closed."""
        book = self._books.get(epoch)
        if book is not None:
            return book
        place = self._place(epoch)
        if place is None:
            raise KeyError(epoch)
        rows = self._closed[place].rows
        return EpochBook(rows=rows, free=Ranges(), committed=Ranges([0, rows]))

    @property
    def epochs(self) -> list[int]:
        """Every epoch that was opened, in order."""
        closed = (range(run.first, run.stop) for run in self._closed)
        return sorted(chain(self._books, *closed))

    def missing(self, other: Ledger) -> list[int]:
        """Epochs that were opened in another ledger, and not in this one."""
        found = [e for e in other._books if not self._has(e)]
        for run in other._closed:
            epoch = run.first
            while epoch < run.stop:
                place = self._place(epoch)
                if place is None and not self._has(epoch):
                    found.append(epoch)
                epoch = epoch + 1 if place is None else self._closed[place].stop
        return sorted(found)

    def _has(self, epoch: int) -> bool:
        return epoch in self._books or self._place(epoch) is not None

    @property
    def newest(self) -> int | None:
        """The last epoch that was opened; None if there is none."""
        ends = [*self._books, *(run.stop - 1 for run in self._closed[-1:])]
        return max(ends, default=None)

    @property
    def active(self) -> list[int]:
        """Epochs that are open and were not closed, in order."""
        return list(self._active)

    def close(self, epoch: int) -> None:
        """Takes a finished epoch off the list of active ones."""
        self._active.remove(epoch)
        self._fold(epoch)

    def _fold(self, epoch: int) -> None:
        """Keeps a closed epoch as part of a range, unless it was cut."""
        book = self._books[epoch]
        if book.committed.bounds != [0, book.rows]:
            return
        del self._books[epoch]
        runs, rows = self._closed, book.rows
        place = bisect_right(runs, epoch, key=lambda run: run.first)
        first, stop = epoch, epoch + 1
        if place < len(runs) and (runs[place].first, runs[place].rows) == (stop, rows):
            stop = runs.pop(place).stop
        before = runs[place - 1] if place else None
        if before is not None and (before.stop, before.rows) == (first, rows):
            place, first = place - 1, before.first
            del runs[place]
        runs.insert(place, ClosedEpochs(first, stop, rows))

    def cut(self, epoch: int) -> None:
        """Shrinks an epoch to the samples that are leased or committed."""
        book = self._books[epoch]
        # Only free rows go. Those that a lost worker returns later are leased again:
        # they belong to the epoch.
        book.rows -= len(book.free)
        book.free = Ranges()

    def free(self, epoch: int) -> int:
        """Samples of an epoch that are neither leased nor committed."""
        return len(self._book(epoch).free)

    def first(self, epoch: int) -> int:
        """The first free position of an epoch; it must have one."""
        return self._books[epoch].free.bounds[0]

    def run(self, epoch: int) -> int:
        """Free samples of an epoch that are contiguous at its first gap."""
        return self._book(epoch).free.run

    def committed(self, epoch: int) -> int:
        """Committed samples of an epoch."""
        return len(self._book(epoch).committed)

    def done(self, epoch: int) -> list[int]:
        """The committed samples of an epoch: start, stop, start, stop, in order."""
        return list(self._book(epoch).committed.bounds)

    def rows(self, epoch: int) -> int:
        """Samples of an epoch."""
        return self._book(epoch).rows

    def is_done(self, epoch: int) -> bool:
        """Whether every sample of an epoch is committed."""
        return self.committed(epoch) == self._book(epoch).rows

    def runs(self, epoch: int) -> list[tuple[int, int]]:
        """The free samples of an epoch as (start, stop), in order."""
        bounds = self._book(epoch).free.bounds
        return list(zip(bounds[::2], bounds[1::2], strict=True))

    def lease(
        self, owner: int, epoch: int, count: int, start: int | None = None
    ) -> Piece | None:
        """Gives up to `count` free samples, contiguous, to an owner.

        Args:
            owner: Rank that gets them.
            epoch: The epoch to take from.
            count: Most samples to lease.
            start: Position of the first, default None: the first free one.

        Returns:
            None if nothing is free there.
        """
        taken = self._book(epoch).free.take(count, start)
        return None if taken is None else self._grant(owner, epoch, *taken, step_rows=0)

    def deal(
        self,
        epoch: int,
        counts: Iterable[tuple[int, int]],
        *,
        exchanges_gradients: bool,
    ) -> list[tuple[int, Piece]]:
        """Splits the next contiguous free samples among owners.

        Args:
            epoch: The epoch to take from.
            counts: (owner, rows) in rank order. If fewer rows are left, the last
                owners get less or nothing.
            exchanges_gradients: The pieces are the shares of one step.
        """
        wanted = list(counts)
        taken = self._book(epoch).free.take(sum(rows for _, rows in wanted))
        if taken is None:
            return []
        start, stop = taken
        step_rows = stop - start if exchanges_gradients else 0
        dealt: list[tuple[int, Piece]] = []
        for owner, rows in wanted:
            end = min(stop, start + rows)
            if end > start:
                dealt.append((owner, self._grant(owner, epoch, start, end, step_rows)))
            start = end
        return dealt

    def _grant(
        self, owner: int, epoch: int, start: int, stop: int, step_rows: int
    ) -> Piece:
        piece = Piece(epoch, start, stop, step_rows)
        self._leases.setdefault(owner, []).append(piece)
        return piece

    @property
    def owners(self) -> list[int]:
        """Every owner of a lease, in order."""
        return sorted(owner for owner, pieces in self._leases.items() if pieces)

    def held(self, owner: int) -> list[Piece]:
        """Leases of an owner that are not committed yet."""
        return list(self._leases.get(owner, ()))

    def pieces_held(self, owner: int) -> int:
        """Number of an owner's leases."""
        return len(self._leases.get(owner, ()))

    def held_rows(self, owner: int) -> int:
        """Samples an owner has leased."""
        return sum(p.rows for p in self._leases.get(owner, ()))

    def covers(self, owner: int, pieces: Iterable[Piece]) -> bool:
        """Whether an owner's leases hold every sample of `pieces`, each once."""
        return self._without(owner, pieces) is not None

    def _without(self, owner: int, pieces: Iterable[Piece]) -> list[Piece] | None:
        """Leases left without `pieces`; None if they do not cover `pieces`."""
        # A worker may push a part of a lease: it keeps the rest.
        left = self.held(owner)
        for piece in pieces:
            for place, lease in enumerate(left):
                inside = lease.start <= piece.start < piece.stop <= lease.stop
                if lease.epoch == piece.epoch and inside:
                    rest = (lease.start, piece.start), (piece.stop, lease.stop)
                    left[place : place + 1] = [
                        Piece(lease.epoch, start, stop, lease.step_rows)
                        for start, stop in rest
                        if start < stop
                    ]
                    break
            else:
                return None
        return left

    def commit(self, owner: int, pieces: Iterable[Piece]) -> bool:
        """Marks samples as done; False, without any change, if not all are leased."""
        # Checked as a whole: a push is committed with all of its samples, or refused.
        wanted = list(pieces)
        left = self._without(owner, wanted)
        if left is None:
            return False
        self._leases[owner] = left
        for piece in wanted:
            self._books[piece.epoch].committed.add(piece.start, piece.stop)
        return True

    def release_all(self) -> None:
        """Frees every lease, as after a restart."""
        for owner in list(self._leases):
            self.release(owner)

    def release(self, owner: int) -> int:
        """Frees an owner's leases; returns the number of samples."""
        pieces = self._leases.pop(owner, [])
        for piece in pieces:
            self._books[piece.epoch].free.add(piece.start, piece.stop)
        return sum(p.rows for p in pieces)

    def to_json(self) -> dict[str, Any]:
        """The whole ledger as plain data, for checkpoints and replicas."""
        return {
            "books": {
                str(epoch): {
                    "rows": book.rows,
                    "free": list(book.free.bounds),
                    "done": list(book.committed.bounds),
                }
                for epoch, book in self._books.items()
            },
            "closed": [list(run) for run in self._closed],
            "active": list(self._active),
            "leases": {
                str(owner): [list(p) for p in pieces]
                for owner, pieces in self._leases.items()
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ledger:
        """The inverse of `to_json`."""
        ledger = cls()
        ledger._closed = [ClosedEpochs(*run) for run in data.get("closed", [])]
        bounds = [bound for run in ledger._closed for bound in run[:2]]
        if bounds != sorted(bounds):
            raise ValueError(f"closed epochs {ledger._closed!r:.80}")
        for epoch, book in data["books"].items():
            ledger._books[int(epoch)] = EpochBook(
                rows=book["rows"],
                free=Ranges(list(book["free"])),
                committed=Ranges(list(book["done"])),
            )
        ledger._active = list(data["active"])
        # Those of older versions have books of closed epochs, too.
        for epoch in sorted({*ledger._books} - {*ledger._active}):
            ledger._fold(epoch)
        for owner, pieces in data["leases"].items():
            ledger._leases[int(owner)] = [Piece(*p) for p in pieces]
        return ledger
