"""Decisions about a lost process."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal.engine.coordination.restart_policy import (
    LONGEST_DELAY_S,
    Abort,
    Loss,
    Restart,
    RestartPolicy,
    Shrink,
    decide,
)


def loss(living: int, failures: int = 0) -> Loss:
    reason = "killed by SIGKILL"
    return Loss(name="worker-1", reason=reason, living=living, failures=failures)


@pytest.mark.parametrize(
    ("failures", "after_s"), [(0, 0.0), (1, 1.0), (2, 2.0), (3, 4.0), (9, 30.0)]
)
def test_a_rank_that_fails_again_waits_longer(failures: int, after_s: float) -> None:
    policy = RestartPolicy(max_restarts=10)
    assert decide(loss(1, failures), policy, restarts=9) == Restart(after_s)


@pytest.mark.parametrize(
    ("living", "least", "decision"),
    [
        (1, 1, Shrink(1)),
        (2, 2, Shrink(2)),
        (1, 2, Abort("worker-1 killed by SIGKILL; 3 of 3 restarts used")),
        (0, 0, Abort("worker-1 killed by SIGKILL; 3 of 3 restarts used")),
    ],
)
def test_without_restarts_left(living: int, least: int, decision) -> None:
    policy = RestartPolicy(max_restarts=3, min_workers=least)
    assert decide(loss(living), policy, 3) == decision


@given(
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 2000),
    st.integers(0, 2000),
)  # fmt: skip
def test_no_run_goes_on_without_workers(living, most, least, restarts, failures):
    policy = RestartPolicy(max_restarts=most, min_workers=least)
    decision = decide(loss(living, failures), policy, restarts)
    if isinstance(decision, Restart):
        assert restarts < most
        assert 0 <= decision.after_s <= LONGEST_DELAY_S
    else:
        assert isinstance(decision, Shrink) == (living >= max(1, least))
