"""How long a server may be silent, and what is read from it meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.coordination.timeouts import PAUSE_S, TIMES
from shoal.engine.environment import SYSTEM
from shoal.engine.transport.heartbeat import (
    FLOOR_S,
    PING_S,
    Heartbeat,
    ServerSilent,
    hear,
    start_limit_s,
)
from shoal.engine.transport.server_connection import ServerConnection
from shoal.errors import ExchangeTimeout
from shoal.wire.frames import HEADER, MAGIC, Link, pack_head

SECRET = b"s" * 32


def asked_until(heartbeat: Heartbeat, now: float, until: float) -> bool:
    """Looks ten times a second; returns whether the server counts as silent then."""
    while now < until:
        if heartbeat.look(now):
            heartbeat.ask(now)
        if heartbeat.is_over(now):
            return True
        now += 0.1
    return False


def test_a_server_that_never_answers_is_silent_after_its_limit() -> None:
    heartbeat = Heartbeat(startup_s=1.0, looked=100.0, answered=100.0)
    assert not asked_until(heartbeat, 100.0, 100.0 + heartbeat.limit_s)
    assert asked_until(
        heartbeat, 100.0 + heartbeat.limit_s, 100.0 + heartbeat.limit_s + 2 * PING_S
    )


@given(st.lists(st.floats(0.0, 3.0), max_size=20), st.floats(0.0, 10.0))
def test_the_limit_follows_the_longest_answer_so_far(took: list[float], start: float):
    heartbeat, now = Heartbeat(startup_s=start), 50.0
    for seconds in took:
        heartbeat.look(now)
        heartbeat.ask(now)
        now += seconds
        assert not heartbeat.is_over(now)
        heartbeat.answer(now)
    longest = max(took, default=0.0) - 1e-9  # beside 50 s no clock shows less
    assert heartbeat.limit_s >= FLOOR_S + start + 0.99 * TIMES * longest


def test_time_in_which_nobody_listened_does_not_count() -> None:
    """A callback took an hour, or the machine was asleep."""
    heartbeat = Heartbeat(looked=10.0)
    assert heartbeat.look(10.1)
    heartbeat.ask(10.1)
    assert not heartbeat.look(3600.0)
    assert not heartbeat.is_over(3600.0)
    assert not heartbeat.look(3600.0 + PAUSE_S / 2)
    assert heartbeat.is_over(3600.0 + heartbeat.limit_s + PAUSE_S)


def test_one_request_at_a_time() -> None:
    heartbeat = Heartbeat(looked=10.0)
    assert heartbeat.look(10.1)
    heartbeat.ask(10.1)
    assert not heartbeat.look(10.9)
    heartbeat.answer(11.0)
    assert not heartbeat.look(11.0 + 0.9 * PING_S)
    assert heartbeat.look(11.0 + PING_S)


def test_large_models_and_many_workers_are_given_time() -> None:
    small = Heartbeat.of(0.0, 1.0, slot_bytes=1 << 20, workers=3)
    large = Heartbeat.of(0.0, 1.0, slot_bytes=8 << 30, workers=3)
    assert small.limit_s < FLOOR_S + 1.1
    assert large.limit_s > FLOOR_S + 60


def test_nobody_is_late_before_a_start_was_measured() -> None:
    assert start_limit_s(0.0) == float("inf")
    assert FLOOR_S < start_limit_s(0.1) < start_limit_s(10.0) < float("inf")


# ------------------------------------------------------------- on a real socket


class Peer:
    """The other end of a link, driven by the test."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            made: list[Link] = []
            address = listener.getsockname()
            caller = threading.Thread(target=lambda: made.append(Link(address, SECRET)))
            caller.start()
            self.channel = ServerConnection(
                listener.accept()[0], SECRET, max_body_bytes=1 << 20
            )
            self.channel.flush()
            while not self.channel.is_proven:
                self.channel.read()
                self.channel.flush()
            caller.join()
        self.link = made[0]

    def heard(self) -> str:
        frames = self.channel.read()
        while not frames:
            frames = self.channel.read()
        return frames[0][0]["kind"]

    def close(self) -> None:
        self.link.close()
        self.channel.close()


@pytest.fixture
def peer():
    made = Peer()
    yield made
    made.close()


def expired() -> Heartbeat:
    """A server whose answer is long due."""
    now = time.monotonic()
    return Heartbeat(asked=now - 3600, looked=now)


def test_pings_and_their_answers_are_not_passed_on(peer: Peer) -> None:
    heartbeat = Heartbeat.of(SYSTEM.clock(), 0.1, 8, 1)
    assert hear(peer.link, heartbeat, 7, 0.0, SYSTEM.clock) is None
    assert peer.heard() == "ping"
    assert heartbeat.asked is not None
    peer.channel.send({"kind": "pong"})
    assert hear(peer.link, heartbeat, 7, 20.0, SYSTEM.clock) is None
    assert heartbeat.asked is None
    peer.channel.send({"kind": "records", "records": []})
    found = hear(peer.link, heartbeat, 7, 20.0, SYSTEM.clock)
    assert found is not None
    assert found[0].kind == "records"


def test_a_silent_server_is_found(peer: Peer) -> None:
    with pytest.raises(
        ServerSilent, match=r"hung: it answered nothing for more than 5.0 s"
    ):
        hear(peer.link, expired(), 7, 0.0, SYSTEM.clock)


def test_waiting_messages_are_read_before_silence_counts(peer: Peer) -> None:
    heartbeat = expired()
    peer.channel.send({"kind": "pong"})
    assert hear(peer.link, heartbeat, 7, 20.0, SYSTEM.clock) is None
    assert heartbeat.asked is None


HALVES: dict[str, Callable[[], bytes]] = {
    "half a header": lambda: HEADER.pack(MAGIC, 20, 100)[:7],
    "a header": lambda: HEADER.pack(MAGIC, 20, 100),
    "a body": lambda: pack_head({"kind": "restart"}, 100) + bytes(50),
}


@pytest.mark.parametrize("what", HALVES)
def test_a_frame_that_stops_half_way_counts_as_silence(what: str, peer: Peer) -> None:
    heartbeat = Heartbeat.of(SYSTEM.clock(), 0.1, 8, 1)
    heartbeat.work_s = (
        0.01 - FLOOR_S - heartbeat.startup_s
    )  # so that the test need not wait
    peer.channel.socket.sendall(HALVES[what]())
    with pytest.raises(ServerSilent):
        hear(peer.link, heartbeat, 7, 20.0, SYSTEM.clock)


def test_the_limit_for_one_frame_does_not_hold_for_the_next(peer: Peer) -> None:
    peer.channel.send({"kind": "center"}, b"1234")
    head, body = peer.link.receive(stall_s=20.0)
    assert (head["kind"], bytes(body)) == ("center", b"1234")
    assert peer.link.socket.gettimeout() is None
    with pytest.raises(ExchangeTimeout):
        peer.link.receive(timeout_s=0.01)
