"""Several servers that share a vector: the same run, bit for bit, after any loss."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from shoal.engine.server.event_log import LogEntry
from shoal.engine.transport.codec import CODECS
from shoal.engine.transport.messages.worker_to_server import Snapshot
from shoal.strategies import get
from shoal.testing.faults import leave
from shoal.testing.problems import LeastSquares
from tests.engine.test_standby import WHERE, kill
from tests.support.inline import Cluster, Outcome, Setup, train

pytestmark = pytest.mark.usefixtures("unhurried")

PROBLEM = LeastSquares.seeded(rows=64, size=150)
RATE = 0.005
ROUNDS = ["local_sgd", "all_reduce", "easgd", "diloco"]
ASYNCHRONOUS = ["aeasgd", "eamsgd", "downpour", "adag", "dynsgd", "async_diloco"]


def setup(name: str, **fields: Any) -> Setup:
    fields = {"workers": 2, "epochs": 2, "servers": 3, **fields}
    strategy = get(name) if name == "all_reduce" else get(name, period=3)
    return Setup.linear(PROBLEM, strategy, RATE, **fields)


def is_exact(outcome: Outcome, *, may_go_back: bool = False) -> None:
    """Every sample was committed exactly once."""
    assert [end.rows for end in outcome.epochs] == [64, 64]
    assert [end.metrics[1] for end in outcome.epochs] == [64, 64]
    assert may_go_back or not outcome.of_kind("rollback")


def assert_same(one: Outcome, other: Outcome) -> None:
    for mine, yours in zip(one.epochs, other.epochs, strict=True):
        np.testing.assert_array_equal(mine.vector, yours.vector)
        np.testing.assert_array_equal(mine.statistics, yours.statistics)
        np.testing.assert_array_equal(mine.metrics, yours.metrics)
    assert one.optimizer_state == other.optimizer_state


def learns(outcome: Outcome) -> None:
    start = PROBLEM.loss(np.zeros(PROBLEM.size, np.float32))
    assert PROBLEM.loss(outcome.vector) < start


@pytest.mark.parametrize("name", [*ROUNDS, *ASYNCHRONOUS])
def test_three_servers_give_the_bits_of_one(name: str) -> None:
    """With two asynchronous workers, one result shows that nothing else changes."""
    workers = 2 if name in ROUNDS else 1
    found = train(setup(name, workers=workers))
    is_exact(found)
    assert_same(found, train(setup(name, workers=workers, servers=1)))


@pytest.mark.parametrize("name", ["aeasgd", "downpour"])
def test_asynchronous_workers_with_several_servers(name: str) -> None:
    found = train(setup(name, workers=3, servers=2))
    is_exact(found)
    learns(found)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["diloco", "downpour"])
def test_each_server_encodes_its_own_part(name: str, codec: str) -> None:
    found = train(setup(name, codec=codec, servers=2))
    is_exact(found)
    learns(found)


def test_windows_overlap_with_several_servers() -> None:
    found = train(setup("aeasgd", has_overlap=True))
    is_exact(found)
    learns(found)


def test_several_servers_with_encryption() -> None:
    is_exact(train(setup("local_sgd", has_tls=True, has_standby=True)))


@pytest.mark.parametrize("name", ["aeasgd", "downpour", "local_sgd", "all_reduce"])
def test_workers_join_and_leave_with_several_servers(name: str) -> None:
    faults = leave(rank=1, step=2).leave(rank=0, step=4)
    found = train(setup(name, watch=faults, late=[10]))
    # Under all_reduce the run goes back where all are gone at once.
    is_exact(found, may_go_back=name == "all_reduce")
    assert {e["rank"] for e in found.events if e["kind"] == "left"} == {0, 1}


def train_killing(given: Setup, who: int, at: int, where: str) -> Outcome:
    """Trains, and kills one of the servers at one of its events.

    Args:
        given: Set-up of the run.
        who: Number of the server.
        at: Number of the event.
        where: See `kill`.
    """
    with Cluster(given) as cluster:
        server = cluster.shards.shards[who - 1].server if who else cluster.server
        kill(server, at, where)
        return cluster.run()


@pytest.mark.parametrize("name", ["aeasgd", "downpour", "local_sgd", "all_reduce"])
@pytest.mark.parametrize("where", WHERE)
def test_killing_any_server_costs_nothing(name: str, where: str) -> None:
    draw = random.Random(f"{name} {where} shards")
    calm = train(setup(name))
    for who in (0, 1, 2):
        given = setup(name, has_standby=True, has_overlap=False)
        found = train_killing(given, who, draw.randint(1, 30), where)
        is_exact(found)
        if name in ROUNDS:
            assert_same(found, calm)


def test_a_gradient_exchange_snapshot_stays_as_requested_after_a_loss() -> None:
    """Before, a worker overwrote a part of its state that was stored."""
    problem = LeastSquares.seeded(rows=96, size=4000)
    given = Setup.linear(
        problem, get("all_reduce"), 1e-4, epochs=2, servers=2,
        has_barrier=False, has_standby=True,
    )  # fmt: skip

    def run(*, is_lost: bool) -> Outcome:
        with Cluster(given) as cluster:
            server = cluster.server
            handle = server.replica.handle

            def handled(entry: LogEntry, *rest: Any) -> Any:
                said = getattr(entry.event, "message", None)
                if isinstance(said, Snapshot) and is_lost:
                    server.close = server._connections.close  # type: ignore[method-assign]
                    raise SystemExit
                return handle(entry, *rest)

            server.replica.handle = handled  # type: ignore[method-assign]
            return cluster.run()

    calm = run(is_lost=False)
    for _ in range(4):
        wild = run(is_lost=True)
        for one, other in zip(calm.epochs, wild.epochs, strict=True):
            np.testing.assert_array_equal(one.vector, other.vector)
