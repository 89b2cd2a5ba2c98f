from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.data.order import Order, Shuffle, Span, share, shares, short_batch, steps
from shoal.errors import ConfigError

counts = some.integers(1, 300)
shuffles = some.sampled_from([True, False, "batch"])


@given(batch=some.integers(0, 500), workers=some.integers(1, 40))
def test_shares_are_fair_and_whole(batch: int, workers: int):
    sizes = shares(batch, workers)
    assert sum(sizes) == batch
    assert len(sizes) == workers
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(batch=some.integers(0, 500), workers=some.integers(1, 40))
def test_ranges_of_ranks_follow_each_other(batch: int, workers: int):
    ranges = [share(batch, workers, rank) for rank in range(workers)]
    assert [stop - start for start, stop in ranges] == shares(batch, workers)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]


@given(rows=some.integers(0, 1000), batch=some.integers(1, 100))
def test_steps_cover_all_rows(rows: int, batch: int):
    last = short_batch(rows, batch)
    full = steps(rows, batch) - (last > 0)
    assert full * batch + last == rows


@given(rows=counts, seed=some.integers(0, 2**40), batch=counts, shuffle=shuffles)
def test_an_epoch_is_every_row_once(rows: int, seed: int, batch: int, shuffle: Shuffle):
    order = Order(rows=rows, seed=seed, shuffle=shuffle, batch_size=batch)
    for epoch in range(3):
        found = order.indices(epoch, 0, order.rows_of(epoch))
        assert sorted(found) == list(range(rows))


@given(
    rows=counts, batch=some.integers(1, 40), per_epoch=some.integers(1, 12),
    shuffle=shuffles,
)  # fmt: skip
def test_a_short_epoch_continues_the_pass_of_the_last_one(
    rows: int, batch: int, per_epoch: int, shuffle: Shuffle
):
    order = Order(
        rows=rows, shuffle=shuffle, batch_size=batch, steps_per_epoch=per_epoch
    )
    turns = steps(steps(rows, batch), per_epoch)
    found = [
        int(i)
        for epoch in range(turns)
        for i in order.indices(epoch, 0, order.rows_of(epoch))
    ]
    assert sorted(found) == list(range(rows))
    assert order.span(turns).turn == 1


def test_steps_per_epoch_cuts_epochs_as_in_keras():
    # 10 batches, 4 a epoch: Keras takes 4, 4 and the 2 that are left.
    order = Order(rows=100, shuffle=False, batch_size=10, steps_per_epoch=4)
    assert [order.rows_of(epoch) for epoch in range(5)] == [40, 40, 20, 40, 40]
    assert order.span(4) == Span(1, 40, 40)
    assert list(order.indices(1, 0, 2)) == [40, 41]


@pytest.mark.parametrize("first", [0, 1, 5])
def test_the_first_epoch_begins_a_pass_as_in_keras(first: int):
    # 5 batches, 3 an epoch: Keras takes 3 and then 2, wherever it starts.
    order = Order(
        rows=10, shuffle=False, batch_size=2, steps_per_epoch=3, first_epoch=first
    )
    assert [order.rows_of(first + k) for k in range(4)] == [6, 4, 6, 4]
    assert list(order.indices(first, 0, 6)) == list(range(6))
    assert order.span(first + 2).start == 0


@given(rows=counts, start=counts, more=counts)
def test_parts_are_parts_of_the_whole(rows: int, start: int, more: int):
    order = Order(rows=rows, seed=5)
    start = min(start, rows)
    stop = min(rows, start + more)
    whole = order.indices(2, 0, rows)
    assert list(order.indices(2, start, stop)) == list(whole[start:stop])


def test_seed_and_epoch_decide_the_order():
    def epoch(seed: int, number: int) -> list[int]:
        return list(Order(rows=50, seed=seed).indices(number, 0, 50))

    assert epoch(1, 0) == epoch(1, 0)
    assert epoch(1, 0) != epoch(1, 1)
    assert epoch(1, 0) != epoch(2, 0)
    assert epoch(0, 1) != epoch(1, 0)


def test_batch_shuffle_stays_within_batches_as_in_keras():
    """keras' ArrayDataAdapter: a permutation of each batch, batches in their order."""
    order = Order(rows=70, seed=3, shuffle="batch", batch_size=32)
    found = order.indices(0, 0, 70)
    assert list(found) != list(range(70))
    for start, stop in [(0, 32), (32, 64), (64, 70)]:
        assert sorted(found[start:stop]) == list(range(start, stop))


def test_two_epochs_are_kept_and_no_more():
    order = Order(rows=10, seed=1)
    for epoch in [0, 1, 0, 2, 1, 2]:
        order.indices(epoch, 0, 10)
    assert sorted(order._kept) == [1, 2]


def test_indices_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        Order(rows=10).indices(0, 0, 10)[0] = 3


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 11)])
def test_positions_outside_the_epoch(start: int, stop: int):
    with pytest.raises(IndexError, match="outside epoch 0"):
        Order(rows=10).indices(0, start, stop)


@pytest.mark.parametrize(
    "wrong", [{"rows": 0}, {"batch_size": 0}, {"steps_per_epoch": -1}]
)
def test_an_order_needs_rows(wrong: dict[str, Any]):
    arguments: dict[str, Any] = {"rows": 10, **wrong}
    with pytest.raises(ConfigError, match=str(next(iter(wrong)))):
        Order(**arguments)


def test_an_order_travels_and_stays_the_same():
    import pickle

    order = Order(rows=20, seed=9)
    expected = order.indices(0, 0, 20)
    again = pickle.loads(pickle.dumps(order))
    assert np.array_equal(again.indices(0, 0, 20), expected)


def test_sizes_of_epochs_repeat_after_a_pass():
    assert Order(rows=100).epochs_per_pass == 1
    order = Order(rows=100, batch_size=10, steps_per_epoch=4)
    assert order.epochs_per_pass == 3
    assert [order.rows_of(e) for e in range(3)] == [
        order.rows_of(e + 3) for e in range(3)
    ]
