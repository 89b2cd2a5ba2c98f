"""Groups that average in shared memory: the same curve, after any loss."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.order import Order
from shoal.engine.coordination.instructions import Group
from shoal.engine.coordination.ledger import Piece
from shoal.engine.environment import SYSTEM
from shoal.engine.transport.messages.worker_to_server import NanStatus
from shoal.engine.transport.shared_memory import Slot
from shoal.engine.worker import shared_memory_allreduce
from shoal.engine.worker.client import Times, Weight
from shoal.engine.worker.collective import (
    CollectiveSpec,
    ServerCollectiveSpec,
    StepPart,
)
from shoal.engine.worker.shared_memory_allreduce import (
    SharedMemoryAllReduce,
    SharedMemoryAllReduceSpec,
)
from shoal.strategies import AllReduce
from shoal.testing import faults
from shoal.testing.problems import LeastSquares
from tests.support.inline import Outcome, Setup, train

pytestmark = pytest.mark.usefixtures("unhurried")

ROWS, EPOCHS, BATCH = 96, 3, 7  # 13 steps of 7 rows and one of 5
FULL = 13
PROBLEM = LeastSquares.seeded(rows=ROWS, size=5)


# ------------------------------------------------------------------ the lane


@contextmanager
def shared_group(
    folder: Path, size: int, floats: int = 3
) -> Generator[list[SharedMemoryAllReduce]]:
    spec = SharedMemoryAllReduceSpec(folder=folder)
    found = [SharedMemoryAllReduce(spec, floats, rank, 1) for rank in range(size)]
    try:
        yield found
    finally:
        for collective in found:
            collective.close()


@contextmanager
def pipe() -> Generator[tuple[int, int]]:
    """Replaces the connection to a server: the read end, and the write end."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def enter(found: list[SharedMemoryAllReduce], generation: int = 1) -> None:
    group = Group(generation, tuple(range(len(found))))
    assert all(collective.enter(group, 0) for collective in found)


