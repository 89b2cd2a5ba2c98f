"""Gangs that average in memory they share: the same curve, whatever befalls them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.backends.group import GroupBroken
from shoal.data.order import Order
from shoal.engine import shared_lane
from shoal.engine.instructions import Group
from shoal.engine.shared_lane import SharedLane, SharedLaneSpec, Table, meet
from shoal.engine.slots import Slot
from shoal.strategies import AllReduce
from shoal.testing import faults
from shoal.testing.inline import Outcome, Setup, train
from shoal.testing.problems import LeastSquares

ROWS, EPOCHS, BATCH = 96, 3, 7  # 13 steps of 7 rows and one of 5
FULL = 13
PROBLEM = LeastSquares.seeded(rows=ROWS, size=5)


# ----------------------------------------------------------------- the table


def tables(path: Path, size: int, floats: int) -> list[Table]:
    with ThreadPoolExecutor(size) as pool:
        found = pool.map(lambda place: meet(path, place, size, floats), range(size))
        return list(found)


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(2, 4),
    floats=st.sampled_from([1, 5, 1000, shared_lane.SEGMENT + 3]),
    steps=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_everybody_has_the_same_mean(
    tmp_path_factory: pytest.TempPathFactory,
    size: int, floats: int, steps: int, seed: int,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    members = tables(tmp_path_factory.mktemp("t") / "g", size, floats)
    never, _ = os.pipe()
    try:
        for step in range(steps):
            mine = random.standard_normal((size, floats)).astype("f4")
            masses = random.integers(0, 9, size).astype(float)
            if step % 2:  # where it need not be copied
                for member, gradient in zip(members, mine, strict=True):
                    member.room[:] = gradient
            for member, gradient, mass in zip(members, mine, masses, strict=True):
                member.put(member.room if step % 2 else gradient, mass)
                member.call()
            found = np.empty((size, floats), "f4")
            for member, out in zip(members, found, strict=True):
                assert member.wait(never)
                member.add_up(out)
            assert (found == found[0]).all()
            wanted = mine.astype("f8").sum(0) / (masses.sum() or 1.0)
            np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)
    finally:
        for member in members:
            member.close()
        os.close(never)
        os.close(_)


def test_nobody_waits_for_one_who_is_gone(tmp_path: Path) -> None:
    first, second = tables(tmp_path / "g", 2, 3)
    never, other = os.pipe()
    first.put(np.ones(3, "f4"), 1.0)
    second.close()
    assert not first.wait(never)
    first.close()
    os.close(never)
    os.close(other)


def test_the_server_may_be_first(tmp_path: Path) -> None:
    """Its word is as good as the call of a member, which comes later."""
    first, second = tables(tmp_path / "g", 2, 3)
    server, other = os.pipe()
    os.write(other, b"reply")
    out = np.empty(3, "f4")
    for step in (1.0, 2.0):
        first.put(np.full(3, step, "f4"), 1.0)
        second.put(np.full(3, -3 * step, "f4"), 1.0)
        assert not first.wait(server)
        first.add_up(out)
        np.testing.assert_array_equal(out, [-step] * 3)
        second.call()  # for which nobody waits any more
    assert first.wait(server)
    first.close()
    second.close()
    os.close(server)
    os.close(other)


def test_a_step_that_somebody_did_not_lay_down_is_never_added(tmp_path: Path) -> None:
    first, second = tables(tmp_path / "g", 2, 3)
    first.put(np.ones(3, "f4"), 1.0)
    with pytest.raises(AssertionError, match="step 1"):
        first.add_up(np.empty(3, "f4"))
    first.close()
    second.close()


@pytest.mark.parametrize("fault", ["nobody", "memory", "stranger", "path"])
def test_a_group_that_cannot_be_formed(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_lane, "LIMIT_S", 0.05)
    path, place = tmp_path / "g", 0
    if fault == "memory":
        monkeypatch.setattr(Slot, "make", lambda *_: None)
    if fault == "path":
        path = tmp_path / ("g" * 120)
    if fault == "stranger":  # at a place that there is not
        monkeypatch.setattr(shared_lane, "LIMIT_S", 5.0)
        threading.Thread(target=lambda: _say_seven(path / "0"), daemon=True).start()
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").is_dir() else []
    with pytest.raises(GroupBroken):
        meet(path, place, 2, 3)
    if fault != "stranger" and before:  # that one's own end
        assert len(os.listdir("/proc/self/fd")) == len(before)


def _say_seven(path: Path) -> None:
    with shared_lane._called(path, time.monotonic() + 5.0) as line:
        shared_lane._say(line, b"7")
        line.recv(1)  # until it is hung up


def test_a_group_is_entered_once(tmp_path: Path) -> None:
    lanes = [SharedLane(SharedLaneSpec(folder=tmp_path), 3) for _ in range(2)]
    for generation in (1, 2):
        group = Group(generation, (4, 7))
        enter = [
            partial(lane.enter, group, 0, rank, nullcontext)
            for lane, rank in zip(lanes, group.ranks, strict=True)
        ]
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda call: call(), enter)) == [True, True]
        assert enter[0]()
    for lane in lanes:
        lane.close()
        assert lane.room is None


# --------------------------------------------------------------------- gangs


def setup(folder: Path | None, **changes: Any) -> Setup:
    lane = None if folder is None else SharedLaneSpec(folder=folder)
    given_: dict[str, Any] = {
        "workers": 3, "epochs": EPOCHS, "batch_size": BATCH, "lane": lane, **changes,
    }  # fmt: skip
    return Setup.linear(PROBLEM, AllReduce(), 0.3, **given_)


def check_counts(outcome: Outcome, rows: int = ROWS) -> None:
    assert [end.rows for end in outcome.epochs] == [rows] * EPOCHS
    assert [end.metrics[1] for end in outcome.epochs] == [rows] * EPOCHS


def assert_same(one: Outcome, other: Outcome) -> None:
    for mine, theirs in zip(one.epochs, other.epochs, strict=True):
        np.testing.assert_allclose(mine.vector, theirs.vector, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mine.statistics, theirs.statistics, rtol=1e-6)
        np.testing.assert_allclose(mine.metrics, theirs.metrics, rtol=1e-5)


def groups(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps whose mean the workers made, one number for each worker's."""
    found: list[int] = []
    before = Table.add_up

    def count(table: Table, out: Any) -> None:
        before(table, out)
        found.append(table._step)

    monkeypatch.setattr(Table, "add_up", count)
    return found


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_curve_is_that_of_the_server(
    workers: int, wants_slot: bool, tmp_path: Path, counted: list[int]
) -> None:
    found = train(setup(tmp_path, workers=workers, wants_slot=wants_slot))
    check_counts(found)
    assert_same(found, train(setup(None, workers=workers)))
    assert groups(tmp_path) == ["0-1"]
    # The first step of an epoch is the server's where not all are there at once.
    most = workers * EPOCHS * (FULL + 1)
    assert most - workers * EPOCHS <= len(counted) <= most


