from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal.engine.coordination.rounds import Standing
from shoal.engine.coordination.timeouts import HICCUP_S, LEAST_S, StragglerTimeout

Times = list[tuple[float, float]]


def begun(closed: int = 0, dealt: int = 1) -> Standing:
    return Standing(closed, dealt, 0, (0, 1, 2, 3))


def quorate(closed: int = 0, dealt: int = 1, pushes: int = 3) -> Standing:
    return Standing(closed, dealt, pushes, (3,), is_quorate=True)


def after(times: Times) -> StragglerTimeout:
    """A grace that has seen rounds: seconds to the quorum, and from then to the end."""
    grace, now = StragglerTimeout(), 0.0
    for closed, (took, waited) in enumerate(times):
        grace.look(begun(closed), now)
        grace.look(quorate(closed), now + took)
        now += took + waited
        grace.look(begun(closed + 1), now)
    return grace


def test_there_is_none_before_the_quorum() -> None:
    grace = StragglerTimeout()
    grace.look(begun(), 5.0)
    assert grace.left_s(1e9) == math.inf
    assert not grace.is_over(1e9)


def test_as_long_again_and_the_patience_in_store() -> None:
    grace = StragglerTimeout()
    grace.look(begun(), 5.0)
    grace.look(quorate(), 8.0)
    grace.look(quorate(), 9.0)
    assert grace.due == 11.0 + HICCUP_S
    assert grace.left_s(12.0) == 0.0


def test_the_longest_of_the_last_rounds_counts() -> None:
    grace = after([(4.0, 0.0), (1.0, 0.0)])
    began = grace.began
    grace.look(quorate(closed=2), began + 1.0)
    assert grace.due - began == 8.0 + HICCUP_S


def test_a_slow_round_is_forgotten_in_time() -> None:
    grace = after([(60.0, 0.0), *[(1.0, 0.0)] * 8])
    began = grace.began
    grace.look(quorate(closed=9), began + 1.0)
    assert grace.due - began == pytest.approx(2.0 + HICCUP_S)


def test_time_without_data_does_not_count() -> None:
    grace = after([(1.0, 0.0)])
    grace.look(Standing(1, 1), 1.0)
    grace.look(begun(1, dealt=2), 500.0)  # callbacks ran, and a new epoch is dealt
    grace.look(quorate(1, dealt=2), 501.0)
    assert grace.due == 502.0 + HICCUP_S


def test_nobody_is_late_for_data_whose_pace_nobody_knows() -> None:
    grace = StragglerTimeout()
    grace.look(quorate(pushes=0), 0.0)  # the others have none
    assert grace.due == math.inf
    grace.look(quorate(pushes=1), 7.0)
    assert grace.due == 14.0 + HICCUP_S
    known = after([(3.0, 0.0)])
    known.look(quorate(closed=1, dealt=2, pushes=0), 100.0)
    assert known.due == 106.0 + HICCUP_S


def test_it_waits_twice_as_long_each_time_nobody_came() -> None:
    grace = after([(3.0, 0.0)])
    for fruitless in range(5):
        now, dealt = 100.0 * fruitless, 2 + fruitless
        standing = quorate(closed=1, dealt=dealt, pushes=0)
        grace.look(standing._replace(fruitless=fruitless), now)
        assert grace.due == now + 6.0 * 2**fruitless + HICCUP_S
    grace.look(begun(closed=2, dealt=9), 500.0)
    grace.look(quorate(closed=2, dealt=9), 503.0)
    assert grace.due == pytest.approx(506.0, abs=HICCUP_S)


def test_a_slip_is_forgiven_and_a_habit_is_not() -> None:
    fast = [(0.01, 0.0)] * 9
    assert after([*fast, (0.01, 0.1)]).spare_s > 0.1
    assert after([(0.01, 0.05)] * 20).spare_s < LEAST_S
    assert after([(0.01, 0.05)] * 20 + fast * 40).spare_s == HICCUP_S


def test_a_server_that_was_stopped_blames_nobody() -> None:
    grace = StragglerTimeout()
    grace.forgive(50.0)
    grace.look(begun(), 50.0)
    grace.look(quorate(), 51.0)
    grace.forgive(100.0)
    assert grace.due == 152.0 + HICCUP_S


def test_a_quorum_that_is_lost_ends_it() -> None:
    grace = StragglerTimeout()
    grace.look(begun(), 0.0)
    grace.look(quorate(), 1.0)
    grace.look(Standing(0, 1, 2, (3,)), 1.5)  # one of those that had pushed died
    assert grace.due == math.inf


@given(
    st.lists(
        st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)), min_size=1, max_size=30
    ),
    st.floats(1e-3, 100.0),
)
def test_whoever_is_at_most_twice_as_slow_is_never_late(
    times: Times, took: float
) -> None:
    grace = after(times)
    assert 0.0 <= grace.spare_s <= HICCUP_S
    began = grace.began
    grace.look(quorate(closed=len(times)), began + took)
    assert not grace.is_over(began + 2 * took)
    assert grace.due - began < 2 * max(took, *(t for t, _ in times)) + HICCUP_S + 1e-6