@settings(max_examples=20)
@given(
    size=st.integers(2, 4),
    floats=st.sampled_from([1, 5, 1000, shared_memory_allreduce.SEGMENT + 3]),
    steps=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_all_workers_have_the_same_mean(
    tmp_path_factory: pytest.TempPathFactory,
    size: int, floats: int, steps: int, seed: int,
) -> None:  # fmt: skip
    random, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("collective")
    with shared_group(folder, size, floats) as members, pipe() as (never, _):
        for step in range(steps):
            enter(members, generation=1 + step // 2)  # the first stays for two steps
            mine = random.standard_normal((size, floats)).astype("f4")
            masses = random.integers(0, 9, size).astype(float)
            for member, gradient, mass in zip(members, mine, masses, strict=True):
                if step % 2:  # where it need not be copied
                    room = member.room
                    assert room is not None
                    room[:] = gradient
                    member.put(room, mass)
                else:
                    member.put(gradient, mass)
                member.call()
            found = [(m.wait(never), m.add().copy()) for m in members]
            assert all(has_all for has_all, _ in found)
            assert all((mean == found[0][1]).all() for _, mean in found)
            wanted = mine.astype("f8").sum(0) / (masses.sum() or 1.0)
            np.testing.assert_allclose(found[0][1], wanted, rtol=1e-4, atol=1e-5)


def test_the_servers_answer_may_come_before_the_calls(tmp_path: Path) -> None:
    """Its answer is as good as the call of a member, which may come later, or never."""
    with shared_group(tmp_path, 2) as (first, second), pipe() as (server, other):
        enter([first, second])
        os.write(other, b"reply")
        for step in (1.0, 2.0):
            first.put(np.full(3, step, "f4"), 1.0)
            second.put(np.full(3, -3 * step, "f4"), 1.0)
            assert not first.wait(server)
            np.testing.assert_array_equal(first.add(), [-step] * 3)
        second.call()
        assert first.wait(server)
        first.put(np.ones(3, "f4"), 1.0)
        assert not first.wait(server)


def test_a_call_for_a_later_step_says_that_the_earlier_one_is_there(
    tmp_path: Path,
) -> None:
    with shared_group(tmp_path, 2) as (first, second), pipe() as (never, _):
        enter([first, second])
        first.put(np.ones(3, "f4"), 1.0)
        second.put(np.zeros(3, "f4"), 1.0)
        second.put(np.full(3, 9.0, "f4"), 1.0)
        second.call()
        assert first.wait(never)
        np.testing.assert_array_equal(first.add(), [0.5] * 3)


def test_a_worker_that_reads_no_calls_delays_no_other(tmp_path: Path) -> None:
    with shared_group(tmp_path, 2) as (first, second):
        enter([first, second])
        for _ in range(2000):  # more than any system keeps for who does not listen
            first.put(np.ones(3, "f4"), 1.0)
            first.call()
        second.close()
        first.call()


def test_a_step_without_all_gradients_is_never_added(tmp_path: Path) -> None:
    with shared_group(tmp_path, 2) as (first, second):
        enter([first, second])
        first.put(np.ones(3, "f4"), 1.0)
        with pytest.raises(AssertionError, match="counts"):
            first.add()


def test_a_replaced_worker_is_found_in_the_next_group(tmp_path: Path) -> None:
    with shared_group(tmp_path, 2) as (first, second), pipe() as (never, _):
        enter([first, second])
        second.close()
        with closing(
            SharedMemoryAllReduce(SharedMemoryAllReduceSpec(folder=tmp_path), 3, 1, 2)
        ) as third:
            enter([first, third], 2)
            first.put(np.ones(3, "f4"), 1.0)
            third.put(np.zeros(3, "f4"), 3.0)
            third.call()
            assert first.wait(never)
            np.testing.assert_array_equal(first.add(), [0.25] * 3)


@pytest.mark.parametrize("fault", ["nobody", "memory", "path", "mark", "text"])
def test_a_group_that_cannot_be_formed(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns at once: a worker without a call asks the server."""
    folder, size = tmp_path, 1 if fault == "nobody" else 2
    if fault == "memory":
        monkeypatch.setattr(Slot, "make", lambda *_: None)
    if fault == "path":
        folder = tmp_path / ("g" * 120)
        folder.mkdir()
    proc = Path("/proc/self/fd")
    before = os.listdir(proc) if proc.is_dir() else []
    with shared_group(folder, size) as (first, *_):
        place = folder / "1.offer"
        if fault == "mark":
            place.write_text(json.dumps({**json.loads(place.read_text()), "mark": "0"}))
        if fault == "text":
            place.write_text("{")
        assert not first.enter(Group(1, (0, 1)), 0)
        assert not first.enter(Group(1, (0, 1)), 0)
    if before:
        assert len(os.listdir(proc)) == len(before)


# ----------------------------------------------------------------- all_reduce


def setup(folder: Path | None, **changes: Any) -> Setup:
    collective: CollectiveSpec = ServerCollectiveSpec()
    if folder is not None:
        collective = SharedMemoryAllReduceSpec(folder=folder)
    given_: dict[str, Any] = {
        "workers": 3, "epochs": EPOCHS, "batch_size": BATCH,
        "collective": collective, **changes,
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


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Generations of the means that workers made, one list for each worker."""
    found: list[int] = []
    before = SharedMemoryAllReduce.add

    def count(collective: SharedMemoryAllReduce) -> Any:
        mean = before(collective)
        found.append(collective._step.generation)
        return mean

    monkeypatch.setattr(SharedMemoryAllReduce, "add", count)
    return found


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_curve_is_that_of_the_server(
    workers: int, wants_slot: bool, tmp_path: Path, counted: list[int]
) -> None:
    found = train(setup(tmp_path, workers=workers, wants_slot=wants_slot))
    check_counts(found)
    assert_same(found, train(setup(None, workers=workers)))
    assert set(counted) == {1}
    # The first step of an epoch is the server's where not all are there at once.
    most = workers * EPOCHS * (FULL + 1)
    assert most - workers * EPOCHS <= len(counted) <= most


def test_a_step_that_is_too_short_for_all_goes_through_the_server(
    tmp_path: Path, counted: list[int]
) -> None:
    order = Order(rows=FULL * BATCH + 1, shuffle=False)
    found = train(replace(setup(tmp_path), order=order))
    check_counts(found, FULL * BATCH + 1)
    assert_same(found, train(replace(setup(None), order=order)))
    assert set(counted) == {1}


def test_a_lost_worker_breaks_the_group_and_the_next_one_has_its_successor(
    tmp_path: Path, counted: list[int]
) -> None:
    found = train(setup(tmp_path, watch=faults.leave(rank=1, step=5)))
    check_counts(found)
    assert len(found.of_kind("left")) == 1
    assert len(set(counted)) > 1
    assert not found.of_kind("warning")
    zero = np.zeros(PROBLEM.size, "f4")
    assert PROBLEM.loss(found.vector) < 0.1 * PROBLEM.loss(zero)


def _fail_once(
    monkeypatch: pytest.MonkeyPatch, method: str, at: int, *, is_after: bool
) -> None:
    """Ends one worker when it does something for the n-th time."""
    before, lock = getattr(SharedMemoryAllReduce, method), threading.Lock()
    counts: dict[int, int] = {}
    has_failed = threading.Event()

    def fail(collective: SharedMemoryAllReduce, *arguments: Any) -> Any:
        with lock:
            counts[id(collective)] = counts.get(id(collective), 0) + 1
            is_now = counts[id(collective)] == at and not has_failed.is_set()
            if is_now:
                has_failed.set()
        if is_now and not is_after:
            raise ConnectionError("a test has ended it")
        found = before(collective, *arguments)
        if is_now:
            raise ConnectionError("a test has ended it")
        return found

    monkeypatch.setattr(SharedMemoryAllReduce, method, fail)


POINTS = [
    ("enter", False), ("enter", True), ("put", False), ("put", True), ("call", False),
    ("call", True), ("wait", False),
    ("wait", True), ("add", False), ("add", True),
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
    """All remaining workers have the same weights: the curve is that of the problem."""
    zero = np.zeros(PROBLEM.size, "f4")
    assert PROBLEM.loss(found.vector) < 0.1 * PROBLEM.loss(zero)


def test_a_worker_that_joins_later_is_in_the_next_group(tmp_path: Path) -> None:
    found = train(setup(tmp_path, workers=2, late=[2 * BATCH]))
    check_counts(found)
    assert_same(found, train(setup(None, workers=2)))


def test_a_group_that_cannot_be_formed_is_given_up_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedMemoryAllReduce, "enter", lambda *_: False)
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


def test_the_gradient_is_written_into_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not copied."""
    found: list[bool] = []
    before: Callable[..., None] = SharedMemoryAllReduce.put

    def put(collective: SharedMemoryAllReduce, gradient: Any, mass: float) -> None:
        room = collective.room
        found.append(room is not None and np.may_share_memory(gradient, room))
        before(collective, gradient, mass)

    monkeypatch.setattr(SharedMemoryAllReduce, "put", put)
    check_counts(train(setup(tmp_path, workers=2)))
    assert all(found)
    assert found


def test_a_worker_takes_no_step_after_the_end_of_the_run(tmp_path: Path) -> None:
    """The others may not have written any gradient, and never will."""
    with shared_group(tmp_path, 2, PROBLEM.size) as members:
        group = Group(1, (0, 1))
        client: Any = SimpleNamespace(
            push_shared=lambda *_: None, confirm=lambda: True, times=Times(),
            environment=SYSTEM,
            progress=SimpleNamespace(is_done=True, sums=(), group=group, lineage=0),
        )  # fmt: skip
        zero = np.zeros(PROBLEM.size, "f4")
        fine, weight = NanStatus.FINITE, Weight(1.0, 1.0)
        part = StepPart(Piece(0, 0, 1), zero, zero[:0], weight, fine, fine)
        with pipe() as (server, other):
            client.line_to_server = server
            os.write(other, b"done")
            assert members[0].mean(client, part) is None
