"""Hosts on which Ray is not up within the time that it gives itself."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.clusters.host_agent import nodes
from shoal.clusters.host_agent.answering import UserError

LATE = UserError(f"ended with status 1: The current node {nodes.TOO_SLOW}. This ...")
WRONG = UserError("ended with status 1: no such option")


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("HOME", str(tmp_path))
    mark = secrets.token_hex(8)
    yield {
        "mark": mark, "port": 0, "again": False, "token": "secret", "name": "lab",
        "head": None, "private": "127.0.0.1", "options": [], "variables": {},
        "limit_s": 300.0,
    }  # fmt: skip
    nodes.remove_own(Path(nodes.temp_of(mark)))


def answering(
    monkeypatch: pytest.MonkeyPatch, *errors: UserError | None
) -> list[float]:
    """Has starts of Ray fail one after the other; returns what limits they had."""
    left, limits = list(errors), list[float]()

    def run(words: list[str], until: float, **more: Any) -> None:
        limits.append(until - time.monotonic())
        if error := left.pop(0):
            raise error

    monkeypatch.setattr(nodes, "run", run)
    return limits


def test_a_node_that_was_too_slow_is_started_again(
    request_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = answering(monkeypatch, LATE, LATE, None)
    assert nodes.start(request_)["is_new"]
    assert 300.0 >= limits[0] > limits[1] > limits[2]  # of one time for all


@pytest.mark.parametrize(("error", "limit_s"), [(WRONG, 300.0), (LATE, 0.0)])
def test_any_other_error_ends_the_start(
    request_: Any, monkeypatch: pytest.MonkeyPatch, error: UserError, limit_s: float
) -> None:
    limits = answering(monkeypatch, error)
    with pytest.raises(UserError, match="ended with status 1"):
        nodes.start(request_ | {"limit_s": limit_s})
    assert len(limits) == 1