def test_a_step_that_is_too_short_for_all_goes_through_the_server(
    tmp_path: Path,
) -> None:
    order = Order(rows=FULL * BATCH + 1, shuffle=False)
    found = train(replace(setup(tmp_path), order=order))
    check_counts(found, FULL * BATCH + 1)
    assert_same(found, train(replace(setup(None), order=order)))
    assert groups(tmp_path) == ["0-1"]


def test_a_lost_worker_breaks_the_group_and_the_next_one_has_its_successor(
    tmp_path: Path,
) -> None:
    found = train(setup(tmp_path, watch=faults.leave(rank=1, step=5)))
    check_counts(found)
    assert len(found.of_kind("left")) == 1
    assert len(groups(tmp_path)) > 1
    assert not found.of_kind("warning")
    zero = np.zeros(PROBLEM.size, "f4")
    assert PROBLEM.loss(found.vector) < 0.1 * PROBLEM.loss(zero)


def _fail_once(
    monkeypatch: pytest.MonkeyPatch, method: str, at: int, *, is_after: bool
) -> None:
    """One worker ends when it does something for the so-many-th time."""
    before, lock = getattr(SharedLane, method), threading.Lock()
    counts: dict[int, int] = {}
    has_failed = threading.Event()

    def fail(lane: SharedLane, *arguments: Any) -> Any:
        with lock:
            counts[id(lane)] = counts.get(id(lane), 0) + 1
            is_now = counts[id(lane)] == at and not has_failed.is_set()
            if is_now:
                has_failed.set()
        if is_now and not is_after:
            raise ConnectionError("a test has ended it")
        found = before(lane, *arguments)
        if is_now:
            raise ConnectionError("a test has ended it")
        return found

    monkeypatch.setattr(SharedLane, method, fail)


POINTS = [
    ("put", False), ("put", True), ("call", False), ("call", True), ("wait", False),
    ("wait", True), ("mean", False), ("mean", True),
]  # fmt: skip


@pytest.mark.parametrize("servers", ["one", "standby"])
@pytest.mark.parametrize(("method", "is_after"), POINTS)
def test_a_worker_that_ends_anywhere_in_its_step(
    method: str, is_after: bool, servers: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whether the step counted or not, no sample is counted twice or lost."""
    _fail_once(monkeypatch, method, 4, is_after=is_after)
    found = train(setup(tmp_path, has_standby=servers == "standby"))
    check_counts(found)
    assert len(found.of_kind("left")) == 1
    assert_exact(found)


def assert_exact(found: Outcome) -> None:
    """All who stayed have the same weights: the curve is that of the problem."""
    zero = np.zeros(PROBLEM.size, "f4")
    assert PROBLEM.loss(found.vector) < 0.1 * PROBLEM.loss(zero)


def test_who_joins_later_is_in_the_next_group(tmp_path: Path) -> None:
    found = train(setup(tmp_path, workers=2, late=[2 * BATCH]))
    check_counts(found)
    assert_same(found, train(setup(None, workers=2)))
    assert len(groups(tmp_path)) >= 1


def test_a_group_that_cannot_be_formed_is_given_up_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Table:
        raise GroupBroken("no memory at all")

    monkeypatch.setattr(shared_lane, "meet", never)
    found = train(setup(tmp_path))
    check_counts(found)
    [warning] = found.of_kind("warning")
    assert "cannot average gradients among themselves" in warning["text"]
    assert_same(found, train(setup(None)))


def test_a_standby_goes_on_with_groups(tmp_path: Path, counted: list[int]) -> None:
    found = train(setup(tmp_path, has_standby=True))
    check_counts(found)
    assert_same(found, train(setup(None)))
    assert counted


def test_the_gradient_is_written_where_others_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second step on nobody copies it."""
    copies: list[int] = []
    before: Callable[..., None] = Table.put

    def put(table: Table, gradient: Any, mass: float) -> None:
        if not np.may_share_memory(gradient, table.room):
            copies.append(table._step)
        before(table, gradient, mass)

    monkeypatch.setattr(Table, "put", put)
    check_counts(train(setup(tmp_path, workers=2)))
    assert copies == [0, 0]
