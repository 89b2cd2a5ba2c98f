"""Shares of an epoch: every worker gets one, also of a short epoch."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

from shoal.engine.coordination.instructions import PushMetadata, Rules
from shoal.engine.coordination.sequencer import Sequencer


def shared(
    rows: int, batch: int, window: int, workers: int, *, is_rounds: bool
) -> list[int]:
    """Rows that each worker is leased when all have joined and none has trained."""
    sequencer = Sequencer(
        Rules(
            epoch_rows=(rows,), first_epoch=0, epochs=1, workers=workers, batch=batch,
            window=window, is_rounds=is_rounds, exchanges_gradients=False,
            is_elastic=False,
        )
    )  # fmt: skip
    members = [sequencer.join(rank) for rank in range(workers)]
    sequencer.proceed(0)
    for member in members:
        sequencer.ready(member.rank, member.incarnation)
    return [sequencer.ledger.held_rows(member.rank) for member in members]


@given(
    rows=st.integers(1, 400),
    batch=st.integers(1, 40),
    window=st.integers(1, 120),
    workers=st.integers(1, 8),
    is_rounds=st.booleans(),
)
@example(rows=640, batch=32, window=50, workers=2, is_rounds=False)
@example(rows=100, batch=1, window=20, workers=4, is_rounds=False)
@example(rows=9, batch=1, window=50, workers=7, is_rounds=True)
def test_every_worker_has_a_part_of_an_epoch_of_enough_steps(
    rows: int, batch: int, window: int, workers: int, is_rounds: bool
) -> None:
    found = shared(rows, batch, window, workers, is_rounds=is_rounds)
    steps = -(-rows // batch)
    assert sum(found) <= rows
    assert sum(1 for part in found if part) == min(workers, steps)
    assert max(found) <= -(-steps // workers) * batch


def test_a_window_longer_than_the_epoch_leaves_the_second_worker_its_half() -> None:
    assert shared(640, 32, 50, 2, is_rounds=False) == [320, 320]


def test_a_long_epoch_is_leased_two_windows_ahead() -> None:
    assert shared(1000, 2, 5, 3, is_rounds=False) == [20, 20, 20]


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=60),
    window=st.integers(1, 6),
    workers=st.integers(1, 4),
    kind=st.sampled_from(["asynchronous", "rounds", "gradients"]),
    is_spread=st.booleans(),
    is_one_lost=st.booleans(),
)
def test_leases_end_where_a_batch_of_the_data_does(
    sizes: list[int],
    window: int,
    workers: int,
    kind: str,
    is_spread: bool,
    is_one_lost: bool,
) -> None:
    starts = (0, *accumulate(sizes[:-1]))
    rows = sum(sizes)
    exchanges_gradients = kind == "gradients"
    rules = Rules(
        epoch_rows=(rows,), first_epoch=0, epochs=1, workers=workers, batch=8,
        window=1 if exchanges_gradients else window, is_rounds=kind != "asynchronous",
        exchanges_gradients=exchanges_gradients, is_elastic=False,
        starts=lambda epoch: starts,
        borders=(lambda epoch: starts)
        if is_spread and not exchanges_gradients
        else None,
    )  # fmt: skip
    sequencer = Sequencer(rules)
    members = [sequencer.join(rank) for rank in range(workers)]
    sequencer.proceed(0)
    for member in members:
        sequencer.ready(member.rank, member.incarnation)
    if is_one_lost and workers > 1 and not exchanges_gradients:
        lost = members.pop(0)
        sequencer.leave(lost.rank, lost.incarnation)
    number, edges, done = 0, {*starts, rows}, 0
    while done < rows:
        number += 1
        for member in members:
            held = sequencer.ledger.held(member.rank)
            for piece in held:
                inside = max(at for at in starts if at <= piece.start)
                assert exchanges_gradients or {piece.start, piece.stop} <= edges
                assert not exchanges_gradients or piece.stop <= min(
                    e for e in edges if e > inside
                )
            if not held:
                sequencer.need(member.rank, member.incarnation)
                continue
            push = PushMetadata(
                member.rank, member.incarnation, 0, number, tuple(held[:1]),
                steps=1, samples=1.0,
            )  # fmt: skip
            sequencer.push(push)
        assert sequencer.ledger.committed(0) > done
        done = sequencer.ledger.committed(0)
    assert sequencer.clock == len(sizes)


@given(
    share=st.integers(1, 8),
    workers=st.integers(2, 5),
    steps=st.integers(1, 6),
    lost=st.lists(st.integers(0, 30), max_size=6),
    has_starts=st.booleans(),
)
def test_shares_of_a_fixed_size_stay_so_though_workers_are_lost(
    share: int, workers: int, steps: int, lost: list[int], has_starts: bool
) -> None:
    batch = share * workers
    rows = batch * steps
    starts = tuple(range(0, rows, batch))
    sequencer = Sequencer(
        Rules(
            epoch_rows=(rows,), first_epoch=0, epochs=1, workers=workers, batch=batch,
            window=1, is_rounds=True, exchanges_gradients=True, is_elastic=False,
            share=share, starts=(lambda epoch: starts) if has_starts else None,
        )
    )  # fmt: skip
    members = [sequencer.join(rank) for rank in range(workers)]
    sequencer.proceed(0)
    for member in members:
        sequencer.ready(member.rank, member.incarnation)
    turn, number = 0, 0
    while sequencer.ledger.committed(0) < rows:
        for member in list(members):
            held = sequencer.ledger.held(member.rank)
            assert {piece.rows for piece in held} <= {share}
            if turn in lost and len(members) > 1:  # with what it holds
                sequencer.leave(member.rank, member.incarnation)
                members.remove(member)
            elif held:
                number += 1
                push = PushMetadata(
                    member.rank, member.incarnation, 0, number, tuple(held[:1]),
                    steps=1, samples=1.0,
                )  # fmt: skip
                sequencer.push(push)
            else:
                sequencer.need(member.rank, member.incarnation)
            turn += 1
        assert turn < 1000
    assert sequencer.ledger.is_done(0)
