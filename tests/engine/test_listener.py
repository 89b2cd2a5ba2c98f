"""Connections of a server: which peer is handled when, whatever is buffered."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal.engine.transport.listener import Connections, Listener, Peer
from shoal.engine.transport.server_connection import TURN_FRAMES
from shoal.wire import tls
from shoal.wire.frames import AHEAD_BYTES, Head, Link, pack_head
from tests.engine.false_peers import Raw

SECRET = b"s" * 32
IDENTITY = tls.make_identity()
CONTEXT = tls.server_context(IDENTITY)


def is_nothing(_peer: Peer, _head: Head) -> None:
    """Does not answer frames."""


@final
class Receiver(Listener):
    """Accepts every caller as a worker while it is open, and keeps what it sends."""

    def __init__(self) -> None:
        self.heard: list[tuple[Peer, Head, bytes]] = []
        self.is_open = True
        self.answer: Callable[[Peer, Head], None] = is_nothing

    def on_frame(self, peer: Peer, head: dict[str, Any], body: memoryview) -> None:
        peer.role = "worker" if self.is_open else ""
        self.heard.append((peer, head, bytes(body)))
        self.answer(peer, head)

    def on_gone(self, peer: Peer, reason: str) -> None:
        del peer, reason


@contextmanager
def serving(*, has_tls: bool = False) -> Iterator[tuple[Connections, Receiver]]:
    listener = socket.create_server(("127.0.0.1", 0))
    connections = Connections(listener, SECRET, 1 << 26, CONTEXT if has_tls else None)
    receiver = Receiver()
    connections.deliver_to(receiver)
    try:
        yield connections, receiver
    finally:
        connections.close()


def calling(connections: Connections) -> tuple[Link, Peer]:
    """An accepted worker, and its name at the server."""
    receiver, found = connections._listener, list[Link]()
    assert isinstance(receiver, Receiver)
    address = connections._socket.getsockname()
    certificate = None if connections._context is None else IDENTITY.certificate

    def call() -> None:
        link = Link(address, SECRET, certificate=certificate)
        link.send({"kind": "join"})
        found.append(link)

    before, caller = len(receiver.heard), threading.Thread(target=call)
    caller.start()
    until(connections, lambda: len(receiver.heard) > before)
    caller.join(20)
    return found[0], receiver.heard.pop()[0]


def until(connections: Connections, is_so: Callable[[], object]) -> None:
    late = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < late
        connections.serve(0.01)


def is_consistent(connections: Connections) -> bool:
    """Whether the recorded state of the selectors is the actual one."""
    return all(
        connections._selector_of(peer).get_key(peer.channel.socket).events
        == peer.events
        for peer in connections._peers.values()
    )


_NEAR = st.integers(AHEAD_BYTES - 40, AHEAD_BYTES + 40)
_FRAMES = st.lists(st.integers(0, 120) | _NEAR, max_size=90)


@settings(max_examples=25)
@given(
    said=st.lists(_FRAMES, min_size=1, max_size=3),
    inbox=st.none() | st.just(200),
    has_tls=st.booleans(),
)
def test_all_frames_of_all_peers_are_handled_in_order(
    said: list[list[int]], inbox: int | None, has_tls: bool
) -> None:
    with serving(has_tls=has_tls) as (connections, receiver):
        called = [calling(connections) for _ in said]
        senders = list[threading.Thread]()
        for (link, peer), sizes in zip(called, said, strict=True):
            if inbox is not None:
                peer.channel.inbox = memoryview(bytearray(inbox))
            frames = (
                pack_head({"kind": "say", "number": number}, size) + bytes(size)
                for number, size in enumerate(sizes)
            )
            # More than sockets take, perhaps, before anybody reads.
            send = threading.Thread(
                target=link.socket.sendall, args=(b"".join(frames),)
            )
            senders.append(send)
            send.start()
        until(connections, lambda: len(receiver.heard) == sum(map(len, said)))
        for send in senders:
            send.join(20)
        for (link, peer), sizes in zip(called, said, strict=True):
            mine = [(h["number"], len(b)) for p, h, b in receiver.heard if p is peer]
            assert mine == list(enumerate(sizes))
            link.close()
        assert is_consistent(connections)


@pytest.mark.parametrize("has_tls", [True, False])
def test_a_peer_that_never_stops_sending_has_one_turn_as_all_others(
    has_tls: bool,
) -> None:
    frames = pack_head({"kind": "more"}, 0) * 4000
    with serving(has_tls=has_tls) as (connections, receiver):
        loud, _ = calling(connections)
        quiet, peer = calling(connections)
        pump = threading.Thread(target=loud.socket.sendall, args=(frames,))
        pump.start()
        until(connections, lambda: receiver.heard)
        quiet.send({"kind": "word"})
        turns = 0
        while all(who is not peer for who, _, _ in receiver.heard):
            before = len(receiver.heard)
            connections.serve(20)
            assert len(receiver.heard) - before <= TURN_FRAMES + 1
            assert len(connections._eager) <= 2
            turns += 1
            assert turns < 10
        until(connections, lambda: len(receiver.heard) == 4001)
        pump.join(20)
        for link in (loud, quiet):
            link.close()


def test_a_peer_that_reads_again_is_read_again() -> None:
    """Its requests are buffered here already: nothing more comes from its socket."""
    questions, answer = 100, bytes(40_000)
    with serving() as (connections, receiver):
        link, peer = calling(connections)
        for end, buffer in (
            (peer.channel.socket, socket.SO_SNDBUF),
            (link.socket, socket.SO_RCVBUF),
        ):
            end.setsockopt(socket.SOL_SOCKET, buffer, 1 << 16)
        receiver.answer = lambda peer, _: connections.send(
            peer, Raw(head={"kind": "re"}), answer
        )
        link.socket.sendall(pack_head({"kind": "ask"}, 0) * questions)
        until(connections, lambda: peer.channel.is_congested)
        assert peer.channel.has_input
        assert peer not in connections._eager
        heard = len(receiver.heard)
        link.socket.setblocking(False)
        taken = 0
        while peer.channel.is_congested:  # it reads, while the server is elsewhere
            try:
                taken += len(link.socket.recv(1 << 20))
            except BlockingIOError:
                connections.send(peer, Raw(head={"kind": "news"}))
        assert taken
        assert len(receiver.heard) == heard
        connections.serve(20)
        assert len(receiver.heard) > heard
        link.close()


def test_unverified_callers_are_served_again_beside_busy_peers() -> None:
    with serving() as (connections, _):
        link, peer = calling(connections)
        unverified = connections._unverified
        unverified._left_s = -1e-6
        unverified._close()
        until_open = time.monotonic() + 20
        while not unverified._is_open:
            assert time.monotonic() < until_open
            connections._eager[peer] = None  # at every turn
            connections.serve(20)
        link.close()


def test_the_answer_to_a_caller_is_sent_completely() -> None:
    body = bytes(32 << 20)
    with serving() as (connections, receiver):
        receiver.is_open = False
        link, peer = calling(connections)
        receiver.is_open = True
        receiver.answer = lambda peer, _: connections.send(
            peer, Raw(head={"kind": "ok"}), body
        )
        connections.deliver_again(peer, {"kind": "attend"})
        assert peer.channel.has_output
        assert peer.events & selectors.EVENT_WRITE
        taken = list[int]()
        reader = threading.Thread(
            target=lambda: taken.append(len(link.receive(timeout_s=20, stall_s=20)[1]))
        )
        reader.start()
        until(connections, lambda: not peer.channel.has_output)
        reader.join(20)
        assert taken == [len(body)]
        link.close()
