"""The ledger in few numbers, for those who watch a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.engine.coordination.ledger import Ledger, Ranges

MOST_NUMBERS = 256
"""Numbers of a report: half of them at most for leases, the rest for what is done."""
LEASES_S = 1.0
"""Seconds between two reports, at least."""
MOST_EPOCHS = 4
"""Open epochs that a report tells of; usually there are one or two."""


def lease_report(ledger: Ledger, most: int = MOST_NUMBERS) -> list[dict[str, Any]]:
    """Returns for each open epoch its rows, and who has leased and what is committed.

    Ranges are flat lists: start, stop, start, stop. Where there are too many of them,
    the narrowest gaps are closed, and of many workers the last ones are left out.

    Args:
        ledger: Ledger of the run.
        most: Most numbers of all ranges, at least 8 for each open epoch.

    Example:
        >>> ledger = Ledger()
        >>> ledger.open(0, rows=10)
        >>> piece = ledger.lease(owner=1, epoch=0, count=4)
        >>> rest = ledger.lease(owner=0, epoch=0, count=2)
        >>> ledger.commit(1, [piece])
        True
        >>> lease_report(ledger)
        [{'epoch': 0, 'rows': 10, 'committed': [0, 4], 'leased': {'0': [4, 6]}}]
    """
    epochs = ledger.active[:MOST_EPOCHS]
    held: dict[int, dict[int, Ranges]] = {epoch: {} for epoch in epochs}
    for owner in ledger.owners:
        for piece in ledger.held(owner):
            if piece.epoch in held:
                ranges = held[piece.epoch].setdefault(owner, Ranges())
                ranges.add(piece.start, piece.stop)
    each = sum(map(len, held.values()))
    # Two numbers of one worker at least: with more workers than that some are left out.
    share = max(2, most // 2 // max(1, each))
    left = most // 2
    found: list[dict[str, Any]] = []
    for epoch in epochs:
        leased: dict[str, list[int]] = {}
        for owner, ranges in held[epoch].items():
            bounds = coarse(ranges.bounds, share)
            if len(bounds) <= left:
                leased[str(owner)] = bounds
                left -= len(bounds)
        committed = coarse(ledger.done(epoch), most // 2 // len(epochs))
        found.append(
            {
                "epoch": epoch,
                "rows": ledger.rows(epoch),
                "committed": committed,
                "leased": leased,
            }
        )
    return found


def coarse(bounds: Sequence[int], most: int) -> list[int]:
    """Returns ranges in at most so many numbers: the narrowest gaps are closed.

    Example:
        >>> coarse([0, 2, 3, 5, 9, 10], most=4)
        [0, 5, 9, 10]
    """
    gaps = range(1, len(bounds) - 1, 2)
    extra = len(bounds) // 2 - max(1, most // 2)
    if extra <= 0:
        return list(bounds)
    narrow = sorted(gaps, key=lambda at: bounds[at + 1] - bounds[at])[:extra]
    closed = {place for at in narrow for place in (at, at + 1)}
    return [bound for at, bound in enumerate(bounds) if at not in closed]
