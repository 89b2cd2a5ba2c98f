"""Callers without the secret: few at a time, for a short time, at little cost."""

from __future__ import annotations

import errno
import select
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from shoal.engine.transport import listener
from shoal.engine.transport.callers import (
    EVERY_S,
    SAVED_S,
    SHARE,
    SLICE_S,
    RejectedCallers,
    UnverifiedCallers,
)
from shoal.engine.transport.fields import MOST_NAME
from shoal.engine.transport.messages.worker_reports import Failed
from shoal.engine.transport.messages.worker_to_server import Join
from shoal.engine.transport.server_connection import LATER, MOST_WAITING, TURN_FRAMES
from shoal.wire.frames import Link, pack_head
from shoal.wire.handshake import ANSWER_BYTES, Caller, worker_secret
from shoal.wire.tls import wrap_caller
from tests.engine.cases import runs_well, setup, shut_out
from tests.support.environments import SettableClock
from tests.support.inline import Cluster


def joining(cluster: Cluster) -> dict[str, Any]:
    """The first message of a worker."""
    sizes = cluster.sizes
    return {
        "kind": "join", "digest": sizes.digest, "metrics": sizes.metrics, "hint": 9,
        "token": "", "node": "", "pid": 1, "wants_slot": False,
    }  # fmt: skip


def greeted(cluster: Cluster, buffer: int = 1 << 16) -> socket.socket:
    """A connection that has proved the secret and sends nothing else."""
    connection = socket.socket()
    connection.settimeout(20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(cluster.address)
    if cluster.certificate is not None:
        connection = wrap_caller(connection, cluster.certificate)
        connection.do_handshake()
    talk = Caller(worker_secret(cluster.secret))
    connection.sendall(talk.hello)
    answer = b""
    while len(answer) < ANSWER_BYTES:
        answer += connection.recv(ANSWER_BYTES - len(answer))
    connection.sendall(talk.prove(answer))
    return connection


@pytest.mark.parametrize("has_tls", [True, False])
def test_too_many_silent_callers_make_room_for_peers_of_the_run(
    has_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CALLERS", 4)
    with Cluster(setup(has_tls=has_tls)) as cluster, ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(cluster.address))
            for _ in range(40)
        ]
        events = runs_well(cluster)
        assert all(shut_out(connection) == b"" for connection in slow[:30])
        assert len(cluster.server._connections._callers) <= 4
    assert "too many callers without proof" in {e.get("reason") for e in events}


def test_a_caller_with_the_secret_is_dropped_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "MAX_CALLERS", 3)
    with Cluster(setup()) as cluster, ExitStack() as stack:
        known = stack.enter_context(greeted(cluster))
        others = [
            stack.enter_context(socket.create_connection(cluster.address))
            for _ in range(10)
        ]
        for connection in others[:8]:
            shut_out(connection)
        join = joining(cluster)
        known.sendall(pack_head(join, 0))
        assert known.recv(1)
        known.close()
        events = runs_well(cluster)
    assert events[0]["kind"] == "stranger"


def test_a_caller_that_is_silent_after_its_proof_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Cluster(setup()) as cluster:
        connection = greeted(cluster)
        monkeypatch.setattr(listener, "GREETING_TIMEOUT_S", 0.0)
        assert shut_out(connection) == b""
        connection.close()
        monkeypatch.undo()
        runs_well(cluster)


def test_a_worker_is_no_controller() -> None:
    """With the key of workers nobody can end a run, or read the center by a command."""
    with Cluster(setup()) as cluster:
        link = Link(cluster.address, worker_secret(cluster.secret))
        link.send({"kind": "control"})
        link.send({"kind": "stop"})
        with pytest.raises(ConnectionResetError):
            link.receive(timeout_s=20)
        link.close()
        runs_well(cluster)


@pytest.mark.parametrize(
    "change",
    [{"token": []}, {"token": "x" * 257}, {"node": {"a": 1}}, {"pid": "one"},
     {"pid": -1}, {"hint": "first"}, {"hint": None}, {"metrics": []}],
    ids=str,
)  # fmt: skip
def test_malformed_reports_never_reach_the_controller(
    change: dict[str, Any],
) -> None:
    with Cluster(setup()) as cluster:
        join = {**joining(cluster), **change}
        link = Link(cluster.address, worker_secret(cluster.secret))
        link.send(join)
        if "metrics" in change:
            assert link.receive(timeout_s=20)[0]["kind"] == "refused"
        else:
            with pytest.raises(ConnectionResetError):
                link.receive(timeout_s=20)
        link.close()
        events = runs_well(cluster)
    assert [e for e in events if e["kind"] == "joined" and e["rank"] == 9] == []


def test_a_worker_without_a_rank_is_refused_and_not_counted() -> None:
    """It has proved the secret, and returns after another process took its rank."""
    with Cluster(setup()) as cluster:
        link = Link(cluster.address, worker_secret(cluster.secret))
        link.send(
            {"kind": "rejoin", "rank": 7, "incarnation": 1, "token": "gone",
             "wants_slot": False}
        )  # fmt: skip
        answer = link.receive(timeout_s=20)[0]
        assert answer["kind"] == "refused"
        assert "no place in the run" in answer["reason"]
        link.close()
        events = runs_well(cluster)
    assert not [e for e in events if e["kind"] == "stranger"]


