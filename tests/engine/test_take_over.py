"""A fail-over as worker and controller see it, message by message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from shoal.engine.coordination.timeouts import FLOOR_S
from shoal.engine.environment import SYSTEM
from shoal.engine.server.base import BaseServer
from shoal.engine.server.replication import Replication, StandbyPeer
from shoal.engine.transport.client_connection import TURN_S
from shoal.engine.transport.messages.standby import StandbyCalls
from shoal.engine.transport.messages.worker_to_server import Busy
from shoal.engine.worker.client import ServerClient
from shoal.errors import ClusterError, WorkerFailed
from shoal.strategies import LocalSGD, get
from shoal.testing.problems import LeastSquares
from shoal.vectors import Vector
from shoal.wire.frames import BadFrame, Head, Link, pack_head
from shoal.wire.handshake import worker_secret
from tests.engine.test_standby import kill
from tests.support import inline
from tests.support.environments import SettableClock
from tests.support.inline import Cluster, Setup

PROBLEM = LeastSquares.seeded(rows=96)
LONG_S = 1000.0  # a round took, as the standby saw it


class Voice:
    """A worker whose messages the test sends.

    Args:
        cluster: Cluster that it joins.
        rank: Rank that it asks for, and gets.
    """

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self._cluster, self.rank, self.token = cluster, rank, f"token-{rank}"
        sizes = cluster.sizes
        self._link = self._call()
        head = self.hear_of(
            {"kind": "join", "digest": sizes.digest, "metrics": sizes.metrics,
             "hint": rank, "node": "here", "pid": 1, **self._who}
        )  # fmt: skip
        self._incarnation, self._question = head["incarnation"], 0
        self._link.send({"kind": "slot", "is_shared": False})

    @property
    def _who(self) -> Head:
        return {"token": self.token, "wants_slot": False}

    def _call(self) -> Link:
        return Link(self._cluster.address, worker_secret(self._cluster.secret))

    def hear_of(self, head: Head, *body: bytes) -> Head:
        self._link.send(head, *body)
        return self.hear()

    def hear(self) -> Head:
        return self._link.receive(timeout_s=10)[0]

    def ask(self, kind: str, **fields: Any) -> None:
        """Sends a new request."""
        self._question += 1
        self._said = {"kind": kind, "question": self._question, **fields}
        self.ask_again()

    def ask_again(self) -> None:
        up = self._cluster.sizes.up_bytes
        body = bytes(up) if self._said["kind"] == "push" else b""
        self._link.send(self._said, body)

    def push(self, pieces: list[Any], sequence: int = 1) -> None:
        self.ask(
            "push", lineage=0, sequence=sequence, pieces=pieces, steps=1,
            samples=8.0, times=[0.0] * 4,
        )  # fmt: skip

    def go_back(self) -> None:
        """Rejoins at the server that leads now, and sends no request yet."""
        self._link.close()
        self._link = self._call()
        assert self._rejoin()["kind"] == "again"
        self._link.send({"kind": "slot", "is_shared": False})

    def go_to(self, address: tuple[str, int]) -> Head:
        """Sends a rejoin for the rank of another worker."""
        self._link.close()
        self._link = Link(address, worker_secret(self._cluster.secret))
        return self._rejoin()

    def _rejoin(self) -> Head:
        who = {"rank": self.rank, "incarnation": self._incarnation, **self._who}
        return self.hear_of({"kind": "rejoin", **who})

    def close(self) -> None:
        self._link.close()


@contextmanager
def taken_over(
    quorum: int = 0, dead: Sequence[int] = ()
) -> Iterator[tuple[Cluster, Voice, Voice, list[Any]]]:
    """The first of two workers has pushed; then their server is lost.

    Args:
        quorum: Quorum of a round.
        dead: Ranks of workers whose processes went with the server.
    """
    given = Setup.linear(
        PROBLEM, get("local_sgd"), workers=2, has_standby=True, quorum=quorum
    )
    with Cluster(given) as cluster:
        standby = cluster._standby
        assert standby is not None
        standby._straggler_timeout.lengths.append(LONG_S)
        voices = Voice(cluster, 0), Voice(cluster, 1)
        cluster._ask("proceed", epoch=0)
        for voice in voices:
            voice.ask("ready")
        pieces = [voice.hear()["pieces"][:1] for voice in voices]
        kill(cluster.server, 1, "after")
        voices[0].push(pieces[0])
        alive: Any = type("Alive", (), {"is_alive": lambda _: True, "join": None})
        cluster._hands = [(v.token, alive()) for v in voices if v.rank not in dead]
        before = cluster.server
        while cluster.server is before:
            cluster._hear(is_over=False)
        yield cluster, *voices, pieces[1]
        for voice in voices:
            voice.close()


def test_a_worker_that_rejoins_is_answered_once() -> None:
    """Also when its answer is found between its rejoining and its request."""
    with taken_over() as (_, first, second, pieces):
        first.go_back()
        second.go_back()
        second.push(pieces)
        assert second.hear()["kind"] == "reply"
        first.ask_again()
        assert first.hear()["kind"] == "reply"
        first.ask("compiling")
        assert first.hear()["kind"] == "noted"


def test_a_worker_that_waits_after_a_failover_is_not_hung() -> None:
    with taken_over() as (cluster, first, second, pieces):
        first.go_back()
        first.ask_again()
        second.go_back()
        sessions = cluster.server.replica.sessions
        assert sessions[first.rank].liveness.since is None
        assert sessions[second.rank].liveness.since is not None
        second.push(pieces)
        assert [v.hear()["kind"] for v in (first, second)] == ["reply", "reply"]
        assert sessions[first.rank].liveness.since is not None


def test_a_worker_that_calls_at_the_lost_server_first_is_not_hung() -> None:
    """Nobody answers there until the next standby has started, or for `TURN_S`."""
    with taken_over() as (cluster, first, second, _):
        liveness = cluster.server.replica.sessions[first.rank].liveness
        liveness.longest_s = 0.0  # how busy this machine is plays no part
        assert liveness.since is not None
        assert liveness.startup_s
        assert not liveness.is_over(liveness.since + TURN_S + FLOOR_S / 2)
        assert liveness.is_over(liveness.since + TURN_S + FLOOR_S + 1)
        for voice in (first, second):
            voice.go_back()
        first.ask_again()
        second.ask("compiling")
        assert second.hear()["kind"] == "noted"
        assert cluster.server.replica.sessions[second.rank].liveness.return_s == 0.0


def test_the_new_leader_gives_an_open_round_its_time() -> None:
    """The durations of rounds survive the server that measured them."""
    with taken_over(quorum=1) as (cluster, first, second, pieces):
        second.go_back()
        straggler_timeout = cluster.server._straggler_timeout
        assert straggler_timeout.round_progress.pushes == 1
        assert straggler_timeout.round_progress.is_quorate
        assert straggler_timeout.left_s(time.monotonic()) > LONG_S
        second.push(pieces)
        assert second.hear()["kind"] == "reply"
        first.go_back()
        first.ask_again()
        assert first.hear()["kind"] == "reply"


def test_a_strategys_failure_is_reported_by_either_server() -> None:
    """It was not reported when the server was lost; the worker waits until it is."""
    with taken_over() as (cluster, first, second, pieces):
        second.go_back()
        second.push(pieces)
        first.go_back()
        first.ask_again()
        assert first.hear()["kind"] == "reply"
        while cluster._standby_peer is None:
            cluster._hear(is_over=False)
        kill(cluster.server, 1, "before")
        first.ask("failed", error="E: e", traceback="T", step=1)
        before = cluster.server
        while cluster.server is before:
            cluster._hear(is_over=False)
        first.go_back()
        first.ask_again()
        assert first.hear()["kind"] == "noted"
        with pytest.raises(WorkerFailed, match="E: e"):
            cluster.run()


def test_a_server_goes_on_alone_before_it_notices_the_standbys_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last messages are read before its end, other peers in between."""
    monkeypatch.setattr(inline, "PATIENCE_S", 5.0)
    given = Setup.linear(PROBLEM, get("downpour"), workers=2, has_standby=True)
    with Cluster(given) as cluster:
        cluster.command("alone", generation=1)
        cluster.command("ping")
        while cluster._link.receive(timeout_s=10)[0]["kind"] != "pong":
            pass
        assert cluster._standby is not None
        cluster._standby.stop()
        outcome = cluster.run()
    assert [end.rows for end in outcome.epochs] == [PROBLEM.rows]


