"""A standby: the leader may be killed at any moment, and only the duration shows it."""

from __future__ import annotations

import json
import random
import select
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.engine.environment import SYSTEM
from shoal.engine.server.base import BaseServer
from shoal.engine.server.primary import JOINED_AGAIN
from shoal.engine.server.replica import Replica
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.engine.server.state_transfer import pack, unpack
from shoal.engine.transport.messages.events import (
    WorkerSays,
    pack_event,
    read_event,
)
from shoal.engine.transport.server_connection import TURN_FRAMES, ServerConnection
from shoal.engine.worker.shared_memory_allreduce import SharedMemoryAllReduceSpec
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from shoal.wire.frames import pack_head
from tests.support.inline import Cluster, Outcome, Setup

pytestmark = pytest.mark.usefixtures("unhurried")

PROBLEM = LeastSquares.seeded(rows=96)
EPOCHS = 3


def kill(server: BaseServer, at: int, where: str) -> None:
    """Kills a server at one of its events.

    Args:
        server: Whose.
        at: Number of the event, from now on.
        where: "before" anybody knows of it, when the standby "knows" of it, or
            "after" it was handled, with all answers that do not wait sent.
    """
    count = 0
    handle, log = server.replica.handle, server._replication.log
    carry_out = server._carry_out

    def die() -> None:
        server.close = server._connections.close  # type: ignore[method-assign]
        raise SystemExit  # which a thread ends with quietly

    def logged(*given: Any) -> None:
        nonlocal count
        count += 1
        if count == at and where == "before":
            die()
        log(*given)

    def handled(*given: Any) -> Any:
        if count == at and where == "knows":
            die()
        return handle(*given)

    def carried_out(effects: Any) -> None:
        carry_out(effects)
        if count == at and where == "after":
            die()

    server._replication.log = logged  # type: ignore[method-assign]
    server.replica.handle = handled  # type: ignore[method-assign]
    server._carry_out = carried_out  # type: ignore[method-assign]


def setup(name: str, **fields: Any) -> Setup:
    fields = {"workers": 3, "epochs": EPOCHS, "has_standby": True, **fields}
    if name == ALONE:
        fields |= {"workers": 1, "alone_steps": 2}
    return Setup.linear(PROBLEM, get(name.partition(",")[0]), **fields)


def train(given: Setup, *kills: tuple[int, str]) -> Outcome:
    with Cluster(given) as cluster:
        left = list(kills)
        kill(cluster.server, *left.pop(0))
        take_over = cluster._take_over

        def again() -> None:
            take_over()
            while left and cluster._standby_peer is None:  # before, all would be lost
                cluster._hear(is_over=False)
            if left:
                kill(cluster.server, *left.pop(0))

        cluster._take_over = again  # type: ignore[method-assign]
        return cluster.run()


def is_exact(outcome: Outcome) -> None:
    """Every sample of every epoch was committed once, and reported once."""
    assert [end.rows for end in outcome.epochs] == [PROBLEM.rows] * EPOCHS
    assert [end.metrics[1] for end in outcome.epochs] == [PROBLEM.rows] * EPOCHS
    for epoch in range(EPOCHS):
        told = [r.samples for r in outcome.records if r.epoch == epoch]
        assert sum(told) == PROBLEM.rows
    versions = [record.version for record in outcome.records]
    assert versions == sorted(versions)
    assert "rollback" not in {event["kind"] for event in outcome.events}
    left = {e["reason"] for e in outcome.events if e["kind"] == "left"}
    assert left <= {JOINED_AGAIN}  # who had not heard yet that it had a place


