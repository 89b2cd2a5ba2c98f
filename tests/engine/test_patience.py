"""When a silent worker counts as hung: by its own pace, never by a fixed guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.coordination.timeouts import FLOOR_S, TIMES, LivenessTimeout

SECONDS = st.floats(1e-6, 1e4)


def worked(startup_s: float, silences: list[float]) -> tuple[LivenessTimeout, float]:
    """A worker that compiled and then spoke after each silence, and the time now."""
    patience, now = LivenessTimeout(), 0.0
    for number, silence in enumerate([startup_s, *silences]):
        patience.answered(now)
        now += silence
        patience.heard(now, is_ready=number == 0)
    patience.answered(now)
    return patience, now


@given(SECONDS, st.lists(SECONDS, max_size=20))
def test_a_worker_that_goes_on_as_before_is_never_given_up(
    startup_s: float, silences: list[float]
) -> None:
    patience, now = worked(startup_s, silences)
    longest = max(silences, default=0.0)
    assert not patience.is_over(now + TIMES * longest)
    assert patience.is_over(now + 1.01 * (FLOOR_S + TIMES * longest) + 1)


@given(SECONDS, st.lists(SECONDS, max_size=20))
def test_another_program_takes_as_long_as_the_first_and_is_no_pace(
    startup_s: float, silences: list[float]
) -> None:
    patience, now = worked(startup_s, silences)
    before = patience.limit_s
    patience.compiles()
    assert not patience.is_over(now + startup_s)
    patience.heard(now + startup_s, is_ready=False)
    patience.answered(now + startup_s)
    assert patience.limit_s == before


@given(SECONDS, st.lists(SECONDS, max_size=20), st.integers(1, 100))
def test_who_is_still_being_heard_is_not_silent_and_that_is_no_pace(
    startup_s: float, silences: list[float], looks: int
) -> None:
    """A vector may take long on a slow link; then it computes for as long as before."""
    patience, now = worked(startup_s, silences)
    before = patience.limit_s
    for _ in range(looks):
        now += FLOOR_S / 2
        assert not patience.is_over(now)
        patience.moves(now)
    patience.heard(now)
    patience.moves(now)  # it waits for an answer: nothing of its own is to be heard
    assert not patience.is_over(now + 2 * before)
    patience.answered(now)
    assert patience.limit_s == before


@given(SECONDS, st.lists(SECONDS, max_size=20), st.integers(1, 100))
def test_who_waits_for_data_and_says_so_is_not_given_up_and_that_is_no_pace(
    startup_s: float, silences: list[float], beats: int
) -> None:
    patience, now = worked(startup_s, silences)
    before = patience.limit_s
    for _ in range(beats):
        now += FLOOR_S / 2
        assert not patience.is_over(now)
        patience.heard(now, is_reading=True)
        patience.answered(now)
    assert patience.limit_s == before


@given(SECONDS, st.integers(1, 100))
def test_what_is_done_for_the_first_time_shows_the_pace(
    startup_s: float, beats: int
) -> None:
    patience, start = worked(startup_s, [])
    now = start
    for _ in range(beats):
        now += FLOOR_S / 2
        assert not patience.is_over(now)
        patience.heard(now, is_busy=True)
        patience.answered(now)
    patience.heard(now)
    assert patience.longest_s == pytest.approx(now - start)
    patience.answered(now)
    assert not patience.is_over(now + TIMES * (now - start))


def test_nobody_is_given_up_while_it_compiles_or_waits() -> None:
    patience = LivenessTimeout()
    patience.answered(0.0)
    assert not patience.is_over(1e9)
    patience, now = worked(1.0, [0.1])
    patience.heard(now, is_ready=False)
    assert not patience.is_over(now + 1e9)


def test_the_servers_own_pause_is_nobodys_fault() -> None:
    patience, now = worked(1.0, [0.1])
    patience.forgive(1000.0)
    assert not patience.is_over(now + 1000.0)
    assert patience.is_over(now + 1010.0)