def quiet_mirror(clock: Callable[[], float] = SYSTEM.clock) -> Replication:
    """The server can send any message at once."""
    connections: Any = type("Connections", (), {"send": lambda *_: None})()
    return Replication(connections, clock)


def standby_of(generation: int) -> Any:
    channel: Any = type("Channel", (), {"keep_output": lambda _: None})()
    fields = {"channel": channel, "is_gone": False, "incarnation": generation}
    return type("Standby", (), fields)()


def test_permission_to_go_on_alone_holds_for_one_standby() -> None:
    """A message about an earlier one may come late, and must not name this one."""
    replication = quiet_mirror()
    replication.begin(standby_of(5), b"all")
    replication.lost()
    replication.go_alone(4)
    assert not replication.can_begin
    assert replication.is_given_up(4)
    assert not replication.is_given_up(5)
    replication.go_alone(5)
    assert replication.can_begin


def test_a_standby_lost_before_it_was_accepted_is_reported() -> None:
    """It may hang, and its server would wait for it."""
    said: list[Any] = []
    replication, peer = quiet_mirror(), standby_of(0)
    standby_peer = StandbyPeer(replication._connections, replication, said.append)
    standby_peer.called(peer, StandbyCalls(generation=3))
    standby_peer.gone(peer, "cut")
    assert [report.kind for report in said] == ["standby_called", "standby_left"]
    assert {report.generation for report in said} == {3}
    standby_peer.take(lambda: b"all", [])
    assert replication.peer is None