ALONE = "all_reduce, alone"
"""A worker that takes windows of steps, as long as it has no partner."""
NAMES = ["aeasgd", "downpour", "local_sgd", "all_reduce", ALONE]
WHERE = ["before", "knows", "after"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", WHERE)
def test_killing_the_server_costs_nothing(name: str, where: str) -> None:
    draw = random.Random(f"{name} {where}")
    for _ in range(3):
        given = setup(name, wants_slot=draw.random() < 0.5)
        is_exact(train(given, (draw.randint(1, 40), where)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", WHERE)
def test_encoded_vectors_survive_a_failover(name: str, where: str) -> None:
    """Weights are sent as differences from what the other end has, after a loss too."""
    given = setup(name, workers=1, wants_slot=False)
    with Cluster(given) as cluster:
        plainly = cluster.run()
    kills = (7, where), (9, where)
    outcome = train(replace(given, codec="bfloat16"), *kills)
    is_exact(outcome)
    moved = np.abs(plainly.vector).max()
    assert np.abs(outcome.vector - plainly.vector).max() < 0.02 * moved


@pytest.mark.parametrize("name", ["local_sgd", "all_reduce", ALONE])
@pytest.mark.parametrize("where", WHERE)
def test_weights_after_a_failover_are_those_without_one(name: str, where: str) -> None:
    """Rounds repeat bit for bit: anything lost or applied twice shows."""
    with Cluster(setup(name, has_standby=False)) as cluster:
        calm = cluster.run()
    for at in (3, 11, 23):
        wild = train(setup(name), (at, where))
        is_exact(wild)
        for one, other in zip(calm.epochs, wild.epochs, strict=True):
            np.testing.assert_array_equal(one.vector, other.vector)
            np.testing.assert_array_equal(one.metrics, other.metrics)


@pytest.mark.parametrize("where", WHERE)
def test_killing_the_server_of_workers_that_share_memory(
    where: str, tmp_path: Path
) -> None:
    """Some of them have the mean of a step that the next server has to count."""
    with Cluster(setup("all_reduce", has_standby=False)) as cluster:
        calm = cluster.run()
    for at in (5, 13, 20, 31):
        folder = tmp_path / str(at)
        folder.mkdir()
        given = setup("all_reduce", collective=SharedMemoryAllReduceSpec(folder=folder))
        wild = train(given, (at, where), (at, where))
        is_exact(wild)
        for one, other in zip(calm.epochs, wild.epochs, strict=True):
            np.testing.assert_allclose(one.vector, other.vector, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(one.metrics, other.metrics, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_servers_are_killed_one_after_the_other(name: str) -> None:
    is_exact(train(setup(name), (9, "after"), (12, "before"), (7, "knows")))


def describe(replica: Replica) -> dict[str, Any]:
    """State in which replicas of the same events agree."""
    found = unpack(pack(replica.freeze()))
    for session in found["sessions"]:
        # Of a clock; and what a worker may be writing at this moment.
        del session["liveness"], session["up"]
    return found


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, in nested values too."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, yours in zip(one, other, strict=True):
            assert_same(mine, yours)
    elif isinstance(one, np.ndarray):
        assert one.tobytes() == other.tobytes()
    elif hasattr(one, "__dict__"):
        assert_same(vars(one), vars(other))
    else:
        assert one == other


@pytest.mark.parametrize("name", [*NAMES, "easgd", "diloco", "dynsgd", "eamsgd"])
def test_the_same_events_make_the_same_replica(name: str) -> None:
    """A standby relies on this law; events travel as text, as on a connection."""
    taken: list[tuple[str, bytes, bytes, dict[str, Any]]] = []
    with Cluster(setup(name, has_standby=False, late=[40])) as cluster:
        replica = cluster.server.replica
        log = cluster.server._replication.log

        def record(event: Any, at: float, session: Any, blob: Any) -> None:
            vectors = b"" if session is None else bytes(session.buffers.up)
            text, state = json.dumps(pack_event(event, at)), describe(replica)
            taken.append((text, vectors, bytes(blob), state))
            log(event, at, session, blob)

        cluster.server._replication.log = record  # type: ignore[method-assign]
        spec = cluster.server.spec
        again = Replica(spec, SYSTEM.clock)
        again.thaw(unpack(pack(replica.freeze())))
        cluster.run()
    assert len(taken) > 20  # joins, pushes, and how often somebody has to wait
    for text, vectors, blob, state in taken:
        assert_same(describe(again), state)
        event, at = read_event(json.loads(text))
        if vectors:
            assert isinstance(event, WorkerSays)
            again.sessions[event.rank].buffers.up[:] = vectors
        again.handle(again.enter(event, at), blob)


def test_a_standby_serves_others_while_its_leader_sends_much() -> None:
    """A controller whose handshake is not answered takes the standby for lost."""
    count = 1000
    words = pack_head({"kind": "heard", "number": 0}, 0) * count

    def lead(listener: socket.socket, secret: bytes) -> None:
        connection, _ = listener.accept()
        channel = ServerConnection(connection, secret, max_body_bytes=0)
        while not channel.is_proven:
            select.select([connection], [], [], 20)
            channel.read()
        connection.setblocking(True)
        connection.sendall(words)
        connections.append(connection)

    connections = list[socket.socket]()
    with (
        Cluster(setup("local_sgd", has_standby=False)) as cluster,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        leader = threading.Thread(target=lead, args=(listener, cluster.secret))
        leader.start()
        spec = StandbySpec(server=cluster._own_spec, leader=listener.getsockname())
        standby = Standby.open(spec, socket.create_server(("127.0.0.1", 0)))
        leader.join(20)
        taken, late = 0, time.monotonic() + 20
        take = standby._take_frame

        def counted() -> None:
            nonlocal taken
            taken += 1
            take()

        standby._take_frame = counted  # type: ignore[method-assign]
        while taken < count:
            assert time.monotonic() < late
            before = taken
            standby.turn()
            assert taken - before <= 2 * TURN_FRAMES
        standby.stop()
        standby.succeed()
        connections[0].close()
