"""Leases as a reader of a run knows them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.runs.leases import MOST_ENDED, LeaseFold, Spans, cut, joined

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def members(spans: Spans) -> set[int]:
    return {at for start, stop in spans for at in range(start, stop)}


@given(SPANS, SPANS)
def test_ranges_behave_as_sets(some, others):
    spans, taken = joined(some), joined(others)
    assert members(spans) == {at for start, stop in some for at in range(start, stop)}
    assert members(cut(spans, taken)) == members(spans) - members(taken)
    assert cut(spans, taken) == joined(cut(spans, taken))


def report(committed: list[int], leased: dict[int, list[int]]) -> dict:
    one = {"epoch": 0, "rows": 10, "committed": committed, "leased": leased}
    return {"kind": "leases", "epochs": [one]}


def test_ranges_of_lost_workers_come_back_until_they_are_committed():
    fold = LeaseFold()
    fold.add(report([0, 2], {0: [2, 4], 1: [4, 8]}))
    fold.add({"kind": "worker_lost", "rank": 1})
    [one] = fold.epochs()
    assert (one.returned, one.leased_rows, one.free_rows) == (((4, 8),), 2, 6)
    fold.add(report([0, 5], {0: [5, 7]}))
    [one] = fold.epochs()
    assert one.returned == ((5, 8),)
    assert fold.epochs(is_over=True)[0].leased == {}
    fold.add({"kind": "worker_left", "rank": 7})  # it had no leases
    fold.add({"kind": "epoch_ended", "epoch": 0, "samples": 10})
    [one] = fold.epochs()
    assert (one.committed_rows, one.leased, one.returned) == (10, {}, ())
    assert (one.came_back, one.came_back_rows) == (((4, 8),), 4)


def test_ended_epochs_are_kept_until_they_are_trained_again():
    fold = LeaseFold()
    fold.add(report([0, 2], {0: [2, 4]}))
    for epoch in range(MOST_ENDED + 2):
        fold.add({"kind": "epoch_ended", "epoch": epoch, "samples": 10})
    fold.add(report([0, 2], {0: [2, 4]}))  # of an epoch that has ended: late
    found = fold.epochs(is_over=True)
    assert [one.epoch for one in found] == list(range(2, MOST_ENDED + 2))
    assert all(one.is_complete and not one.came_back for one in found)
    fold.add({"kind": "run_resumed", "workers": 2, "epoch": 4})
    assert [one.epoch for one in fold.epochs()] == [2, 3]
    fold.add({"kind": "rollback", "committed": {}})
    assert fold.epochs() == []


def test_what_is_no_range_of_the_epoch_is_left_out():
    fold = LeaseFold()
    fold.add(report([8, 4, 6, 99, 3], {0: [20, 30]}))
    [one] = fold.epochs()
    assert (one.committed, one.leased, one.free_rows) == (((6, 10),), {}, 6)
