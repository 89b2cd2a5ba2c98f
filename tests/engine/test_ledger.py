"""The ledger against sets of integers, which are slow and simple."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.engine.coordination.ledger import Ledger, Piece, Ranges

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: sorted(pair))
EDITS = st.lists(st.tuples(st.booleans(), SPANS), max_size=12)


def ranges_of(edits) -> tuple[Ranges, set[int]]:
    ranges, model = Ranges(), set()
    for is_added, (start, stop) in edits:
        if is_added:
            ranges.add(start, stop)
            model |= set(range(start, stop))
        else:
            ranges.remove(start, stop)
            model -= set(range(start, stop))
    return ranges, model


def members(ranges: Ranges) -> set[int]:
    pairs = zip(ranges.bounds[::2], ranges.bounds[1::2], strict=True)
    return {i for start, stop in pairs for i in range(start, stop)}


class TestRanges:
    @given(EDITS)
    def test_ranges_behave_as_a_set(self, edits) -> None:
        ranges, model = ranges_of(edits)
        assert members(ranges) == model
        assert len(ranges) == len(model)

    @given(EDITS)
    def test_ranges_are_sorted_and_do_not_touch(self, edits) -> None:
        bounds = ranges_of(edits)[0].bounds
        assert bounds == sorted(set(bounds))

    @given(EDITS, st.integers(0, 50))
    def test_take_gives_the_first_run_in_part(self, edits, count) -> None:
        ranges, model = ranges_of(edits)
        run = ranges.run
        taken = ranges.take(count)
        if taken is None:
            assert not model or count == 0
            assert members(ranges) == model
            return
        start, stop = taken
        assert start == min(model)
        assert stop - start == min(count, run)
        assert members(ranges) == model - set(range(start, stop))


class LedgerMachine(RuleBasedStateMachine):
    """Owners lease, commit, return and are refused, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.free: dict[int, set[int]] = {}
        self.done: dict[int, set[int]] = {}
        self.held: dict[int, set[tuple[int, int]]] = {}

    @rule(epoch=st.integers(0, 3), rows=st.integers(0, 30))
    def open(self, epoch: int, rows: int) -> None:
        if epoch not in self.free:
            self.free[epoch], self.done[epoch] = set(range(rows)), set()
        self.ledger.open(epoch, rows)

    def take(self, owner: int, piece: Piece) -> None:
        rows = set(range(piece.start, piece.stop))
        assert rows
        assert rows <= self.free[piece.epoch]
        self.free[piece.epoch] -= rows
        self.held.setdefault(owner, set()).update((piece.epoch, r) for r in rows)

    @precondition(lambda self: self.free)
    @rule(owner=st.integers(0, 3), count=st.integers(0, 12), data=st.data())
    def lease(self, owner: int, count: int, data) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.free)))
        piece = self.ledger.lease(owner, epoch, count)
        if piece is None:
            assert not self.free[epoch] or count == 0
        else:
            assert piece.rows <= count
            self.take(owner, piece)

    @precondition(lambda self: self.free)
    @rule(sizes=st.lists(st.integers(0, 6), max_size=4), data=st.data())
    def deal(self, sizes: list[int], data) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.free)))
        exchanges_gradients = data.draw(st.booleans())
        run = self.ledger.run(epoch)
        dealt = self.ledger.deal(
            epoch, enumerate(sizes), exchanges_gradients=exchanges_gradients
        )
        total = min(run, sum(sizes))
        assert sum(piece.rows for _, piece in dealt) == total
        for owner, piece in dealt:
            assert piece.step_rows == (total if exchanges_gradients else 0)
            assert piece.rows <= sizes[owner]
            self.take(owner, piece)

    @rule(owner=st.integers(0, 3), data=st.data())
    def commit(self, owner: int, data) -> None:
        pieces = []
        for lease in self.ledger.held(owner):
            start = data.draw(st.integers(lease.start, lease.stop - 1))
            stop = data.draw(st.integers(start + 1, lease.stop))
            if data.draw(st.booleans()):
                pieces.append(lease._replace(start=start, stop=stop))
        rows = {(p.epoch, r) for p in pieces for r in range(p.start, p.stop)}
        assert self.ledger.covers(owner, pieces)
        assert self.ledger.commit(owner, pieces)
        self.held.setdefault(owner, set()).difference_update(rows)
        for epoch, row in rows:
            assert row not in self.done[epoch]
            self.done[epoch].add(row)
        if pieces:
            assert not self.ledger.commit(owner, pieces)  # once, and not again

    @rule(owner=st.integers(0, 3), piece=st.tuples(st.integers(0, 4), SPANS))
    def commit_what_may_not_be_held(self, owner: int, piece) -> None:
        epoch, (start, stop) = piece
        rows = {(epoch, row) for row in range(start, stop)}
        if rows and not rows <= self.held.get(owner, set()):
            before = self.ledger.to_json()
            assert not self.ledger.commit(owner, [Piece(epoch, start, stop)])
            assert self.ledger.to_json() == before

    @rule(owner=st.integers(0, 3))
    def release(self, owner: int) -> None:
        held = self.held.pop(owner, set())
        assert self.ledger.release(owner) == len(held)
        for epoch, row in held:
            self.free[epoch].add(row)

    @rule()
    def release_all(self) -> None:
        self.ledger.release_all()
        for owner in list(self.held):
            for epoch, row in self.held.pop(owner):
                self.free[epoch].add(row)

    @rule(epoch=st.integers(0, 3))
    def cut(self, epoch: int) -> None:
        if epoch in self.free:
            self.ledger.cut(epoch)
            self.free[epoch] = set()

    @rule()
    def travel(self) -> None:
        text = json.dumps(self.ledger.to_json())
        self.ledger = Ledger.from_json(json.loads(text))
        assert json.dumps(self.ledger.to_json()) == text

    @invariant()
    def counts_agree(self) -> None:
        ledger = self.ledger
        assert ledger.epochs == ledger.active == sorted(self.free)
        for epoch, free in self.free.items():
            assert ledger.free(epoch) == len(free)
            assert ledger.committed(epoch) == len(self.done[epoch])
            held = any(e == epoch for h in self.held.values() for e, _ in h)
            assert ledger.is_done(epoch) == (not free and not held)
        for owner, held in self.held.items():
            assert ledger.held_rows(owner) == len(held)
            assert bool(ledger.pieces_held(owner)) == bool(held)


LedgerMachine.TestCase.settings = settings(max_examples=60)
TestLedgerMachine = LedgerMachine.TestCase


def leased(ledger: Ledger, rows: int) -> Piece:
    piece = ledger.lease(0, 0, rows)
    assert piece is not None
    return piece


def test_closed_epochs_cost_no_search_and_still_count() -> None:
    ledger = Ledger()
    ledger.open(1, 2)
    ledger.open(0, 2)
    piece = leased(ledger, 2)
    assert ledger.commit(0, [piece])
    ledger.close(0)
    assert ledger.active == [1]
    assert ledger.epochs == [0, 1]
    assert ledger.committed(0) == 2


def test_a_piece_twice_in_one_push_is_refused() -> None:
    ledger = Ledger()
    ledger.open(0, 10)
    piece = leased(ledger, 5)
    assert not ledger.commit(0, [piece, piece])
    assert ledger.committed(0) == 0


@pytest.mark.parametrize("owner", [1, 2])
def test_an_owner_cannot_commit_leases_of_another(owner: int) -> None:
    ledger = Ledger()
    ledger.open(0, 10)
    piece = leased(ledger, 5)
    assert not ledger.commit(owner, [piece])
