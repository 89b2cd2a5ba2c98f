"""How much data a worker is given, and when. Pure.

This file decides how samples are shared: fast workers take more, all end an epoch
together, and the workers of a gang always hold shares of the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.data.order import shares
from shoal.engine.instructions import Rules
from shoal.engine.ledger import Ledger
from shoal.engine.roster import Member

AHEAD = 2  # windows a worker holds: one it computes, one it can read ahead


def fair_rows(rules: Rules, free: int, workers: int) -> int:
    """Rows of one window, less near the end so that workers end together."""
    least = max(1, rules.window // 4)
    fair = -(-free // (workers * rules.batch))
    return min(rules.window, max(fair, least)) * rules.batch


def grant(rules: Rules, ledger: Ledger, member: Member, workers: int) -> None:
    """Leases what one worker may read ahead, and leaves the others their part."""
    for epoch in ledger.active:
        while free := ledger.free(epoch):
            rows = fair_rows(rules, free, workers)
            room = _room(rules, ledger, member.rank, epoch, workers)
            if room < 1 or ledger.held_rows(member.rank) >= AHEAD * rows:
                break
            piece = ledger.lease(member.rank, epoch, min(rows, room))
            if piece is not None:
                member.untold.append(piece)


def _room(rules: Rules, ledger: Ledger, rank: int, epoch: int, workers: int) -> int:
    """Rows a worker may still take of an epoch: its part, less what it holds.

    A long window, or what is read ahead, can be more than all there is.
    """
    mine = sum(piece.rows for piece in ledger.held(rank) if piece.epoch == epoch)
    left = rules.rows_of(epoch) - ledger.committed(epoch)
    fair = max(1, -(-left // rules.batch) // workers)
    return fair * rules.batch - mine


def deal(rules: Rules, ledger: Ledger, members: Sequence[Member]) -> bool:
    """Leases rounds in rank order, so that a run repeats exactly.

    Returns:
        Whether anybody got anything.
    """
    has_dealt = False
    for epoch in ledger.active:
        while run := ledger.run(epoch):
            held = {m.rank: ledger.pieces_held(m.rank) for m in members}
            needy = [m for m in members if held[m.rank] < AHEAD]
            # Shares of one step must be pushed in one round: whoever is new, or got
            # no row of a short step, waits until the others have used up theirs.
            if not needy or (rules.is_gang and len(set(held.values())) > 1):
                return has_dealt
            counts = _counts(rules, ledger, epoch, run, [m.rank for m in needy])
            dealt = ledger.deal(epoch, counts, is_gang=rules.is_gang)
            mine = {m.rank: m for m in needy}
            for rank, piece in dealt:
                mine[rank].untold.append(piece)
                has_dealt = True
    return has_dealt


def _counts(
    rules: Rules, ledger: Ledger, epoch: int, run: int, ranks: Sequence[int]
) -> list[tuple[int, int]]:
    """Rows of each rank; a small gap that a dead worker left is shared as well."""
    if rules.is_gang:
        sizes = shares(min(rules.batch, run), len(ranks))
        return list(zip(ranks, sizes, strict=True))
    fair = fair_rows(rules, ledger.free(epoch), len(ranks))
    even = shares(-(-run // rules.batch), len(ranks))
    pairs = zip(ranks, even, strict=True)
    return [(rank, min(fair, steps * rules.batch)) for rank, steps in pairs]
