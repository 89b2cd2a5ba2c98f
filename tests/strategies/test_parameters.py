"""What strategies refuse, warn about, and promise beyond the laws."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import ConfigError, PlanError
from shoal.plan.cautions import STEADY, STEADY_LOST
from shoal.strategies import (
    ADAG,
    AEASGD,
    EAMSGD,
    EASGD,
    AllReduce,
    AsyncDiLoCo,
    DiLoCo,
    Downpour,
    Facts,
    LocalSGD,
    Strategy,
    get,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("adag:period=-1", "period=-1"),
        ("adag:period=2.5", "period is a whole number"),
        ("adag:period=true", "period is a whole number"),
        ("aeasgd:beta=0", r"beta is in \(0, 1\]"),
        ("aeasgd:beta=1.5", "beta=1.5"),
        ("aeasgd:beta=nan", "beta=nan"),
        ("aeasgd:beta=much", "beta is a number"),
        ("aeasgd:beta=true", "beta is a number"),
        ("aeasgd:moving_rate=0", "moving_rate is a number above 0"),
        ("aeasgd:moving_rate=fast", "moving_rate is a number above 0"),
        ("aeasgd:moving_rate=1.5", "moving_rate=1.5"),
        ("aeasgd:rho=2", "Give both"),
        ("aeasgd:learning_rate=0.1", "Give both"),
        ("aeasgd:rho=5,learning_rate=0.1,moving_rate=0.1", "Give one of them"),
        ("aeasgd:rho=5,learning_rate=1", "moving_rate=5"),
        ("eamsgd:momentum=1", r"momentum is in \[0, 1\)"),
        ("diloco:outer_learning_rate=0", "outer_learning_rate is above 0"),
        ("diloco:outer_momentum=1", "outer_momentum"),
        ("async_diloco:outer_learning_rate=-1", "outer_learning_rate"),
        ("async_diloco:outer_momentum=-0.1", "outer_momentum"),
        ("all_reduce:period=2", "period is 1"),
        ("all_reduce:warmup_epochs=-1", "warmup_epochs"),
        ("all_reduce:scale_learning_rate=1", "True or False"),
        ("ensemble:members=0", "members"),
        ("ensemble:members=many", "members"),
    ],
)
def test_a_wrong_value_is_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        get(text)


def test_numpy_numbers_are_numbers() -> None:
    strategy = AEASGD(beta=np.float32(0.5), period=np.int64(3))  # pyright: ignore[reportArgumentType]
    assert strategy.moving_rate_for(2) == 0.25


def test_moving_rate_has_three_spellings() -> None:
    assert AEASGD(moving_rate=0.1).moving_rate_for(4) == 0.1
    assert AEASGD(rho=5.0, learning_rate=0.1).moving_rate_for(4) == 0.5
    assert AEASGD(beta=0.8).moving_rate_for(4) == 0.2


def test_an_unstable_moving_rate_is_refused_when_given() -> None:
    strategy = AEASGD(moving_rate=0.5)
    assert strategy.warnings(workers=2, exchanges_per_epoch=10) == []
    with pytest.raises(PlanError, match=r"moving_rate=0\.5 and 3 workers"):
        strategy.warnings(workers=3, exchanges_per_epoch=10)


def test_an_unstable_moving_rate_is_warned_about_when_derived() -> None:
    strategy = EASGD(rho=5.0, learning_rate=0.1)
    assert strategy.warnings(workers=2, exchanges_per_epoch=10) == []
    [warning] = strategy.warnings(workers=3, exchanges_per_epoch=10)
    assert "rho * learning_rate" in warning


@pytest.mark.parametrize("workers", [1, 3, 7, 49])
def test_beta_of_one_is_stable_for_any_number_of_workers(workers: int) -> None:
    assert AEASGD(beta=1.0).warnings(workers=workers, exchanges_per_epoch=10) == []


def test_few_exchanges_are_warned_about() -> None:
    [warning] = LocalSGD().warnings(workers=2, exchanges_per_epoch=2.2)
    assert "only 2.2 times" in warning
    assert LocalSGD().warnings(workers=2, exchanges_per_epoch=3) == []
    assert AllReduce().warnings(workers=2, exchanges_per_epoch=2) == []


@given(some.integers(2, 500), some.floats(0.01, 2.99))
def test_the_period_that_is_advised_is_short_enough(period: int, exchanges: float):
    [warning] = LocalSGD(period=period).warnings(
        workers=2, exchanges_per_epoch=exchanges
    )
    [advised] = map(int, re.findall(r"Choose period=(\d+)", warning))
    assert advised < period
    often = exchanges * period / advised
    again = LocalSGD(period=advised).warnings(workers=2, exchanges_per_epoch=often)
    assert again == []


@pytest.mark.parametrize("name", ["single", "ensemble", "averaging"])
def test_few_exchanges_are_right_for_some(name: str) -> None:
    assert get(name).warnings(workers=1, exchanges_per_epoch=1) == []


def test_strategies_that_overshoot() -> None:
    def found(strategy: Strategy, workers: int) -> tuple[bool, float] | None:
        overshoot = strategy.overshoot(workers)
        return None if overshoot is None else (overshoot.is_known, overshoot.rate)

    assert [found(Downpour(), n) for n in (1, 2, 4)] == [
        None,
        (False, 0.5),
        (True, 0.25),
    ]
    assert found(Downpour(period=20), 2) == (True, 0.5)
    assert found(EAMSGD(), 8) == (True, pytest.approx(0.1))
    assert found(EAMSGD(momentum=0.0), 16) is None
    assert found(AEASGD(), 16) is None


def test_points_that_are_named_are_those_that_were_measured() -> None:
    text = (ROOT / "docs/reference/learning-quality.json").read_text()
    cells = [c for c in json.loads(text)["cells"] if c["data"] == "MNIST"]
    plain = {c["seed"]: c["accuracy"] for c in cells if c["strategy"] == "single"}

    def lost(strategy: str, workers: int) -> float:
        found = [
            100 * (plain[c["seed"]] - c["accuracy"])
            for c in cells
            if (c["strategy"], c["workers"]) == (strategy, workers)
        ]
        return sum(found) / len(found)

    for strategy in (Downpour(), EAMSGD()):
        overshoot = strategy.overshoot(16)
        assert overshoot is not None
        for workers, points in overshoot.lost.items():
            assert points == pytest.approx(lost(strategy.name, workers), abs=0.06)
    assert lost(STEADY, 16) == pytest.approx(STEADY_LOST, abs=0.06)


def test_adag_warns_of_few_workers() -> None:
    assert ADAG(period=4).warnings(workers=4, exchanges_per_epoch=10) == []
    [warning] = ADAG(period=4).warnings(workers=2, exchanges_per_epoch=10)
    assert "1/4 of each window" in warning


def test_adag_warns_where_it_overshoots() -> None:
    [warning] = ADAG(period=4).warnings(workers=5, exchanges_per_epoch=10)
    assert "overshoot" in warning
    assert "Choose period=5" in warning
    assert ADAG(period=1).warnings(workers=1, exchanges_per_epoch=10) == []


def test_outer_momentum_warns_of_late_changes() -> None:
    high = AsyncDiLoCo(outer_momentum=0.9)
    assert high.warnings(workers=1, exchanges_per_epoch=10) == []
    [warning] = high.warnings(workers=8, exchanges_per_epoch=10)
    assert re.search("up to 7 times .* about 8 updates late", warning)


@pytest.mark.parametrize("spelling", ["eamsgd:momentum=0.0", "async_diloco"])
def test_without_momentum_nothing_is_warned_of(spelling: str) -> None:
    assert get(spelling).warnings(workers=16, exchanges_per_epoch=10) == []


def test_an_ensemble_is_independent() -> None:
    ensemble = get("ensemble:members=3,period=1")
    assert ensemble.is_independent
    assert ensemble.learning_rate_bound(curvature=4.0) == 0.5


def test_the_reply_of_all_reduce_is_one_object_and_leaves_the_center() -> None:
    center = np.full(3, 7.0, np.float32)
    for workers in (1, 2, 3, 5):
        messages = {rank: np.full(3, rank + 1.0, np.float32) for rank in range(workers)}
        facts = {rank: Facts(samples=2.0) for rank in messages}
        replies = AllReduce().merge(center, {}, messages, facts)
        mean = sum(range(1, workers + 1)) / (2 * workers)
        np.testing.assert_allclose(replies[0], mean, rtol=1e-6)
        assert all(reply is replies[0] for reply in replies.values())
        assert all(reply is not messages[0] for reply in replies.values())
        assert center.tolist() == [7.0, 7.0, 7.0]


def test_a_mean_is_weighted_by_samples() -> None:
    center = np.zeros(1, np.float32)
    messages = {0: np.array([1.0], "f4"), 1: np.array([4.0], "f4")}
    LocalSGD().merge(center, {}, messages, {0: Facts(samples=1), 1: Facts(samples=2)})
    assert center[0] == 3.0


def test_a_mean_of_many_small_numbers_beside_a_large_one_is_exact() -> None:
    # In float32 each 1.0 would be lost beside 2**25.
    messages = {rank: np.array([1.0], "f4") for rank in range(16)}
    messages[16] = np.array([2.0**25], "f4")
    facts = dict.fromkeys(messages, Facts(samples=1.0))
    reply = AllReduce().merge(np.zeros(1, "f4"), {}, messages, facts)[0]
    assert math.isclose(reply[0] * 17, 2**25 + 16, rel_tol=1e-7)


def outer_nesterov(gradients: list[float], rate: float, momentum: float) -> float:
    """The textbook rule, in Python floats."""
    at, velocity = 0.0, 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        at -= rate * (gradient + momentum * velocity)
    return at


def test_diloco_is_nesterov_on_the_mean_pseudo_gradient() -> None:
    diloco, center = DiLoCo(outer_momentum=0.9), np.zeros(1, np.float32)
    state = diloco.init(1)
    for gradient in (1.0, -0.5, 0.25):
        messages = {r: np.array([gradient + r - 0.5], "f4") for r in range(2)}
        diloco.merge(center, state, messages, dict.fromkeys(messages, Facts()))
    expected = outer_nesterov([1.0, -0.5, 0.25], rate=0.7, momentum=0.9)
    np.testing.assert_allclose(center[0], expected, rtol=1e-5)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(("period", "momentum"), [(0, 0.9), (20, 0.9), (5, 0.225)])
@pytest.mark.parametrize("steps", [1, 5, 20])
def test_delayed_nesterov_over_n_arrivals_is_nesterov_on_their_mean(
    workers: int, period: int, momentum: float, steps: int
) -> None:
    """With less momentum in short periods, but not after single short windows."""
    strategy = AsyncDiLoCo(outer_momentum=0.9, period=period)
    center = np.zeros(1, np.float32)
    state = strategy.init(1)
    means = [1.0, -0.5, 0.25]
    arrivals = [mean + r - (workers - 1) / 2 for mean in means for r in range(workers)]
    for number, gradient in enumerate(arrivals):
        message = np.array([gradient], np.float32)
        facts = Facts(workers=workers, updates=number, steps=steps)
        strategy.apply(center, state, message, facts)
    expected = outer_nesterov(means, rate=0.7, momentum=momentum)
    np.testing.assert_allclose(center[0], expected, rtol=1e-5)
    assert state["buffer"][0] == 0.0


def test_a_joining_worker_gets_a_copy_of_the_center() -> None:
    center = np.ones(2, np.float32)
    local = AEASGD().adopt(center)
    local += 1
    assert center.tolist() == [1.0, 1.0]
