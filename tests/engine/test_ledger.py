"""The ledger against sets of integers, which are slow and simple."""

from __future__ import annotations

import json
from typing import Any

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
        self.closed = set[int]()

    @rule(epoch=st.integers(0, 9), rows=st.sampled_from([0, 1, 1, 2, 30]))
    def open(self, epoch: int, rows: int) -> None:
        if epoch not in self.free:
            self.free[epoch], self.done[epoch] = set(range(rows)), set()
        self.ledger.open(epoch, rows)

    @rule(epoch=st.integers(0, 9), rows=st.integers(1, 2))
    def open_complete_and_close(self, epoch: int, rows: int) -> None:
        if epoch not in self.free:
            self.open(epoch, rows)
            self.take(9, leased(self.ledger, rows, owner=9, epoch=epoch))
            assert self.ledger.commit(9, self.ledger.held(9))
            self.done[epoch] = {row for e, row in self.held.pop(9) if e == epoch}
            self.close()

    @rule()
    def close(self) -> None:
        for epoch in self.ledger.active:
            if self.ledger.is_done(epoch):
                self.ledger.close(epoch)
                self.closed.add(epoch)

    @rule(epoch=st.integers(0, 11), rows=st.integers(1, 3))
    def find_what_another_has_opened(self, epoch: int, rows: int) -> None:
        other = Ledger.from_json(self.ledger.to_json())
        other.open(epoch, rows)
        missing = [epoch] if epoch not in self.free else []
        assert self.ledger.missing(other) == missing
        assert other.missing(self.ledger) == []
        assert Ledger().missing(other) == other.epochs

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
        if epoch in self.ledger.active:
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
        assert ledger.epochs == sorted(self.free)
        assert ledger.active == sorted({*self.free} - self.closed)
        assert ledger.newest == max(self.free, default=None)
        for epoch, free in self.free.items():
            assert ledger.free(epoch) == len(free)
            assert ledger.committed(epoch) == len(self.done[epoch])
            bounds = ledger.done(epoch)
            rows = [
                range(*pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)
            ]
            assert {row for part in rows for row in part} == self.done[epoch]
            held = any(e == epoch for h in self.held.values() for e, _ in h)
            assert ledger.is_done(epoch) == (not free and not held)
        for owner, held in self.held.items():
            assert ledger.held_rows(owner) == len(held)
            assert bool(ledger.pieces_held(owner)) == bool(held)


LedgerMachine.TestCase.settings = settings(max_examples=60)
TestLedgerMachine = LedgerMachine.TestCase


def leased(ledger: Ledger, rows: int, owner: int = 0, epoch: int = 0) -> Piece:
    piece = ledger.lease(owner, epoch, rows)
    assert piece is not None
    return piece


def test_a_run_of_many_epochs_has_a_small_checkpoint() -> None:
    ledger = Ledger()
    sizes = [len(json.dumps(ledger.to_json()))]
    for epoch in range(1_000):
        ledger.open(epoch, 64)
        assert ledger.commit(0, [leased(ledger, 64, epoch=epoch)])
        ledger.close(epoch)
        sizes.append(len(json.dumps(ledger.to_json())))
    assert max(sizes) < sizes[0] + 100
    # A checkpoint of an older version has a book for each.
    books = {str(e): {"rows": 64, "free": [], "done": [0, 64]} for e in range(1_000)}
    older = Ledger.from_json({"books": books, "active": [], "leases": {}})
    assert {**older.to_json(), "leases": {"0": []}} == ledger.to_json()


@pytest.mark.parametrize("closed", [[[3, 1, 5]], [[2, 4, 5], [0, 3, 5]], [[0, "a", 5]]])
def test_ranges_that_no_ledger_wrote_are_refused(closed: list[Any]) -> None:
    document = {**Ledger().to_json(), "closed": closed}
    with pytest.raises((ValueError, TypeError)):
        Ledger.from_json(document)


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