@pytest.mark.parametrize("has_tls", [True, False])
def test_a_worker_that_does_not_read_its_answers_is_not_read_either(
    has_tls: bool,
) -> None:
    """Answers to it would fill the server's memory."""
    push = {"kind": "push", "lineage": 0, "sequence": 1, "pieces": [], "steps": 1,
            "samples": 1.0, "times": [0, 0, 0, 0]}  # fmt: skip
    with Cluster(setup(has_tls=has_tls)) as cluster, ExitStack() as stack:
        callers = cluster.server._connections._socket
        callers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection = stack.enter_context(greeted(cluster, buffer=4096))
        join = joining(cluster)
        slot = {"kind": "slot", "is_shared": False}
        size = cluster.sizes.up_bytes
        ask = (pack_head(push, size) + bytes(size)) * 100
        connection.sendall(pack_head(join, 0) + pack_head(slot, 0))
        assert connection.recv(1)
        peer = cluster.server._workers[9]
        connection.setblocking(False)
        left, refused = b"", 0
        while refused < 20:  # times that nobody took more of its questions
            left = left or ask
            try:
                left = left[connection.send(left) :]
            except LATER:
                refused += peer.channel.is_congested
                select.select([], [connection], [], 0.001)
        assert len(peer.channel._out) <= MOST_WAITING + TURN_FRAMES
        connection.close()
        runs_well(cluster)


def test_without_descriptors_an_unverified_caller_is_dropped() -> None:
    """The listening socket stays readable: the server must not spin or end."""
    with Cluster(setup()) as cluster:
        while (
            cluster.server._report_channel.controller is None
        ):  # it has proved the secret
            time.sleep(0)
        with socket.create_connection(cluster.address) as waiting:
            connections = cluster.server._connections
            real = connections._socket

            class Full:
                def accept(self) -> Any:
                    connections._socket = real
                    raise OSError(errno.EMFILE, "no descriptor left")

                def __getattr__(self, name: str) -> Any:
                    return getattr(real, name)

            while not connections._callers:
                time.sleep(0)
            connections._socket = Full()  # type: ignore[assignment]
            with socket.create_connection(cluster.address):
                assert shut_out(waiting) == b""
        runs_well(cluster)


@contextmanager
def knocked(
    clock: SettableClock,
) -> Iterator[tuple[selectors.BaseSelector, UnverifiedCallers]]:
    """The server's selector, and that of callers, one of which has sent something."""
    main = selectors.DefaultSelector()
    callers = UnverifiedCallers(main, clock)
    mine, theirs = socket.socketpair()
    with main, mine, theirs:
        callers.selector.register(mine, selectors.EVENT_READ, None)
        theirs.sendall(b"x")
        yield main, callers
        callers.close()


class TestUnverifiedCallers:
    """The clock is moved by the test; no thread waits."""

    @pytest.fixture
    def clock(self) -> SettableClock:
        return SettableClock()

    def test_unverified_callers_get_their_share_of_time_and_no_more(
        self, clock: SettableClock
    ) -> None:
        with knocked(clock) as (_, callers):
            spent = 0.0
            for _ in range(10_000):
                clock.now += 0.001
                callers.wait_s(1.0)
                for _ in callers.take_turn():
                    clock.now += 0.0005
                    spent += 0.0005
            assert SHARE * 10 * 0.9 < spent < SHARE * 10 + 2 * SAVED_S

    def test_a_closed_selector_of_callers_does_not_wake_the_server(
        self, clock: SettableClock
    ) -> None:
        with knocked(clock) as (main, callers):
            assert main.select(0)
            for _ in callers.take_turn():
                clock.now += SAVED_S + 0.1
            assert not main.select(0)
            assert list(callers.take_turn()) == []
            earned_s = SHARE * (SAVED_S + 0.1)
            assert callers.wait_s(9.0) == pytest.approx((0.1 - earned_s) / SHARE)
            clock.now += 0.1 / SHARE
            assert callers.wait_s(1.0) == 1.0
            assert main.select(0)

    def test_one_turn_of_callers_is_short_and_each_is_first_in_turn(
        self, clock: SettableClock
    ) -> None:
        main = selectors.DefaultSelector()
        callers = UnverifiedCallers(main, clock)
        with main, ExitStack() as stack:
            for name in range(10):
                mine, theirs = socket.socketpair()
                stack.enter_context(mine)
                stack.enter_context(theirs)
                callers.selector.register(mine, selectors.EVENT_READ, name)
                theirs.sendall(b"x")
            heard: list[int] = []
            for _ in range(10):
                clock.now += 1.0
                callers.wait_s(1.0)
                for key, _ in callers.take_turn():
                    clock.now += 2 * SLICE_S
                    heard.append(key.data)
            assert len(heard) == 10
            assert set(heard) == set(range(10))
            callers.close()


def test_a_flood_of_callers_is_reported_at_intervals() -> None:
    rejected, told = RejectedCallers(), []
    for second in range(100):
        for _ in range(7):
            rejected.note("somebody", "no proof")
            found = rejected.take(1000.0 + second)
            if found is not None:
                told.append(found.count)
    assert len(told) == 100 / EVERY_S
    assert told[0] == 1
    assert sum(told) == 7 * 90 + 1


def test_reports_of_workers_about_themselves() -> None:
    join = Join(digest="d", metrics=2, hint=0, node="n", pid=7, token="t")
    head = join.pack()
    assert Join.parse({**head, "more": "no"}) == join
    hints = [Join.parse({**head, "hint": h}).hint for h in (0, -7, 1 << 16, 1 << 90)]
    assert hints == [0, -1, -1, -1]
    failed = {"kind": "failed", "step": 3, "error": "E", "traceback": "T", "rank": 9}
    said = Failed(step=3, is_data=False, error="E", traceback="T")
    assert Failed.parse(failed) == said
    for wrong in ({"error": 1}, {"step": "x"}, {"traceback": None}, {"step": -1}):
        with pytest.raises((TypeError, ValueError)):
            Failed.parse({**failed, **wrong})
    with pytest.raises(ValueError, match="no text"):
        Join.parse({**head, "node": "n" * (MOST_NAME + 1)})
