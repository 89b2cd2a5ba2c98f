"""When a silent worker counts as hung: by its own pace, never by a fixed guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.coordination.timeouts import FLOOR_S, TIMES, LivenessTimeout

SECONDS = st.floats(1e-6, 1e4)


def worked(startup_s: float, silences: list[float]) -> tuple[LivenessTimeout, float]:
    """A worker that compiled and then spoke after each silence, and the time now."""
    liveness, now = LivenessTimeout(), 0.0
    for number, silence in enumerate([startup_s, *silences]):
        liveness.answered(now)
        now += silence
        liveness.heard(now, is_ready=number == 0)
    liveness.answered(now)
    return liveness, now


@given(SECONDS, st.lists(SECONDS, max_size=20))
def test_a_worker_that_goes_on_as_before_is_never_given_up(
    startup_s: float, silences: list[float]
) -> None:
    liveness, now = worked(startup_s, silences)
    longest = max(silences, default=0.0)
    assert not liveness.is_over(now + TIMES * longest)
    assert liveness.is_over(now + 1.01 * (FLOOR_S + TIMES * longest) + 1)


@given(SECONDS, st.lists(SECONDS, max_size=20))
def test_another_program_takes_as_long_as_the_first_and_is_no_pace(
    startup_s: float, silences: list[float]
) -> None:
    liveness, now = worked(startup_s, silences)
    before = liveness.limit_s
    liveness.compiles()
    assert not liveness.is_over(now + startup_s)
    liveness.heard(now + startup_s, is_ready=False)
    liveness.answered(now + startup_s)
    assert liveness.limit_s == before


@given(SECONDS, st.lists(SECONDS, max_size=20), st.integers(1, 100))
def test_who_is_still_being_heard_is_not_silent_and_that_is_no_pace(
    startup_s: float, silences: list[float], looks: int
) -> None:
    """A vector may take long on a slow link; then it computes for as long as before."""
    liveness, now = worked(startup_s, silences)
    before = liveness.limit_s
    for _ in range(looks):
        now += FLOOR_S / 2
        assert not liveness.is_over(now)
        liveness.moves(now)
    liveness.heard(now)
    liveness.moves(now)  # it waits for an answer: nothing of its own is to be heard
    assert not liveness.is_over(now + 2 * before)
    liveness.answered(now)
    assert liveness.limit_s == before


@given(SECONDS, st.lists(SECONDS, max_size=20), st.integers(1, 100))
def test_who_waits_for_data_and_says_so_is_not_given_up_and_that_is_no_pace(
    startup_s: float, silences: list[float], beats: int
) -> None:
    liveness, now = worked(startup_s, silences)
    before = liveness.limit_s
    for _ in range(beats):
        now += FLOOR_S / 2
        assert not liveness.is_over(now)
        liveness.heard(now, is_reading=True)
        liveness.answered(now)
    assert liveness.limit_s == before


@given(SECONDS, st.integers(1, 100))
def test_what_is_done_for_the_first_time_shows_the_pace(
    startup_s: float, beats: int
) -> None:
    liveness, start = worked(startup_s, [])
    now = start
    for _ in range(beats):
        now += FLOOR_S / 2
        assert not liveness.is_over(now)
        liveness.heard(now, is_busy=True)
        liveness.answered(now)
    liveness.heard(now)
    assert liveness.longest_s == pytest.approx(now - start)
    liveness.answered(now)
    assert not liveness.is_over(now + TIMES * (now - start))


def test_nobody_is_given_up_while_it_compiles_or_waits() -> None:
    liveness = LivenessTimeout()
    liveness.answered(0.0)
    assert not liveness.is_over(1e9)
    liveness, now = worked(1.0, [0.1])
    liveness.heard(now, is_ready=False)
    assert not liveness.is_over(now + 1e9)


def test_the_servers_own_pause_is_nobodys_fault() -> None:
    liveness, now = worked(1.0, [0.1])
    liveness.forgive(1000.0)
    assert not liveness.is_over(now + 1000.0)
    assert liveness.is_over(now + 1010.0)
