"""Processor time that pages about a run may take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ui.budget import MOST_PAUSE_S, MOST_S, SHARE, Budget
from tests.support.environments import SettableClock


def test_after_a_rest_pages_are_read_at_once() -> None:
    clock = SettableClock(100.0)
    budget = Budget(clock)
    for _ in range(15):
        budget.spend(MOST_S / 16)
        assert budget.pause_s == 0.0
    clock.now += MOST_S / SHARE
    budget.spend(MOST_S)
    assert budget.pause_s == 0.0


@given(st.lists(st.floats(0.001, MOST_PAUSE_S * SHARE), min_size=20, max_size=200))
def test_pages_that_are_read_without_end_take_a_small_share(costs: list[float]) -> None:
    """A page is read again as soon as something is left; reading takes time itself."""
    clock = SettableClock(0.0)
    budget, began, taken = Budget(clock), 0.0, 0.0
    for cost in costs:
        budget.spend(cost)
        taken += cost
        clock.now += cost + budget.pause_s
    assert taken <= MOST_S + SHARE * (clock.now - began) + 1e-6


def test_a_long_run_that_was_read_is_looked_at_again_soon() -> None:
    budget = Budget(SettableClock(0.0))
    budget.spend(60.0)
    assert budget.pause_s == pytest.approx(MOST_PAUSE_S)


def test_time_is_taken_when_an_error_ends_it() -> None:
    clock = SettableClock(0.0)
    budget = Budget(clock)
    budget.spend(MOST_S)

    def fail() -> None:
        with budget.spending():
            raise ValueError(sum(range(100_000)))

    with pytest.raises(ValueError, match="4999950000"):
        fail()
    assert budget.pause_s > 0
