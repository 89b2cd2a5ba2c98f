"""Arithmetic in two threads gives the result of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.engine.server.center import Center
from shoal.engine.transport.segments import (
    LONG,
    WORTH_A_THREAD,
    InPairs,
    in_turn,
    pull_into,
    push_into,
)
from shoal.strategies import get
from shoal.strategies.base import Facts
from shoal.vectors import Vector

LARGE = 2 * WORTH_A_THREAD + 5


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine.transport.segments.count_cores", lambda: 2)


@pytest.fixture
def pairs(two_cores: None) -> Iterator[InPairs]:
    spread = InPairs()
    yield spread
    spread.close()


@given(some.sampled_from([0, 1, 100, LARGE, 5 * LARGE]) | some.integers(0, 10 * LARGE))
def test_every_float_is_computed_once(size: int) -> None:
    spread, seen = InPairs(), np.zeros(size, np.int8)

    def work(part: slice) -> None:
        seen[part] += 1

    spread(size, work)
    spread.close()
    assert (seen == 1).all()


def test_large_vectors_are_spread_over_two_threads(pairs: InPairs) -> None:
    names: set[str] = set()
    both = threading.Barrier(2, timeout=30)

    def work(part: slice) -> None:
        names.add(threading.current_thread().name.partition("_")[0])
        both.wait()

    pairs(LARGE, work)
    assert names == {threading.current_thread().name, "shoal-merge"}


@pytest.mark.parametrize("name", ["all_reduce", "local_sgd", "diloco", "easgd"])
def test_a_round_is_the_same_to_the_last_bit(name: str, pairs: InPairs) -> None:
    def merged(threads: bool) -> list[Vector]:
        random = np.random.default_rng(1)
        center = Center(
            get(name), random.standard_normal(LARGE, "f4"), random.random(0, "f4")
        )
        center.spread(pairs if threads else in_turn, in_turn)
        none: dict[int, Vector] = dict.fromkeys((0, 1), np.zeros(0, "f4"))
        facts = {rank: Facts(workers=2, samples=3.0 + rank) for rank in none}
        replies = {rank: np.empty(LARGE, "f4") for rank in none}

        def write(rank: int, part: slice, values: Vector) -> None:
            for place in replies if rank < 0 else [rank]:
                replies[place][part] = values

        for _ in range(2):
            messages = {rank: random.standard_normal(LARGE, "f4") for rank in none}
            center.merge(messages, none, facts, write)
        return [center.vector, *center.state.values(), *replies.values()]

    for ours, theirs in zip(merged(True), merged(False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("size", "busy", "threads"), [(LONG, 1, 2), (LONG, 2, 1), (LONG - 1, 1, 1)]
)
def test_one_message_has_a_second_thread_where_it_pays(
    pairs: InPairs, size: int, busy: int, threads: int
) -> None:
    names: set[str] = set()
    both = threading.Barrier(threads, timeout=30)

    def work(part: slice) -> None:
        names.add(threading.current_thread().name.partition("_")[0])
        both.wait()

    pairs.beside(lambda: busy)(size, work)
    assert len(names) == threads


@pytest.mark.parametrize("name", ["downpour", "adag", "dynsgd", "aeasgd", "eamsgd"])
def test_an_exchange_is_the_same_to_the_last_bit(name: str, pairs: InPairs) -> None:
    def exchanged(threads: bool) -> list[Vector]:
        spread, strategy = pairs if threads else in_turn, get(name)
        random = np.random.default_rng(1)
        vector, none = random.standard_normal(LARGE, "f4"), np.zeros(0, "f4")
        center, anchor = Center(strategy, vector.copy(), none), vector.copy()
        center.spread(in_turn, spread)
        message, reply, local = (np.empty(LARGE, "f4") for _ in range(3))
        facts = Facts(workers=2, samples=3.0, staleness=1)
        for _ in range(2):
            trained = random.standard_normal(LARGE, "f4")
            push_into(strategy, message, trained, anchor, 4, spread)
            center.apply(0, message, none, facts, reply)
            pull_into(strategy, local, trained, anchor, reply, spread)
        return [center.vector, *center.state.values(), reply, local, anchor]

    for ours, theirs in zip(exchanged(True), exchanged(False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("place", [0, -1])
def test_an_error_is_raised_once_no_thread_works_any_more(
    pairs: InPairs, place: int
) -> None:
    edge = 0 if place == 0 else LARGE

    def work(part: slice) -> None:
        if edge in (part.start, part.stop):
            raise ValueError("of a strategy")

    with pytest.raises(ValueError, match="of a strategy"):
        pairs(LARGE, work)
    pairs(LARGE, lambda part: None)  # and it still works


def test_a_closed_spread_has_no_thread(pairs: InPairs) -> None:
    before = threading.active_count()
    pairs(LARGE, lambda part: None)
    pairs.close()
    assert threading.active_count() == before


def test_without_more_threads_one_does_all_segments(
    pairs: InPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    seen = np.zeros(LARGE, np.int8)

    def work(part: slice) -> None:
        seen[part] += 1

    monkeypatch.setattr(threading.Thread, "start", start)
    pairs(LARGE, work)
    pairs(LARGE, work)
    assert (seen == 2).all()


def test_the_thread_has_the_error_state_of_its_caller(pairs: InPairs) -> None:
    def work(part: slice) -> None:
        found = np.zeros(part.stop - part.start, np.float32) / np.float32(0)
        assert np.isnan(found).all()

    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        pairs(LARGE, lambda part: work(part) if part.start else None)
    with np.errstate(invalid="ignore"):
        pairs(LARGE, work)
