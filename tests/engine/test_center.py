"""The center's arithmetic: segments give the same as the whole vector; statistics."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.engine.server.center import Center
from shoal.engine.transport import segments as segments_module
from shoal.engine.transport.segments import pull_into, push_into, segments
from shoal.strategies import get
from shoal.strategies.base import Facts, Strategy
from shoal.vectors import Vector

SIZE = 50
STRATEGIES = ["aeasgd", "downpour", "async_diloco", "local_sgd", "diloco", "easgd"]
NONE = np.zeros(0, np.float32)


def drawn(seed: int, size: int = SIZE) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def exchange(strategy: Strategy) -> list[Vector]:
    """Three exchanges of two workers; returns all results."""
    center = Center(strategy, drawn(0), NONE)
    replies = {rank: np.empty(SIZE, np.float32) for rank in (0, 1)}
    found: list[Vector] = []
    for turn in range(3):
        facts = {rank: Facts(workers=2, samples=3.0 + rank) for rank in replies}
        messages = {rank: drawn(2 * turn + rank + 1) for rank in replies}
        if strategy.is_asynchronous:
            for rank, message in messages.items():
                center.apply(rank, message, NONE, facts[rank], replies[rank])
        else:

            def write(rank: int, part: slice, values: Vector) -> None:
                for place in replies if rank < 0 else [rank]:
                    replies[place][part] = values

            center.merge(messages, dict.fromkeys(messages, NONE), facts, write)
        found += [center.vector.copy(), *(reply.copy() for reply in replies.values())]
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_segments_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = exchange(get(name))
    monkeypatch.setattr(segments_module.segments, "__defaults__", (7,))
    for ours, theirs in zip(exchange(get(name)), whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", STRATEGIES)
def test_push_and_pull_by_segments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = get(name)
    local, anchor, reply = drawn(1), drawn(2), drawn(3)
    monkeypatch.setattr(segments_module.segments, "__defaults__", (7,))
    message = np.empty(SIZE, np.float32)
    push_into(strategy, message, local, anchor, 2)
    np.testing.assert_array_equal(message, strategy.push(local, anchor, 2))
    before = anchor.copy()
    expected, after = strategy.pull(local, local, before, reply)
    out = np.empty(SIZE, np.float32)
    pull_into(strategy, out, local, anchor, reply)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(anchor, after if strategy.needs_anchor else before)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 20])
def test_segments_cover_everything_once(size: int) -> None:
    found = [i for part in segments(size, 7) for i in range(size)[part]]
    assert found == list(range(size))


def test_statistics_of_a_round_are_weighted_by_samples() -> None:
    center = Center(get("local_sgd"), drawn(0), np.zeros(1, np.float32))
    facts = {0: Facts(samples=1.0), 1: Facts(samples=3.0)}
    statistics = {0: np.array([4.0], "f4"), 1: np.array([8.0], "f4")}
    messages = {rank: drawn(rank) for rank in facts}
    center.merge(messages, statistics, facts, lambda *_: None)
    assert center.statistics.tolist() == [7.0]


def test_a_round_of_zero_weight_keeps_the_statistics() -> None:
    center = Center(get("all_reduce"), drawn(0), np.ones(1, np.float32))
    center.merge({0: drawn(1)}, {0: NONE}, {0: Facts(samples=0.0)}, lambda *_: None)
    assert center.statistics.tolist() == [1.0]


def test_running_statistics_forget_a_lost_worker() -> None:
    center = Center(get("downpour"), drawn(0), np.zeros(1, np.float32))
    reply = np.empty(SIZE, np.float32)

    def apply(rank: int, value: float) -> None:
        statistics = np.array([value], np.float32)
        center.apply(rank, drawn(1), statistics, Facts(samples=5.0), reply)

    apply(0, 8.0)
    assert center.statistics.tolist() == [8.0]
    apply(1, 0.0)
    assert center.statistics.tolist() == [4.0]
    center.forget(0)
    apply(1, 2.0)
    assert center.statistics.tolist() == [2.0]


def test_a_strategy_gets_only_the_call_it_implements() -> None:
    vector = drawn(0)
    with pytest.raises(TypeError, match="merges rounds"):
        Center(get("local_sgd"), vector, NONE).apply(0, vector, NONE, Facts(), vector)
    with pytest.raises(TypeError, match="has no rounds"):
        Center(get("downpour"), vector, NONE).merge({}, {}, {}, lambda *_: None)