def test_an_earlier_standby_does_not_take_the_place_of_a_later_one() -> None:
    """It was given up, and its message comes late."""
    said: list[Any] = []
    replication, later, earlier = quiet_mirror(), standby_of(0), standby_of(0)
    standby_peer = StandbyPeer(replication._connections, replication, said.append)
    standby_peer.called(later, StandbyCalls(generation=3))
    with pytest.raises(BadFrame):
        standby_peer.called(earlier, StandbyCalls(generation=2))
    standby_peer.gone(earlier, "bad frame")
    standby_peer.take(lambda: b"all", [])
    assert replication.peer is later
    assert [report.generation for report in said] == [3]


def test_workers_at_the_standby_of_a_living_leader_are_redirected() -> None:
    given = Setup.linear(PROBLEM, get("downpour"), workers=1, has_standby=True)
    with Cluster(given) as cluster, closing(Voice(cluster, 0)) as voice:
        voice.ask("need")
        other = cluster._listeners[1].getsockname()
        assert voice.go_to(other)["kind"] == "elsewhere"


def test_a_worker_lost_with_the_leader_is_not_awaited() -> None:
    with taken_over(dead=[1]) as (cluster, first, second, _):
        first.go_back()
        first.ask_again()
        assert first.hear()["kind"] == "reply"
        left = [event for event in cluster._events if event["kind"] == "left"]
        assert {event["rank"] for event in left} <= {second.rank}
        assert second.rank not in cluster.server.replica.sessions


def fail(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("no center")


@pytest.mark.parametrize("has_standby", [False, True])
def test_a_strategys_failure_is_reported(
    has_standby: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalSGD, "merge", fail)
    given = Setup.linear(PROBLEM, LocalSGD(), workers=2, has_standby=has_standby)
    with (
        Cluster(given) as cluster,
        pytest.raises(ClusterError, match="ZeroDivisionError: no center"),
    ):
        cluster.run()


def test_a_strategys_failure_is_reported_by_the_standby_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LocalSGD, "merge", fail)
    given = Setup.linear(PROBLEM, LocalSGD(period=2), workers=1, has_standby=True)
    with Cluster(given) as cluster, closing(Voice(cluster, 0)) as voice:
        cluster._ask("proceed", epoch=0)
        voice.ask("ready")
        pieces = voice.hear()["pieces"][:1]
        kill(cluster.server, 1, "knows")
        cluster._start_standby = lambda: None  # type: ignore[method-assign]
        voice.push(pieces)
        before = cluster.server
        while cluster.server is before:
            cluster._hear(is_over=False)
        heads = [cluster._link.receive(timeout_s=10)[0]]
        while heads[-1]["kind"] != "broken":
            heads.append(cluster._link.receive(timeout_s=10)[0])
        assert "leads" in [head["kind"] for head in heads]
        assert "no center" in heads[-1]["reason"]


