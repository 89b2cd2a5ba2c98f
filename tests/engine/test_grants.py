"""How an epoch is shared: everybody gets a part, and a short epoch is no exception."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from shoal.engine.sequencer import Rules, Sequencer


def shared(
    rows: int, batch: int, window: int, workers: int, *, is_rounds: bool
) -> list[int]:
    """Rows that each worker is given when all have come and none has trained yet."""
    sequencer = Sequencer(
        Rules(
            epoch_rows=(rows,), first_epoch=0, epochs=1, workers=workers, batch=batch,
            window=window, is_rounds=is_rounds, is_gang=False, is_elastic=False,
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
