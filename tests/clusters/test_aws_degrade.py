"""Fewer workers than asked: what the master's agent decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clusters.aws.degrade import (
    MARGIN_S,
    Asked,
    Came,
    came_of,
    decide,
    failures_of,
    is_permanent,
    repeated,
)
from shoal.clusters.aws.node_decisions import MOST_TRIES, kind_of
from tests.clusters.test_aws_members import instance, said

ASKED = Asked(workers=4, least=1, settle_s=300.0, wait_s=3300.0)
SHORT = "We currently do not have sufficient capacity"
FOREVER = "You are not authorized to perform this operation"
DISK = "the file system fs-{} cannot be mounted at /efs"
THRICE = tuple(DISK.format(number) for number in range(3))


@pytest.mark.parametrize(
    ("came", "elapsed_s", "quiet_s", "do"),
    [
        (Came(4), 60, 0, "complete"),
        (Came(5), 60, 0, "complete"),  # a late one beside a replaced one
        (Came(2), 60, 3000, "wait"),  # no launch has failed
        (Came(2, refused=(SHORT,)), 60, 100, "wait"),
        (Came(2, refused=(SHORT,)), 600, 300, "fewer"),
        (Came(2, booting=1, refused=(SHORT,)), 600, 300, "wait"),
        (Came(0, refused=(SHORT,)), 600, 300, "wait"),
        (Came(0, refused=(SHORT,)), 3200, 300, "fail"),
        (Came(1), 3200, 0, "fewer"),
        (Came(1, booting=3), 3200, 0, "fewer"),  # they join later
        (Came(1, refused=(FOREVER,)), 10, 0, "fewer"),
        (Came(1, booting=1, refused=(FOREVER,)), 10, 0, "wait"),
        (Came(0, booting=1, refused=(FOREVER,)), 10, 0, "wait"),
        (Came(0, refused=(FOREVER,)), 10, 0, "fail"),
        (Came(0, failed=THRICE[:2]), 10, 0, "wait"),
        (Came(0, failed=THRICE), 10, 0, "fail"),
        (Came(1, failed=THRICE), 10, 0, "fewer"),
    ],
)
def test_fewer_workers(came: Came, elapsed_s: float, quiet_s: float, do: str) -> None:
    found = decide(ASKED, came, elapsed_s=elapsed_s, quiet_s=quiet_s)
    assert found.do == do
    if do in ("fewer", "fail"):
        for reason in (*came.refused, *came.failed) or ("no reason was given",):
            assert reason in found.why


REASONS = st.lists(st.sampled_from([SHORT, FOREVER]), max_size=2).map(tuple)
FAILED = st.lists(st.sampled_from([*THRICE, "no Python"]), max_size=5).map(tuple)


@given(
    st.integers(1, 5), st.integers(0, 5), st.integers(0, 6), st.integers(0, 4),
    REASONS, FAILED, st.floats(0, 4000), st.floats(0, 4000),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_laws_of_the_decision(
    workers: int, least: int, ready: int, booting: int, refused: tuple[str, ...],
    failed: tuple[str, ...], elapsed_s: float, quiet_s: float,
) -> None:  # fmt: skip
    least = min(least, workers)
    asked = Asked(workers, least, 300.0, 3300.0)
    came = Came(ready, booting, refused, failed)
    found = decide(asked, came, elapsed_s=elapsed_s, quiet_s=quiet_s)
    is_late = elapsed_s >= 3300.0 - MARGIN_S
    is_hopeless = FOREVER in refused or bool(repeated(failed))
    assert (found.do == "complete") == (ready >= workers)
    if found.do == "fewer":
        assert least <= ready < workers
        assert is_late or (not booting and (refused or is_hopeless))
    if found.do == "fail":
        assert ready < least
        assert is_late or is_hopeless
    if found.do == "wait":
        assert not is_late
        assert not (is_hopeless and not booting)
    # More workers never turn a cluster into a failure.
    more = decide(asked, came._replace(ready=ready + 1), elapsed_s=elapsed_s, quiet_s=0)
    assert found.do == "fail" or more.do != "fail"


@given(st.lists(st.sampled_from(["no disk on {}", "no Python {}", "bad"]), max_size=9))
def test_a_reason_counts_whatever_node_gives_it(kinds: list[str]) -> None:
    reasons = [kind.format(f"10.0.0.{n} i-0{n}") for n, kind in enumerate(kinds)]
    often = {kind for kind in kinds if kinds.count(kind) >= MOST_TRIES}
    found = repeated(reasons)
    assert bool(found) == bool(often)
    assert not found or kind_of(found) in {kind_of(k.format("1 1")) for k in often}


def test_workers_are_counted_by_what_ec2_and_they_say() -> None:
    def node(number: int, **more: Any) -> Any:
        return json.loads(said(number, **more))

    gone: dict[str, Any] = {"State": {"Name": "terminated"}}
    found = came_of(
        [
            instance(9, "master"), instance(1), instance(2), instance(3),
            instance(4, **gone), instance(5, **gone), instance(6),
        ],
        {
            "i-00000009": node(9, role="master"), "i-00000001": node(1),
            "i-00000002": node(2, address="6.6.6.6"),  # forged
            "i-00000003": node(3, state="booting"),
            "i-00000004": node(4, state="failed", reason="no disk"),
            "i-00000005": node(5),  # it was ready, and is gone
            "i-00000006": "broken",
            "i-00000007": node(7, state="failed"),  # unknown to EC2
        },
        [SHORT],
    )  # fmt: skip
    assert found == Came(1, 3, (SHORT,), ("no disk",))


def test_failures_are_told_once_in_the_words_of_the_service() -> None:
    activities = [
        {"StatusCode": "Failed", "StatusMessage": SHORT},
        {"StatusCode": "Successful", "StatusMessage": "fine"},
        {"StatusCode": "Failed", "StatusMessage": SHORT},
        {"StatusCode": "Failed", "Description": "Launching"},
    ]
    assert failures_of(activities) == [SHORT, "Launching"]
    assert is_permanent(FOREVER)
    assert not is_permanent(SHORT)
