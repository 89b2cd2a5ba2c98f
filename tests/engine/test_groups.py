"""Groups that average among themselves, by gloo, over real sockets in threads."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from shoal.backends.group import GroupBroken, NativeGroup
from shoal.backends.torch_group import open_group
from shoal.data.order import Order
from shoal.engine.worker.collective import ServerCollectiveSpec
from shoal.engine.worker.native_allreduce import NativeAllReduceSpec
from shoal.strategies import AllReduce
from shoal.testing import faults
from shoal.testing.problems import LeastSquares
from shoal.vectors import Vector
from tests.support.inline import Outcome, Setup, train

pytestmark = pytest.mark.usefixtures("unhurried")

ROWS, EPOCHS, BATCH = 96, 3, 7  # 13 steps of 7 rows and one of 5
FULL = 13
PROBLEM = LeastSquares.seeded(rows=ROWS, size=5)


@final
class Watched(NativeGroup):
    """A group that counts what it adds, and may report that it failed."""

    def __init__(self, inner: NativeGroup, opener: Opener, place: int) -> None:
        self._inner, self._opener, self._place = inner, opener, place
        self._added = 0

    def add(self, vector: Vector, mass: float) -> float:
        self._added += 1
        total = self._inner.add(vector, mass)
        if self._opener.slips(self._place, self._added):
            raise GroupBroken("a test has broken it, after all others had the sum")
        with self._opener.lock:
            self._opener.adds += 1
        return total

    def close(self) -> None:
        self._inner.close()


class Opener:
    """Opens groups of gloo, and keeps a list of them."""

    def __init__(self, slip: tuple[int, int] | None = None) -> None:
        self._slip, self.adds, self.lock = slip, 0, threading.Lock()
        self.formed: Counter[tuple[str, int]] = Counter()

    def __call__(self, path: Path, place: int, size: int, library: str) -> NativeGroup:
        with self.lock:
            self.formed[path.name, size] += 1
        return Watched(open_group(path, place, size, library), self, place)

    def slips(self, place: int, added: int) -> bool:
        is_now = (place, added) == self._slip
        self._slip = None if is_now else self._slip
        return is_now


def never(path: Path, place: int, size: int, library: str) -> NativeGroup:
    raise GroupBroken("no such library")


def setup(folder: Path, opener: Any = None, **changes: Any) -> Setup:
    collective = NativeAllReduceSpec(open_group=opener, folder=folder, library="gloo")
    given: dict[str, Any] = {
        "workers": 3, "epochs": EPOCHS, "batch_size": BATCH,
        "collective": ServerCollectiveSpec() if opener is None else collective,
        **changes,
    }  # fmt: skip
    return Setup.linear(PROBLEM, AllReduce(), 0.3, **given)


def check_adds(opener: Opener, workers: int, steps: int = FULL + 1) -> None:
    """The server averages the first step if not all workers are ready at once."""
    most = workers * EPOCHS * steps
    assert opener.adds % workers == 0
    assert most - workers * EPOCHS <= opener.adds <= most


def check_counts(outcome: Outcome, rows: int = ROWS) -> None:
    assert [end.rows for end in outcome.epochs] == [rows] * EPOCHS
    assert [end.metrics[1] for end in outcome.epochs] == [rows] * EPOCHS


def assert_same(one: Outcome, other: Outcome) -> None:
    for mine, theirs in zip(one.epochs, other.epochs, strict=True):
        np.testing.assert_allclose(mine.vector, theirs.vector, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mine.statistics, theirs.statistics, rtol=1e-6)
        np.testing.assert_allclose(mine.metrics, theirs.metrics, rtol=1e-5)


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_curve_is_that_of_the_server(
    workers: int, wants_slot: bool, tmp_path: Path
) -> None:
    opener = Opener()
    found = train(setup(tmp_path, opener, workers=workers, wants_slot=wants_slot))
    check_counts(found)
    assert_same(found, train(setup(tmp_path, workers=workers)))
    assert opener.formed == {("0-1", workers): workers}
    check_adds(opener, workers)


def test_a_step_that_is_too_short_for_all_goes_through_the_server(
    tmp_path: Path,
) -> None:
    opener, order = Opener(), Order(rows=FULL * BATCH + 1, shuffle=False)
    found = train(replace(setup(tmp_path, opener), order=order))
    check_counts(found, FULL * BATCH + 1)
    assert_same(found, train(replace(setup(tmp_path), order=order)))
    assert opener.formed == {("0-1", 3): 3}
    check_adds(opener, 3, FULL)


def test_a_lost_worker_breaks_the_group_and_the_next_one_has_its_successor(
    tmp_path: Path,
) -> None:
    opener = Opener()
    found = train(setup(tmp_path, opener, watch=faults.leave(rank=1, step=5)))
    check_counts(found)
    assert len(found.of_kind("left")) == 1
    sizes = [size for _, size in sorted(opener.formed)]
    assert sizes in ([3, 2], [3, 3], [3, 2, 3])  # it joins sooner or later
    assert not found.of_kind("warning")
    zero = np.zeros(PROBLEM.size, "f4")
    assert PROBLEM.loss(found.vector) < 0.1 * PROBLEM.loss(zero)


def test_a_mean_that_one_did_not_get_is_made_by_the_server(tmp_path: Path) -> None:
    opener = Opener(slip=(1, 4))
    found = train(setup(tmp_path, opener))
    check_counts(found)
    assert_same(found, train(setup(tmp_path)))
    assert opener.formed == {("0-1", 3): 3, ("0-2", 3): 3}
    assert not found.of_kind("left")


def test_a_worker_that_joins_later_is_in_the_next_group(tmp_path: Path) -> None:
    opener = Opener()
    found = train(setup(tmp_path, opener, workers=2, late=[2 * BATCH]))
    check_counts(found)
    assert_same(found, train(setup(tmp_path, workers=2)))
    assert opener.formed["0-1", 2] == 2


def test_a_group_that_cannot_be_formed_is_given_up_with_a_warning(
    tmp_path: Path,
) -> None:
    found = train(setup(tmp_path, never))
    check_counts(found)
    [warning] = found.of_kind("warning")
    assert "cannot average gradients among themselves" in warning["text"]
    assert_same(found, train(setup(tmp_path)))


def test_a_standby_goes_on_with_groups(tmp_path: Path) -> None:
    opener = Opener()
    found = train(setup(tmp_path, opener, has_standby=True))
    check_counts(found)
    assert_same(found, train(setup(tmp_path)))
    check_adds(opener, 3)
