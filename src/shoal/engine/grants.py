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
    """Leases what one worker may read ahead."""
    for epoch in ledger.active:
        while free := ledger.free(epoch):
            rows = fair_rows(rules, free, workers)
            if ledger.held_rows(member.rank) >= AHEAD * rows:
                break
            piece = ledger.lease(member.rank, epoch, rows)
            if piece is not None:
                member.untold.append(piece)


def deal(rules: Rules, ledger: Ledger, members: Sequence[Member]) -> None:
    """Leases rounds in rank order, so that a run repeats exactly."""
    for epoch in ledger.active:
        while run := ledger.run(epoch):
            held = {m.rank: ledger.pieces_held(m.rank) for m in members}
            needy = [m for m in members if held[m.rank] < AHEAD]
            # Shares of one step must be pushed in one round: whoever is new, or got
            # no row of a short step, waits until the others have used up theirs.
            if not needy or (rules.is_gang and len(set(held.values())) > 1):
                return
            counts = _counts(rules, ledger, epoch, run, [m.rank for m in needy])
            dealt = ledger.deal(epoch, counts, is_gang=rules.is_gang)
            mine = {m.rank: m for m in needy}
            for rank, piece in dealt:
                mine[rank].untold.append(piece)


def _counts(
    rules: Rules, ledger: Ledger, epoch: int, run: int, ranks: Sequence[int]
) -> list[tuple[int, int]]:
    """Rows of each rank; a small gap that a dead worker left is shared as well."""
    if rules.is_gang:
        sizes = shares(min(rules.batch, run), len(ranks))
        return list(zip(ranks, sizes, strict=True))
    fair = fair_rows(rules, ledger.free(epoch), len(ranks))
    even = -(-run // (len(ranks) * rules.batch)) * rules.batch
    return [(rank, min(fair, even)) for rank in ranks]