@pytest.mark.parametrize("has_standby", [False, True])
def test_the_last_reports_of_a_run_do_not_wait_for_a_standby(has_standby: bool) -> None:
    given = Setup.linear(PROBLEM, get("downpour"), workers=1, has_standby=has_standby)
    with Cluster(given) as cluster:
        voice = Voice(cluster, 0)
        voice.ask("ready")
        words = [pack_head({"kind": kind}, 0) for kind in ("finish", "stop")]
        cluster._link.socket.sendall(b"".join(words))
        assert voice.hear()["kind"] == "done"
        voice.close()


def test_a_large_state_may_take_long_to_reach_a_standby() -> None:
    clock = SettableClock(100.0)
    sent: list[Head] = []
    channel: Any = type("Channel", (), {"keep_output": lambda _: None})()
    connections: Any = type("C", (), {"send": lambda _, p, h, *b: sent.append(h)})()
    peer: Any = type("P", (), {"channel": channel, "is_gone": False})()
    replication = Replication(connections, clock)

    class Large(bytes):
        def __len__(self) -> int:
            return 10 << 30

    replication.begin(peer, Large())
    clock.now += 10
    assert not replication.overdue()
    clock.now += 60
    assert replication.overdue()
    replication.begin(peer, b"small")
    clock.now += 3
    assert replication.overdue()


def follow(cluster: Cluster, server: BaseServer) -> None:
    """The controller notices the loss of the server, and promotes the standby."""
    while cluster.server is server:
        cluster._hear(is_over=False)


@pytest.mark.parametrize("wants_slot", [True, False])
def test_an_answer_not_taken_yet_survives_its_server(
    wants_slot: bool,
) -> None:
    """A worker with another request rejoins as well: it lost the same server."""

    def answered(*, is_lost: bool) -> Vector:
        given = Setup.linear(
            PROBLEM, LocalSGD(period=2), has_standby=True, wants_slot=wants_slot
        )
        with Cluster(given) as cluster:
            cluster._ask("proceed", epoch=0)
            server_address, strategy = (
                cluster.worker_spec(0).server_address,
                given.strategy,
            )
            cluster._hands.append((server_address.token, threading.current_thread()))
            client = ServerClient(server_address, strategy, is_early=True)
            client.ready()
            local = np.linspace(1, 2, PROBLEM.size, dtype=np.float32)
            statistics = np.ones(1, np.float32)
            piece = client.progress.pieces.popleft()
            client.push_early(local, statistics, [piece], 2)
            client._let_arrive()
            if is_lost:
                kill(cluster.server, 1, "before")
                report_buffer = threading.Thread(target=client.tell, args=(Busy(),))
                report_buffer.start()
                follow(cluster, cluster.server)
                report_buffer.join(20)
                assert not report_buffer.is_alive()
            assert client.catch_up(local + 1, statistics)
            found = client.local.copy()
            client.leave()
            return found

    calm = answered(is_lost=False)
    assert calm.min() > 1
    np.testing.assert_array_equal(answered(is_lost=True), calm)


def test_a_server_lost_while_a_worker_rejoins_is_another_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = Setup.linear(PROBLEM, LocalSGD(period=2), has_standby=True)
    send, is_seated, is_lost = Link.send, threading.Event(), threading.Event()

    def sent(link: Link, head: Head, *body: memoryview | bytes) -> None:
        is_word_of_slot = head["kind"] == "slot" and "is_shared" in head
        is_worker = threading.current_thread().name == "comes back"
        if is_word_of_slot and is_worker and not is_seated.is_set():
            is_seated.set()
            assert is_lost.wait(20)
            raise ConnectionResetError("it is gone as well")
        send(link, head, *body)

    with Cluster(given) as cluster:
        cluster._ask("proceed", epoch=0)
        server_address = cluster.worker_spec(0).server_address
        cluster._hands.append((server_address.token, threading.current_thread()))
        client = ServerClient(server_address, given.strategy)
        client.ready()
        monkeypatch.setattr(Link, "send", sent)
        report_buffer = threading.Thread(
            target=client.tell, args=(Busy(),), name="comes back"
        )
        kill(first := cluster.server, 1, "before")
        report_buffer.start()
        follow(cluster, first)
        assert is_seated.wait(20)
        while cluster._standby_peer is None:  # until the second one has its standby
            cluster._hear(is_over=False)
        kill(second := cluster.server, 1, "before")
        cluster.command("learning_rate", value=0.5)
        follow(cluster, second)
        is_lost.set()
        report_buffer.join(30)
        assert not report_buffer.is_alive()
        client.leave()
