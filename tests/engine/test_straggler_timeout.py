from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal.engine.coordination.rounds import RoundProgress
from shoal.engine.coordination.timeouts import HICCUP_S, LEAST_S, StragglerTimeout

Times = list[tuple[float, float]]


def begun(closed: int = 0, dealt: int = 1) -> RoundProgress:
    return RoundProgress(closed, dealt, 0, (0, 1, 2, 3))


def quorate(closed: int = 0, dealt: int = 1, pushes: int = 3) -> RoundProgress:
    return RoundProgress(closed, dealt, pushes, (3,), is_quorate=True)


def after(times: Times) -> StragglerTimeout:
    """A timeout that has measured rounds: seconds to the quorum, and to the end."""
    straggler_timeout, now = StragglerTimeout(), 0.0
    for closed, (took, waited) in enumerate(times):
        straggler_timeout.look(begun(closed), now)
        straggler_timeout.look(quorate(closed), now + took)
        now += took + waited
        straggler_timeout.look(begun(closed + 1), now)
    return straggler_timeout


def test_there_is_no_timeout_before_the_quorum() -> None:
    straggler_timeout = StragglerTimeout()
    straggler_timeout.look(begun(), 5.0)
    assert straggler_timeout.left_s(1e9) == math.inf
    assert not straggler_timeout.is_over(1e9)


def test_the_timeout_is_the_round_again_plus_the_stored_allowance() -> None:
    straggler_timeout = StragglerTimeout()
    straggler_timeout.look(begun(), 5.0)
    straggler_timeout.look(quorate(), 8.0)
    straggler_timeout.look(quorate(), 9.0)
    assert straggler_timeout.due == 11.0 + HICCUP_S
    assert straggler_timeout.left_s(12.0) == 0.0


def test_the_longest_of_the_last_rounds_counts() -> None:
    straggler_timeout = after([(4.0, 0.0), (1.0, 0.0)])
    began = straggler_timeout.began
    straggler_timeout.look(quorate(closed=2), began + 1.0)
    assert straggler_timeout.due - began == 8.0 + HICCUP_S


def test_a_slow_round_is_forgotten_in_time() -> None:
    straggler_timeout = after([(60.0, 0.0), *[(1.0, 0.0)] * 8])
    began = straggler_timeout.began
    straggler_timeout.look(quorate(closed=9), began + 1.0)
    assert straggler_timeout.due - began == pytest.approx(2.0 + HICCUP_S)


def test_time_without_data_does_not_count() -> None:
    straggler_timeout = after([(1.0, 0.0)])
    straggler_timeout.look(RoundProgress(1, 1), 1.0)
    straggler_timeout.look(
        begun(1, dealt=2), 500.0
    )  # callbacks ran, and a new epoch is dealt
    straggler_timeout.look(quorate(1, dealt=2), 501.0)
    assert straggler_timeout.due == 502.0 + HICCUP_S


def test_there_is_no_timeout_before_a_round_was_measured() -> None:
    straggler_timeout = StragglerTimeout()
    straggler_timeout.look(quorate(pushes=0), 0.0)  # the others have none
    assert straggler_timeout.due == math.inf
    straggler_timeout.look(quorate(pushes=1), 7.0)
    assert straggler_timeout.due == 14.0 + HICCUP_S
    known = after([(3.0, 0.0)])
    known.look(quorate(closed=1, dealt=2, pushes=0), 100.0)
    assert known.due == 106.0 + HICCUP_S


def test_the_timeout_doubles_after_each_fruitless_round() -> None:
    straggler_timeout = after([(3.0, 0.0)])
    for fruitless in range(5):
        now, dealt = 100.0 * fruitless, 2 + fruitless
        round_progress = quorate(closed=1, dealt=dealt, pushes=0)
        straggler_timeout.look(round_progress._replace(fruitless=fruitless), now)
        assert straggler_timeout.due == now + 6.0 * 2**fruitless + HICCUP_S
    straggler_timeout.look(begun(closed=2, dealt=9), 500.0)
    straggler_timeout.look(quorate(closed=2, dealt=9), 503.0)
    assert straggler_timeout.due == pytest.approx(506.0, abs=HICCUP_S)


def test_single_delays_are_absorbed_and_repeated_ones_are_not() -> None:
    fast = [(0.01, 0.0)] * 9
    assert after([*fast, (0.01, 0.1)]).spare_s > 0.1
    assert after([(0.01, 0.05)] * 20).spare_s < LEAST_S
    assert after([(0.01, 0.05)] * 20 + fast * 40).spare_s == HICCUP_S


def test_a_pause_of_the_server_makes_no_worker_late() -> None:
    straggler_timeout = StragglerTimeout()
    straggler_timeout.forgive(50.0)
    straggler_timeout.look(begun(), 50.0)
    straggler_timeout.look(quorate(), 51.0)
    straggler_timeout.forgive(100.0)
    assert straggler_timeout.due == 152.0 + HICCUP_S


def test_a_lost_quorum_ends_the_timeout() -> None:
    straggler_timeout = StragglerTimeout()
    straggler_timeout.look(begun(), 0.0)
    straggler_timeout.look(quorate(), 1.0)
    straggler_timeout.look(
        RoundProgress(0, 1, 2, (3,)), 1.5
    )  # one of those that had pushed died
    assert straggler_timeout.due == math.inf


@given(
    st.lists(
        st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)), min_size=1, max_size=30
    ),
    st.floats(1e-3, 100.0),
)
def test_a_worker_at_most_twice_as_slow_is_never_late(
    times: Times, took: float
) -> None:
    straggler_timeout = after(times)
    assert 0.0 <= straggler_timeout.spare_s <= HICCUP_S
    began = straggler_timeout.began
    straggler_timeout.look(quorate(closed=len(times)), began + took)
    assert not straggler_timeout.is_over(began + 2 * took)
    assert (
        straggler_timeout.due - began
        < 2 * max(took, *(t for t, _ in times)) + HICCUP_S + 1e-6
    )
