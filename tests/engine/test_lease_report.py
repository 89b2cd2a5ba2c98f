"""The ledger in few numbers: exact where there is room, and never too long."""

from __future__ import annotations

import random

import pytest

from shoal.engine.coordination.lease_report import MOST_NUMBERS, coarse, lease_report
from shoal.engine.coordination.ledger import Ledger


def ledger_of(workers: int, rows: int, seed: int) -> Ledger:
    """A ledger in which workers lease and commit in a random order, and are lost."""
    ledger, chance = Ledger(), random.Random(seed)
    for epoch in range(2):
        ledger.open(epoch, rows)
    for _ in range(rows):
        owner, epoch = chance.randrange(workers), chance.randrange(2)
        match chance.randrange(8):
            case 0:
                ledger.release(owner)
            case 1 | 2 | 3 if ledger.held(owner):
                assert ledger.commit(owner, [chance.choice(ledger.held(owner))])
            case _:
                ledger.lease(owner, epoch, 1 + chance.randrange(4))
    return ledger


@pytest.mark.parametrize("workers", [1, 3, 40, 200])
def test_a_report_is_short_and_keeps_the_ends(workers: int):
    for seed in range(5):
        ledger = ledger_of(workers, 2000, seed)
        found = lease_report(ledger)
        ranges = [
            r for one in found for r in (one["committed"], *one["leased"].values())
        ]
        assert sum(map(len, ranges)) <= MOST_NUMBERS
        for bounds in ranges:
            assert bounds == sorted(set(bounds))
        for one in found:
            done = ledger.done(one["epoch"])
            assert one["committed"][:1] == done[:1]
            assert one["committed"][-1:] == done[-1:]
            if len(done) <= 64:
                assert one["committed"] == done


def test_the_narrowest_gaps_are_closed():
    assert coarse([0, 1, 2, 3, 9, 10], most=2) == [0, 10]
    assert coarse([0, 1, 2, 3, 9, 10], most=5) == [0, 3, 9, 10]
    assert coarse([], most=2) == []


def test_no_open_epoch_has_no_report():
    assert lease_report(Ledger()) == []
