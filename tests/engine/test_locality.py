"""Workers read separate chunks, and share an epoch to its last sample."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.order import Order
from shoal.engine.coordination.instructions import PushMetadata, Rules
from shoal.engine.coordination.ledger import Ledger, Piece
from shoal.engine.coordination.locality import Locality
from shoal.engine.coordination.sequencer import Sequencer
from shoal.facts import Chunking


def run(
    order: Order, batch: int, window: int, speeds: Sequence[float], *, is_rounds: bool
) -> list[list[Piece]]:
    """Samples that each worker trained on in one epoch, each at its own speed."""
    sequencer = Sequencer(
        Rules(
            epoch_rows=(order.rows,), first_epoch=0, epochs=1, workers=len(speeds),
            batch=batch, window=window, is_rounds=is_rounds, exchanges_gradients=False,
            is_elastic=False, borders=order.borders,
        )
    )  # fmt: skip
    members = [sequencer.join(rank) for rank in range(len(speeds))]
    sequencer.proceed(0)
    for member in members:
        sequencer.ready(member.rank, member.incarnation)
    done: list[list[Piece]] = [[] for _ in speeds]
    free_at = list(speeds)
    pushed = [0] * len(speeds)
    while not sequencer.ledger.is_done(0):
        ranks = [r for r in range(len(speeds)) if sequencer.ledger.held(r)]
        if is_rounds:  # all push, in any order
            waiting = [r for r in ranks if pushed[r] == min(pushed[r] for r in ranks)]
        else:
            waiting = ranks
        rank = min(waiting, key=lambda rank: free_at[rank])
        free_at[rank] += speeds[rank]
        piece = sequencer.ledger.held(rank)[0]
        pushed[rank] += 1
        done[rank].append(piece)
        member = members[rank]
        sequencer.push(
            PushMetadata(
                rank, member.incarnation, 0, pushed[rank], (piece,), window, 1.0
            )
        )
        for other in range(len(speeds)):
            if not sequencer.ledger.held(other):
                sequencer.need(other, members[other].incarnation)
    return done


def opened(order: Order, sizes: Sequence[int], done: list[list[Piece]]) -> int:
    """Number of chunks that all workers opened together."""
    ends = np.cumsum(sizes)
    count = 0
    for pieces in done:
        rows = [order.indices(p.epoch, p.start, p.stop) for p in pieces]
        if rows:
            chunks = np.searchsorted(ends, np.concatenate(rows), side="right")
            count += len(np.unique(chunks))
    return count


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    batch=st.integers(1, 9),
    window=st.integers(1, 5),
    speeds=st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
    is_rounds=st.booleans(),
)
def test_every_sample_is_trained_on_once(
    sizes, batch, window, speeds, is_rounds
) -> None:
    order = Order(
        rows=sum(sizes), batch_size=batch, chunking=Chunking(rows=tuple(sizes))
    )
    done = run(order, batch, window, speeds, is_rounds=is_rounds)
    rows = [r for pieces in done for p in pieces for r in range(p.start, p.stop)]
    assert sorted(rows) == list(range(sum(sizes)))
    for pieces in done:
        for piece in pieces:  # whole steps, but for the last one of the epoch
            assert piece.start % batch == 0
            assert piece.stop % batch == 0 or piece.stop == sum(sizes)


def test_workers_of_one_speed_open_hardly_any_chunk_twice() -> None:
    sizes = (64,) * 40
    order = Order(
        rows=64 * 40, batch_size=8, chunking=Chunking(rows=sizes, group_rows=64)
    )
    for is_rounds in (False, True):
        for workers in (2, 3, 4):
            done = run(order, 8, 2, [1.0] * workers, is_rounds=is_rounds)
            assert opened(order, sizes, done) <= 40 + 2 * workers


def test_workers_of_many_speeds_open_few_chunks_twice() -> None:
    chance = random.Random(5)
    sizes = tuple(chance.randint(50, 200) for _ in range(60))
    order = Order(
        rows=sum(sizes), batch_size=8, chunking=Chunking(rows=sizes, group_rows=200)
    )
    done = run(order, 8, 2, [1.0, 1.7, 2.9, 5.0], is_rounds=False)
    # In turns each of the four would open nearly all of them: 206 by this count.
    assert opened(order, sizes, done) <= 60 * 1.5
    counts = [sum(p.rows for p in pieces) for pieces in done]
    assert counts == sorted(counts, reverse=True)  # the fast ones have taken more


def test_a_lost_workers_stretch_is_taken_from_its_start() -> None:
    ledger, places = Ledger(), Locality(lambda epoch: (0, 50), batch=5)
    ledger.open(0, rows=100)

    def lease(rank: int) -> Piece:
        piece = ledger.lease(rank, 0, 10, places.next(rank, 0, ledger, 2))
        assert piece is not None
        places.took(rank, piece)
        return piece

    assert [lease(0).start, lease(1).start, lease(1).start] == [0, 50, 60]
    ledger.release(1)
    places.forget(1)
    assert [lease(2).start, lease(0).start, lease(2).start] == [50, 10, 60]


def test_without_a_border_near_a_stretch_is_cut_at_a_step() -> None:
    ledger, places = Ledger(), Locality(lambda epoch: (0,), batch=8)
    ledger.open(0, rows=100)
    first = ledger.lease(0, 0, 16, places.next(0, 0, ledger, 2))
    assert first is not None
    places.took(0, first)
    assert places.next(1, 0, ledger, 2) == 56
