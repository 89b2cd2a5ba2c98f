"""Every registered strategy against the laws that concern it and its golden curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.strategies import (
    AEASGD,
    EAMSGD,
    EASGD,
    Averaging,
    Facts,
    RoundStrategy,
    ServerStrategy,
    State,
    Strategy,
    adopt_reply,
    get,
    registry,
)
from shoal.strategies.mean import mean_of
from shoal.testing import (
    Law,
    LeastSquares,
    check_strategy,
    lookahead_step,
    simulate,
    strategy_laws,
)
from shoal.vectors import Vector

NAMES = registry.names()
CASES = [
    pytest.param(name, law, id=f"{name}-{law.name}")
    for name in NAMES
    for law in strategy_laws(name)
]


@pytest.mark.parametrize(("name", "law"), CASES)
def test_law(name: str, law: Law) -> None:
    law.check(get(name))


VARIANTS = [
    "aeasgd:moving_rate=0.2",
    "aeasgd:rho=2,learning_rate=0.1,period=3",
    "eamsgd:momentum=0",
    "easgd:beta=1,period=7",
    "diloco:outer_momentum=0,outer_learning_rate=1",
    "async_diloco:outer_momentum=0.5",
    "local_sgd:period=0",
    "downpour:period=1",
]


@pytest.mark.parametrize("text", VARIANTS)
def test_laws_hold_for_other_parameters(text: str) -> None:
    checked = check_strategy(get(text))
    assert "law10_works_on_segments" in checked


def test_every_number_from_1_to_11_has_a_law() -> None:
    found = {law.number for name in NAMES for law in strategy_laws(name)}
    assert found == set(range(1, 12))


@pytest.mark.parametrize(
    "text", [*(n for n in NAMES if not get(n).is_independent), "easgd:period=1"]
)
def test_golden_curve(
    text: str, golden: Callable[[str, Sequence[float]], None]
) -> None:
    strategy = get(text)
    problem = LeastSquares.seeded(rows=480, size=8, seed=11)
    outcome = simulate(
        strategy,
        problem,
        workers=strategy.max_workers or 4,
        epochs=12,
        learning_rate=0.05,
        batch_size=8,
        seed=5,
    )
    golden(text.replace(":", "-").replace("=", "-"), outcome.losses)


def test_a_simulated_run_repeats_bit_for_bit() -> None:
    problem = LeastSquares.seeded()
    first, second = (
        simulate(AEASGD(), problem, workers=3, epochs=5, learning_rate=0.1, seed=3)
        for _ in range(2)
    )
    assert first.center.tobytes() == second.center.tobytes()
    assert first.largest_staleness > 1


# Things that went wrong elsewhere.


def test_momentum_looks_ahead_in_the_right_direction() -> None:
    seen: list[float] = []

    def step(at: Vector) -> Vector:
        seen.append(float(at[0]))
        return np.float32(-0.5) * at

    local, velocity = np.array([1.0], "f4"), np.array([2.0], "f4")
    local, velocity = lookahead_step(local, velocity, 0.5, step)
    # v = 0.5 * 2 - 0.5 * (1 + 0.5 * 2); behind the point it would be 1.0 - 0.0.
    assert seen == [2.0]
    assert (local[0], velocity[0]) == (1.0, 0.0)


def test_variables_that_hold_the_lookahead_point_take_the_same_steps() -> None:
    momentum = np.float32(EAMSGD().local_momentum)
    problem, rows = LeastSquares.seeded(), np.arange(10)

    def step(at: Vector) -> Vector:
        return np.float32(-0.1) * problem.gradient(at, rows)

    local = np.zeros(problem.size, np.float32)
    velocity, held_velocity = local.copy(), local.copy()
    held: Vector = local.copy()
    for _ in range(30):
        local, velocity = lookahead_step(local, velocity, float(momentum), step)
        moved = step(held)
        held_velocity = momentum * held_velocity + moved
        held += moved + momentum * held_velocity
        np.testing.assert_allclose(held_velocity, velocity, atol=1e-5)
        np.testing.assert_allclose(held - momentum * held_velocity, local, atol=1e-5)


@pytest.mark.parametrize("name", ["aeasgd", "eamsgd"])
def test_elastic_difference_is_taken_from_the_center_of_now(name: str) -> None:
    strategy = get(name)
    assert isinstance(strategy, ServerStrategy)
    center, old = np.array([4.0], "f4"), np.array([0.0], "f4")
    local = np.array([8.0], "f4")
    message = strategy.push(local, old, steps=3)
    reply = strategy.apply(center, {}, message, Facts(workers=2))
    np.testing.assert_allclose(reply, 0.45 * (8.0 - 4.0), rtol=1e-6)
    moved, _ = strategy.pull(local, local, old, reply)
    np.testing.assert_allclose(moved + center, 12.0)


@pytest.mark.parametrize("strategy", [EASGD(), AEASGD(), EAMSGD()])
def test_moving_rate_follows_the_number_of_workers(strategy: EASGD) -> None:
    assert [strategy.moving_rate_for(n) for n in (1, 2, 16)] == [0.9, 0.45, 0.9 / 16]


def test_three_epochs_of_ones_average_to_ones() -> None:
    averaging, center = Averaging(), np.ones(3, np.float32)
    for _ in range(3):
        ones = {rank: np.ones(3, np.float32) for rank in range(3)}
        averaging.merge(center, {}, ones, dict.fromkeys(ones, Facts()))
        assert center.tolist() == [1.0, 1.0, 1.0]


# A law is worth something only if it catches the mistake it is about.


@dataclass(frozen=True, kw_only=True)
class Adding(ServerStrategy):
    """Correct, and the parent of the broken ones below."""

    name: ClassVar[str] = "adding"
    promises: ClassVar[frozenset[str]] = frozenset({"plain"})

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        return local - anchor

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        center += message
        return center

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        return adopt_reply(local, pushed, reply)


class WritesIntoMessage(Adding):
    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        message *= 2
        return super().apply(center, state, message, facts)


class DropsShortWindows(Adding):
    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        return local - anchor if steps > 1 else np.zeros_like(local)


class ForgetsStepsTakenMeanwhile(Adding):
    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        return reply, reply


class Drifts(Adding):
    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        center += message + np.float32(0.01)
        return center


class LooksAtItsNeighbours(Adding):
    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        center += message - message.mean()
        return center


class RepliesInPlaceWithTheMessage(Adding):
    def apply_into(
        self, reply: Vector, center: Vector, state: State, message: Vector, facts: Facts
    ) -> None:
        center += message
        reply[:] = message


class ForgetsItsAnchorInPlace(Adding):
    def pull_into(
        self, out: Vector, local: Vector, anchor: Vector, reply: Vector
    ) -> None:
        out[:] = reply


class TakesItsAnchorForItsStart(Adding):
    """Its anchor stays where it began."""

    needs_anchor = False

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        return super().pull(local, pushed, anchor, reply)[0], anchor


class SwitchesToDouble(Adding):
    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        return (local - anchor).astype(np.float64)  # pyright: ignore[reportReturnType]


class ReplacesItsState(Adding):
    def init(self, size: int) -> State:
        return {"sum": np.zeros(size, np.float32)}

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        state["sum"] = state["sum"] + message
        center += message
        return center


@dataclass(frozen=True, kw_only=True)
class KeepsCountOutsideItsState(Adding):
    seen: list[int] = field(default_factory=list)

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        self.seen.append(1)
        center += message / len(self.seen)
        return center


@dataclass(frozen=True, kw_only=True)
class RoundOfOne(RoundStrategy):
    """Takes the message that came last, and calls it a mean."""

    name: ClassVar[str] = "round_of_one"

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        return local

    def merge(
        self,
        center: Vector,
        state: State,
        messages: Mapping[int, Vector],
        facts: Mapping[int, Facts],
    ) -> dict[int, Vector]:
        center[:] = list(messages.values())[-1]
        return dict.fromkeys(messages, center)

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        return adopt_reply(local, pushed, reply)


@dataclass(frozen=True, kw_only=True)
class RepliesFromOneBuffer(RoundOfOne):
    """Writes every reply over the last one of that length."""

    name: ClassVar[str] = "replies_from_one_buffer"
    buffers: dict[int, Vector] = field(default_factory=dict)

    def merge(
        self,
        center: Vector,
        state: State,
        messages: Mapping[int, Vector],
        facts: Mapping[int, Facts],
    ) -> dict[int, Vector]:
        center[:] = mean_of(messages, facts)
        reply = self.buffers.setdefault(center.size, np.empty_like(center))
        reply[:] = center
        return dict.fromkeys(messages, reply)


@dataclass(frozen=True, kw_only=True)
class PushesFromOneBuffer(Adding):
    """Writes every message over the last one of that length."""

    name: ClassVar[str] = "pushes_from_one_buffer"
    buffers: dict[int, Vector] = field(default_factory=dict)

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        message = self.buffers.setdefault(local.size, np.empty_like(local))
        return np.subtract(local, anchor, out=message)


class Neither(Strategy):
    """Neither applies nor merges."""

    name: ClassVar[str] = "neither"
    is_asynchronous: ClassVar[bool] = True

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        return local

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        return local, anchor


def test_a_correct_class_passes() -> None:
    assert "law01_equals_plain_training" in check_strategy(Adding)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (WritesIntoMessage, "law07_changes_only_center_and_state"),
        (DropsShortWindows, "law08_delivers_short_windows"),
        (ForgetsStepsTakenMeanwhile, "law07_keeps_steps_taken_meanwhile"),
        (Drifts, "law06_ones_stay_ones"),
        (LooksAtItsNeighbours, "law10_works_on_segments"),
        (RepliesInPlaceWithTheMessage, "law10_writes_in_place_the_same"),
        (ForgetsItsAnchorInPlace, "law10_writes_in_place_the_same"),
        (TakesItsAnchorForItsStart, "law10_needs_no_anchor"),
        (SwitchesToDouble, "law07_changes_only_center_and_state"),
        (ReplacesItsState, "law07_changes_only_center_and_state"),
        (KeepsCountOutsideItsState, "law07_survives_checkpoint"),
        (RepliesFromOneBuffer, "law10_works_on_segments"),
        (PushesFromOneBuffer, "law10_works_on_segments"),
        (RoundOfOne, "law03_ignores_order"),
        (Neither, "neither a ServerStrategy nor a RoundStrategy"),
    ],
)
def test_the_laws_find_each_broken_strategy(broken: type[Strategy], law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_strategy(broken)


@dataclass(frozen=True, kw_only=True)
class NeedsShare(Adding):
    share: float


def test_a_class_that_needs_arguments_is_checked_as_an_object() -> None:
    assert check_strategy(NeedsShare(share=0.5)) == check_strategy(Adding)
    with pytest.raises(ConfigError, match="made without share"):
        check_strategy(NeedsShare)


def test_a_rank_without_rows_takes_the_step_with_the_rest() -> None:
    problem = LeastSquares.seeded(rows=9, size=3)
    together, single = (
        simulate(get("all_reduce"), problem, workers=n, epochs=3, learning_rate=0.1)
        for n in (4, 1)
    )
    np.testing.assert_allclose(together.center, single.center, atol=1e-6)
    assert together.committed == 3 * 9
