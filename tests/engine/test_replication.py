"""Which workers wait for a slow standby, and which are silent themselves."""

from __future__ import annotations

from typing import Any, cast

from shoal.engine.coordination.timeouts import PAUSE_S, LivenessTimeout
from shoal.engine.server.primary import Primary
from shoal.engine.transport.listener import Connections
from shoal.engine.transport.messages.server_to_worker import Elsewhere
from tests.engine.cases import setup
from tests.engine.test_take_over import quiet_mirror, standby_of
from tests.simulation.failover.network import SimConnections, Wire
from tests.simulation.failover.processes import server_spec
from tests.support.environments import SettableClock

LONG_AGO = -1000.0


def test_short_waits_are_no_stall_and_no_second_counts_twice() -> None:
    clock = SettableClock(100.0)
    replication, worker = quiet_mirror(clock), standby_of(0)
    replication.begin(standby_of(1), b"all")
    found: list[float] = []
    for seconds in (0.0, PAUSE_S, 0.5, 0.25):
        clock.now += seconds
        replication.send(worker, Elsewhere())
        found.append(replication.stalled_s())
    assert found == [0.0, 0.0, PAUSE_S + 0.5, 0.25]
    assert replication.waiting == {worker}
    replication.acknowledge(1)
    assert (replication.stalled_s(), replication.waiting) == (0.0, set())


def join(connections: SimConnections, server: Primary, rank: int) -> Wire:
    """A worker that has compiled, and sent its last message a long time ago."""
    wire, sizes = Wire(), server.spec.sizes
    connections.accept(wire)
    who = {"hint": rank, "node": "here", "pid": 1, "token": f"{rank}"}
    asks = {"digest": sizes.digest, "metrics": sizes.metrics, "wants_slot": False}
    say(connections, wire, {"kind": "join", **who, **asks})
    say(connections, wire, {"kind": "slot", "is_shared": False})
    server.replica.sessions[rank].liveness = LivenessTimeout(
        startup_s=1.0, since=LONG_AGO
    )
    return wire


def say(connections: SimConnections, wire: Wire, head: Any) -> None:
    wire.say(head)
    connections.due = wire
    connections.serve(0.0)


def test_a_slow_standby_excuses_only_workers_that_wait_for_it() -> None:
    connections = SimConnections()
    server = Primary(server_spec(setup("downpour")), cast("Connections", connections))
    waiting, _ = (join(connections, server, rank) for rank in range(2))
    controller, standby = Wire(is_commander=True), Wire(is_commander=True)
    connections.accept(controller)
    connections.accept(standby)
    say(connections, controller, {"kind": "control"})
    say(connections, controller, {"kind": "proceed", "epoch": 0})
    server._replication.begin(connections.peers[standby], b"all")
    say(connections, waiting, {"kind": "ready", "question": 1})
    server.replica.sessions[0].liveness = LivenessTimeout(startup_s=1.0, since=LONG_AGO)
    server._replication._held[0] = server._replication._held[0]._replace(since=LONG_AGO)
    server._flushed, began = LONG_AGO, server._straggler_timeout.began
    server.turn()
    assert set(server.replica.sessions) == {0}
    assert (
        server._straggler_timeout.began > began + PAUSE_S
    )  # nor is a round overdue meanwhile
    server.close()
