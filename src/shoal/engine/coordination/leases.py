"""The size and time of leases. Pure.

This file decides how samples are shared: fast workers take more, all end an epoch
together, and workers that exchange gradients always hold shares of the same steps.
Who holds which lease, and what returns when a worker is lost, is in `ledger.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import final

from shoal.data.order import shares, steps
from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.ledger import Ledger
from shoal.engine.coordination.locality import Locality
from shoal.engine.coordination.roster import Member

AHEAD = 2  # windows that a worker holds: one to compute, one to read ahead


def fair_rows(rules: Rules, free: int, workers: int) -> int:
    """Rows of one window, less near the end so that workers end together."""
    # Still shorter leases would cost an exchange for every few steps.
    least = max(1, rules.window // 4)
    fair = steps(free, workers * rules.batch)
    return min(rules.window, max(fair, least)) * rules.batch


@final
class Leases:
    """Gives leases to workers.

    Args:
        rules: Rules of the run.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._places: Locality | None = None
        # Under gradient exchange all workers share one contiguous range at each step:
        # there is no chunk to choose.
        if rules.borders is not None and not rules.exchanges_gradients:
            self._places = Locality(rules.borders, rules.batch, rules.starts_of)

    def forget(self, rank: int) -> None:
        """Forgets a lost worker."""
        if self._places is not None:
            self._places.forget(rank)

    def grant(
        self, ledger: Ledger, member: Member, workers: int, ahead: int | None = None
    ) -> None:
        """Leases what one worker may read ahead, and leaves the others their part.

        Args:
            ledger: Ledger of the run.
            member: The worker that gets the lease.
            workers: Number of workers that share an epoch.
            ahead: Most steps that it may hold; None for the usual windows.
        """
        most = AHEAD if ahead is None else ahead
        for epoch in ledger.active:
            while free := ledger.free(epoch):
                rows = fair_rows(self._rules, free, workers)
                if ahead is not None:
                    rows = min(rows, self._rules.batch)
                if ledger.held_rows(member.rank) >= most * rows:
                    break
                room = _room(self._rules, ledger, member.rank, epoch, workers)
                if room < 1:
                    break
                self._lease(ledger, member, epoch, min(rows, room), workers)

    def deal(
        self, ledger: Ledger, members: Sequence[Member], most: int = AHEAD
    ) -> bool:
        """Leases rounds in rank order, so that a run repeats exactly.

        Args:
            ledger: Ledger of the run.
            members: The workers that get leases.
            most: Most rounds that they may hold.

        Returns:
            Whether any worker got a lease.
        """
        rules, has_dealt = self._rules, False
        for epoch in ledger.active:
            while self._together(ledger, epoch):
                held = {m.rank: ledger.pieces_held(m.rank) for m in members}
                needy = [m for m in members if held[m.rank] < most]
                # Shares of one step must be pushed in one round: a worker that is new,
                # or got no row of a short step, waits until the others have used up
                # theirs.
                if not needy or (
                    rules.exchanges_gradients and len(set(held.values())) > 1
                ):
                    return has_dealt
                self._deal(ledger, needy, epoch)
                has_dealt = True
        return has_dealt

    def _together(self, ledger: Ledger, epoch: int) -> int:
        """Rows that can be dealt at once: contiguous ones, or any with borders."""
        return ledger.run(epoch) if self._places is None else ledger.free(epoch)

    def _deal(self, ledger: Ledger, needy: Sequence[Member], epoch: int) -> None:
        ranks = [member.rank for member in needy]
        run = self._together(ledger, epoch)
        counts = _counts(self._rules, ledger, epoch, run, ranks)
        members = {member.rank: member for member in needy}
        if self._places is None:
            dealt = ledger.deal(
                epoch, counts, exchanges_gradients=self._rules.exchanges_gradients
            )
            for rank, piece in dealt:
                members[rank].untold.append(piece)
            return
        for rank, rows in counts:
            if rows and ledger.free(epoch):
                self._lease(ledger, members[rank], epoch, rows, len(needy))

    def _lease(
        self, ledger: Ledger, member: Member, epoch: int, rows: int, workers: int
    ) -> None:
        places, rank, start = self._places, member.rank, None
        if places is not None:
            start = places.next(rank, epoch, ledger, workers)
        first = ledger.first(epoch) if start is None else start
        rows = whole_batches(self._rules, epoch, first, rows)
        piece = ledger.lease(rank, epoch, rows, start)
        if piece is None:
            raise AssertionError(f"nothing of epoch {epoch} is free at {start}")
        member.untold.append(piece)
        if places is not None:
            places.took(rank, piece)


def _room(rules: Rules, ledger: Ledger, rank: int, epoch: int, workers: int) -> int:
    """Rows that a worker may still take of an epoch: its part, less what it holds.

    A long window, or what is read ahead, can be more than the whole epoch.
    """
    held = (piece for piece in ledger.held(rank) if piece.epoch == epoch)
    mine = sum(steps(piece.rows, rules.batch) for piece in held)
    left = rules.rows_of(epoch) - ledger.committed(epoch)
    fair = max(1, steps(left, rules.batch) // workers)
    return (fair - mine) * rules.batch


def _counts(
    rules: Rules, ledger: Ledger, epoch: int, run: int, ranks: Sequence[int]
) -> list[tuple[int, int]]:
    """Rows of each rank; a small gap left by a lost worker is shared as well."""
    first, starts = ledger.first(epoch), rules.starts_of(epoch)
    if rules.exchanges_gradients:
        size = min(rules.batch, run)
        if starts is not None:
            size = min(size, _next_start(starts, first + 1) - first)
        sizes = shares(size, len(ranks))
        if rules.share:
            # The model takes no shares of another size.
            whole = min(size // rules.share, len(ranks))
            sizes = [rules.share] * whole + [0] * (len(ranks) - whole)
        return list(zip(ranks, sizes, strict=True))
    fair = fair_rows(rules, ledger.free(epoch), len(ranks))
    even = shares(steps(run, rules.batch), len(ranks))
    pairs = zip(ranks, even, strict=True)
    counts = [(rank, min(fair, part * rules.batch)) for rank, part in pairs]
    if starts is None:
        return counts
    found: list[tuple[int, int]] = []
    for rank, rows in counts:
        rows = whole_batches(rules, epoch, first, rows)
        found.append((rank, rows))
        first += rows
    return found


def whole_batches(rules: Rules, epoch: int, first: int, rows: int) -> int:
    """Rows from a position to at least `rows` further, up to the end of a batch."""
    starts = rules.starts_of(epoch)
    if starts is None or not rows:
        return rows
    return min(_next_start(starts, first + rows), rules.rows_of(epoch)) - first


def _next_start(starts: Sequence[int], position: int) -> int:
    """The first start of a batch at or behind a position; far away behind all."""
    place = bisect_left(starts, position)
    return starts[place] if place < len(starts) else 1 << 62
