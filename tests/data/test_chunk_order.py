"""Chunks in a new order each pass: every row once, and few chunks at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.chunk_order import ChunkOrder
from shoal.data.order import Order
from shoal.facts import Chunking

sizes = st.lists(st.integers(1, 30), min_size=1, max_size=12).map(tuple)
mixings = st.sampled_from(["rows", "chunks", "nothing"])


@given(sizes, mixings, st.integers(1, 60), st.booleans(), st.booleans(), st.data())
def test_every_row_comes_once(rows, mixing, group_rows, has_lanes, shuffle, draw):
    chunking = Chunking(
        rows=rows, mixing=mixing, group_rows=group_rows, has_lanes=has_lanes
    )
    total = sum(rows)
    order = Order(rows=total, seed=3, shuffle=shuffle, batch_size=7, chunking=chunking)
    whole = order.indices(2, 0, total)
    assert sorted(whole.tolist()) == list(range(total))
    start = draw.draw(st.integers(0, total))
    stop = draw.draw(st.integers(start, total))
    # Another process asks for other ranges first, and finds the same.
    other = Order(rows=total, seed=3, shuffle=shuffle, batch_size=7, chunking=chunking)
    np.testing.assert_array_equal(other.indices(2, start, stop), whole[start:stop])
    if not shuffle or mixing == "nothing":
        assert whole.tolist() == list(range(total))


@given(sizes, st.integers(1, 60))
def test_a_range_touches_the_chunks_of_its_groups_only(rows, group_rows):
    order = ChunkOrder(Chunking(rows=rows, group_rows=group_rows), 1, shuffle=True)
    owner = np.repeat(np.arange(len(rows)), rows)
    total, most = sum(rows), max(group_rows, *rows)
    whole = owner[order.indices(0, 0, total)]
    for chunk in range(len(rows)):
        places = np.flatnonzero(whole == chunk)
        assert places[-1] - places[0] < most


def test_rows_of_a_chunk_stay_in_order_where_only_chunks_may_move() -> None:
    order = ChunkOrder(Chunking(rows=(4,) * 20, mixing="chunks"), 1, shuffle=True)
    found = order.indices(0, 0, 80).reshape(20, 4)
    assert (np.diff(found) == 1).all()
    assert (found[:, 0] % 4 == 0).all()
    assert found[:, 0].tolist() != sorted(found[:, 0].tolist())


@pytest.mark.parametrize("workers", [2, 4])
def test_with_lanes_a_share_of_every_batch_comes_from_its_own_chunks(
    workers: int,
) -> None:
    chunking = Chunking(rows=(400,) * 8, group_rows=1600, has_lanes=True)
    order = ChunkOrder(chunking, 1, shuffle=True, batch_size=40)
    owner = np.repeat(np.arange(8), 400)
    share = 40 // workers
    for group in range(2):
        for rank in range(workers):
            seen = {
                int(chunk)
                for batch in range(40 * group, 40 * (group + 1))
                for chunk in owner[
                    order.indices(
                        0, 40 * batch + rank * share, 40 * batch + (rank + 1) * share
                    )
                ]
            }
            assert len(seen) == 4 // workers


def test_with_lanes_a_share_comes_from_the_same_chunks_in_each_pass() -> None:
    chunking = Chunking(rows=(50,) * 8, group_rows=400, has_lanes=True)
    order = ChunkOrder(chunking, 3, shuffle=True, batch_size=40)
    owner = np.repeat(np.arange(8), 50)
    seen = {
        turn: {
            int(chunk)
            for batch in range(10)
            for chunk in owner[order.indices(turn, 40 * batch, 40 * batch + 20)]
        }
        for turn in range(3)
    }
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 4
    mixed = [order.indices(turn, 0, 40).tolist() for turn in range(2)]
    assert mixed[0] != mixed[1]


def test_passes_differ_and_repeat() -> None:
    chunking = Chunking(rows=(5,) * 9, group_rows=15)
    one = ChunkOrder(chunking, 7, shuffle=True)
    first = one.indices(0, 0, 45).tolist()
    assert first != one.indices(1, 0, 45).tolist()
    for turn in range(2, 9):
        one.indices(turn, 0, 45)
    assert one.indices(0, 0, 45).tolist() == first
