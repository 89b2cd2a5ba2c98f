"""Frames and greetings: nothing is parsed before both ends have proved the secret."""

from __future__ import annotations

import errno
import json
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import hypothesis.strategies as st
import psutil
import pytest
from hypothesis import given, settings

from shoal.engine.transport import server_connection
from shoal.engine.transport.server_connection import (
    CALLER_HEAD_BYTES,
    ServerConnection,
)
from shoal.errors import ExchangeTimeout
from shoal.wire.frames import (
    AHEAD_BYTES,
    HEADER,
    MAGIC,
    MAX_HEAD_BYTES,
    BadFrame,
    Link,
    pack_head,
    unpack_head,
    unpack_header,
)
from shoal.wire.handshake import ANSWER_BYTES, HELLO_BYTES, Caller, worker_secret

SECRET = secrets.token_bytes(32)
LIMIT = 1 << 16


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A port where one connection is served in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def pair(limit: int = LIMIT) -> Iterator[tuple[socket.socket, ServerConnection]]:
    """A caller's raw socket, and the channel it has called."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname(), timeout=20)
        accepted, _ = listener.accept()
    channel = ServerConnection(accepted, SECRET, max_body_bytes=limit)
    with caller:
        yield caller, channel
    channel.close()


def greet(
    caller: socket.socket, channel: ServerConnection, secret: bytes = SECRET
) -> None:
    """Proves a secret as a peer does that has said what it is."""
    talk = Caller(secret)
    caller.sendall(talk.hello)
    wait_readable(channel.socket)
    assert channel.read() == []
    caller.sendall(talk.prove(exactly(caller, ANSWER_BYTES)))
    read_greeting(channel)
    channel.admit()


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part
        data += part
    return data


def frames(channel: ServerConnection) -> list[tuple[dict, bytes]]:
    """Reads until something is complete."""
    found: list = []
    while not found:
        if not channel.has_input:
            wait_readable(channel.socket)
        found = channel.read()
    return told(found)


def told(found: list[tuple[dict, memoryview]]) -> list[tuple[dict, bytes]]:
    """Copies of frames."""
    return [(head, bytes(body)) for head, body in found]


class Stream(NamedTuple):
    """Frames, and their bytes in parts that end anywhere."""

    frames: list[tuple[dict, bytes]]
    parts: list[bytes]


def stream_of(lengths: list[tuple[int, int]], cuts: list[int]) -> Stream:
    said = [
        ({"kind": "k" * name}, bytes([place % 256]) * size)
        for place, (name, size) in enumerate(lengths)
    ]
    data = b"".join(pack_head(head, len(body)) + body for head, body in said)
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return Stream(said, [data[a:b] for a, b in pairwise(places)])


_NEAR = st.integers(AHEAD_BYTES - 40, AHEAD_BYTES + 40)
_LENGTHS = st.tuples(st.integers(1, 60) | _NEAR, st.integers(0, 120) | _NEAR)
STREAMS = st.builds(
    stream_of,
    st.lists(_LENGTHS, min_size=1, max_size=8),
    st.lists(st.integers(0, 1 << 20), max_size=12),
)


def wait_readable(connection: socket.socket) -> None:
    assert select.select([connection], [], [], 20)[0]


def read_greeting(channel: ServerConnection) -> None:
    while not channel.is_proven:
        wait_readable(channel.socket)
        channel.read()


def flushed(caller: socket.socket, channel: ServerConnection, size: int) -> bytes:
    """The body of one frame, of so many bytes, that waits to be sent."""
    received = bytearray()
    while channel.has_output:
        channel.flush()
        received += caller.recv(1 << 20)
    while select.select([caller], [], [], 0)[0]:
        received += caller.recv(1 << 20)
    return bytes(received[-size:])


class TestGreeting:
    def test_both_prove_the_secret(self) -> None:
        with pair() as (caller, channel):
            greet(caller, channel)
            assert channel.is_proven
            assert channel.is_commander

    def test_a_wrong_secret_gets_nothing_and_is_not_parsed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def parse(*_: object) -> None:
            raise AssertionError("parsed")

        with pair() as (caller, channel):
            monkeypatch.setattr(server_connection, "unpack_header", parse)
            monkeypatch.setattr(server_connection, "unpack_head", parse)
            caller.sendall(Caller(b"x" * 32).hello + pack_head({"kind": "join"}, 0))
            with pytest.raises(BadFrame, match="does not know this run's secret"):
                frames(channel)
            assert not channel.is_proven
            channel.close()
            # What we sent unread resets the connection.
            with suppress(ConnectionResetError):
                assert caller.recv(1) == b""

    def test_a_replayed_handshake_is_refused(self) -> None:
        talk = Caller(SECRET)
        with pair() as (caller, channel):
            caller.sendall(talk.hello)
            wait_readable(channel.socket)
            channel.read()
            recorded = talk.prove(exactly(caller, ANSWER_BYTES))
            caller.sendall(recorded)
            read_greeting(channel)
        with pair() as (caller, channel):
            caller.sendall(talk.hello + recorded + pack_head({"kind": "join"}, 0))
            with pytest.raises(BadFrame, match="does not know this run's secret"):
                frames(channel)
            assert not channel.is_proven

    @settings(max_examples=200)
    @given(st.binary(max_size=3 * HELLO_BYTES))
    def test_wrong_first_bytes_get_no_answer(self, data: bytes) -> None:
        """And it is over as soon as there is enough to see that it is no greeting."""
        with pair() as (caller, channel):
            caller.sendall(data)
            caller.shutdown(socket.SHUT_WR)
            with pytest.raises((BadFrame, ConnectionResetError)):
                frames(channel)
            assert not channel.has_output
            channel.close()
            with suppress(ConnectionResetError):
                assert caller.recv(1) == b""

    def test_a_server_without_the_secret_is_refused(self) -> None:
        def serve(connection: socket.socket) -> None:
            exactly(connection, HELLO_BYTES)
            connection.sendall(bytes(ANSWER_BYTES))

        with (
            listening(serve) as address,
            pytest.raises(BadFrame, match="server does not know"),
        ):
            Link(address, SECRET)

    def test_a_server_that_closes_during_the_handshake(self) -> None:
        with (
            listening(lambda connection: connection.sendall(b"short")) as address,
            pytest.raises(ConnectionResetError, match="connection in the handshake"),
        ):
            Link(address, SECRET)

    def test_no_listener(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
        with pytest.raises(ExchangeTimeout, match=r"no server at 127\.0\.0\.1"):
            Link(address, SECRET)


class TestFrames:
    @pytest.mark.parametrize("body", [b"", b"x", b"y" * 5000])
    def test_arrive_whole_in_pieces_of_any_size(self, body: bytes) -> None:
        text = pack_head({"kind": "push"}, len(body)) + body
        with pair() as (caller, channel):
            greet(caller, channel)
            for at in range(0, len(text), 7):
                caller.sendall(text[at : at + 7])
            assert frames(channel) == [({"kind": "push"}, body)]

    def test_bodies_that_fit_go_where_they_belong(self) -> None:
        inbox = bytearray(4)
        with pair() as (caller, channel):
            greet(caller, channel)
            channel.inbox = memoryview(inbox)
            caller.sendall(pack_head({"kind": "a"}, 4) + b"1234")
            caller.sendall(pack_head({"kind": "b"}, 4) + b"5678")
            assert frames(channel) == [({"kind": "a"}, b"1234")]
            assert bytes(inbox) == b"1234"
            assert frames(channel) == [({"kind": "b"}, b"5678")]
            caller.sendall(pack_head({"kind": "c"}, 5) + b"12345")
            assert frames(channel) == [({"kind": "c"}, b"12345")]
            assert bytes(inbox) == b"5678"

    @settings(max_examples=60)
    @given(STREAMS)
    def test_frames_in_one_read_are_separated(self, stream: Stream) -> None:
        """What is read with a header may be a part of the frame, or the next ones."""
        with pair() as (caller, channel):
            greet(caller, channel)
            channel.inbox = memoryview(bytearray(100))
            found: list[tuple[dict, bytes]] = []
            for part in stream.parts:
                caller.sendall(part)
                wait_readable(channel.socket)
                found += told(channel.read())
                while channel.has_input:
                    found += told(channel.read())
            while len(found) < len(stream.frames):
                found += frames(channel)
            assert found == stream.frames

    def test_bytes_on_their_way_are_seen_before_they_are_a_frame(self) -> None:
        text = pack_head({"kind": "push"}, 5000) + bytes(5000)
        with pair() as (caller, channel):
            greet(caller, channel)
            assert channel.has_moved()
            assert not channel.has_moved()
            found: list[tuple[dict[str, object], memoryview]] = []
            for at in range(0, len(text), 1000):
                assert found == []
                caller.sendall(text[at : at + 1000])
                wait_readable(channel.socket)
                found = channel.read()
                assert channel.has_moved()
                assert not channel.has_moved()
            assert len(found) == 1

    def test_bytes_that_the_other_end_takes_are_seen(self) -> None:
        body = bytes(8 << 20)
        with pair() as (caller, channel):
            greet(caller, channel)
            channel.send({"kind": "reply"}, body)
            while channel.has_moved():  # until all that lies between is full
                channel.flush()
            assert channel.has_output
            taken = 0
            while taken < len(body):
                taken += len(caller.recv(1 << 20))
                channel.flush()
            assert channel.has_moved()

    @pytest.mark.parametrize(
        ("frame", "reason"),
        [
            (b"HTTP" + bytes(12), "frame starts with"),
            (HEADER.pack(MAGIC, MAX_HEAD_BYTES + 1, 0), "too large"),
            (HEADER.pack(MAGIC, 2, LIMIT + 1), "too large"),
            (HEADER.pack(MAGIC, 2, 1 << 63), "too large"),
            (HEADER.pack(MAGIC, 4, 0) + b"\xff\xfe\x00{", "not JSON"),
            (HEADER.pack(MAGIC, 0, 0), "not JSON"),
            (HEADER.pack(MAGIC, 2, 0) + b"[]", "not an object"),
            (HEADER.pack(MAGIC, 10, 0) + b'{"kind":1}', "not an object"),
            (HEADER.pack(MAGIC, 1 << 16, 0) + b"[" * (1 << 16), "not JSON"),
        ],
    )
    def test_the_error_names_what_is_wrong_with_a_frame(
        self, frame: bytes, reason: str
    ) -> None:
        with pair() as (caller, channel):
            greet(caller, channel)
            caller.sendall(frame)
            with pytest.raises(BadFrame, match=reason):
                frames(channel)

    @pytest.mark.parametrize(
        ("sizes", "is_taken"),
        [((CALLER_HEAD_BYTES, 0), True), ((CALLER_HEAD_BYTES + 1, 0), False),
         ((20, 1), False)],
    )  # fmt: skip
    def test_a_peer_without_a_first_message_has_small_limits(
        self, sizes: tuple[int, int], is_taken: bool
    ) -> None:
        with pair() as (caller, channel):
            # The controller, which knows the secret itself, may send more.
            greet(caller, channel, worker_secret(SECRET))
            channel._is_admitted = False
            caller.sendall(HEADER.pack(MAGIC, *sizes))
            wait_readable(channel.socket)
            if is_taken:
                assert channel.read() == []
            else:
                with pytest.raises(BadFrame, match="too large"):
                    channel.read()

    def test_memory_is_allocated_only_as_bytes_arrive(self) -> None:
        process, huge = psutil.Process(), 1 << 30
        with pair(limit=huge) as (caller, channel):
            greet(caller, channel)
            before = process.memory_info().rss
            caller.sendall(pack_head({"kind": "push"}, huge) + b"x")
            wait_readable(channel.socket)
            assert channel.read() == []
            assert channel._stage == "body"
            assert process.memory_info().rss - before < huge // 8

    def test_a_peer_that_never_stops_does_not_starve_others(self) -> None:
        frame = pack_head({"kind": "need"}, 0)
        with pair() as (caller, channel):
            greet(caller, channel)
            caller.sendall(frame * 1000)
            found = [len(frames(channel))]
            while sum(found) < 1000:
                found.append(len(frames(channel)))
            assert max(found) == server_connection.TURN_FRAMES

    @pytest.mark.parametrize("size", [1, 60, 100, 101, 5000])
    def test_a_turn_that_ends_with_a_frame_still_gives_it(
        self, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was left until more came, which never did: the worker waits."""
        monkeypatch.setattr(server_connection, "TURN_BYTES", size)
        with pair() as (caller, channel):
            greet(caller, channel)
            for _ in range(3):
                caller.sendall(pack_head({"kind": "push"}, 100) + bytes(100))
                assert frames(channel) == [({"kind": "push"}, bytes(100))]

    def test_a_truncated_frame_is_a_lost_connection(self) -> None:
        with pair() as (caller, channel):
            greet(caller, channel)
            caller.sendall(pack_head({"kind": "push"}, 10) + b"123")
            caller.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionResetError):
                frames(channel)

    def test_the_last_frame_before_a_close_is_read(self) -> None:
        # A worker that told why it failed and hung up at once was not understood.
        with pair() as (caller, channel):
            greet(caller, channel)
            caller.sendall(pack_head({"kind": "failed"}, 0))
            caller.shutdown(socket.SHUT_WR)
            assert frames(channel) == [({"kind": "failed"}, b"")]
            with pytest.raises(ConnectionResetError):
                frames(channel)

    def test_bytes_that_the_socket_does_not_take_are_queued(self) -> None:
        body = secrets.token_bytes(8 << 20)
        with pair() as (caller, channel):
            greet(caller, channel)
            channel.send({"kind": "reply"}, body[:100], memoryview(body)[100:])
            assert channel.has_output
            assert flushed(caller, channel, len(body)) == body
            assert not channel.has_output

    def test_queued_output_can_be_copied(self) -> None:
        # A hung worker that was dropped may still write to a slot that a standby maps.
        body = bytearray(secrets.token_bytes(8 << 20))
        before = bytes(body)
        with pair() as (caller, channel):
            greet(caller, channel)
            channel.send({"kind": "event"}, memoryview(body))
            assert channel.has_output
            channel.keep_output()
            body[:] = bytes(len(body))
            assert flushed(caller, channel, len(body)) == before

    @given(st.binary(max_size=64))
    def test_garbage_is_a_bad_frame_or_nothing_else(self, data: bytes) -> None:
        try:
            head = unpack_head(data)
        except BadFrame:
            return
        assert json.loads(data) == head

    @given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
    def test_garbage_headers_are_bounded(self, data: bytes) -> None:
        try:
            head_bytes, body_bytes = unpack_header(data, LIMIT)
        except BadFrame:
            return
        assert head_bytes <= MAX_HEAD_BYTES
        assert body_bytes <= LIMIT


def echo(connection: socket.socket) -> None:
    """The server's side of a greeting, then every frame back as it came."""
    channel = ServerConnection(connection, SECRET, max_body_bytes=LIMIT)
    channel.admit()
    with suppress(ConnectionResetError):
        while True:
            for head, body in frames(channel):
                channel.send(head, body)


class TestLink:
    def test_sends_and_receives(self) -> None:
        with listening(echo) as address:
            link = Link(address, SECRET)
            link.send({"kind": "one"}, b"12", memoryview(b"345"))
            head, body = link.receive()
            assert (head, bytes(body)) == ({"kind": "one"}, b"12345")
            space = memoryview(bytearray(8))
            link.send({"kind": "two"}, b"abc")
            head, body = link.receive(space)
            assert bytes(space[:3]) == b"abc"
            assert len(body) == 3
            link.send({"kind": "three"}, b"123456789")
            assert bytes(link.receive(space)[1]) == b"123456789"
            assert not link.has_input(0)
            link.close()

    @settings(max_examples=60)
    @given(STREAMS)
    def test_takes_frames_however_they_lie_together(self, stream: Stream) -> None:
        def serve(connection: socket.socket) -> None:
            channel = ServerConnection(connection, SECRET, max_body_bytes=LIMIT)
            read_greeting(channel)
            connection.setblocking(True)
            for part in stream.parts:
                connection.sendall(part)

        with listening(serve) as address:
            link = Link(address, SECRET)
            space = memoryview(bytearray(100))
            found = [told([link.receive(space)])[0] for _ in stream.frames]
            assert found == stream.frames
            assert not link.has_pending
            link.close()

    def test_time_that_runs_out_within_a_header_loses_nothing(self) -> None:
        text = pack_head({"kind": "late"}, 0)
        goes_on = threading.Event()

        def serve(connection: socket.socket) -> None:
            read_greeting(ServerConnection(connection, SECRET, max_body_bytes=LIMIT))
            connection.setblocking(True)
            connection.sendall(text[:9])
            assert goes_on.wait(20)
            connection.sendall(text[9:])

        with listening(serve) as address:
            link = Link(address, SECRET)
            with pytest.raises(ExchangeTimeout):
                link.receive(timeout_s=0.01)
            assert link.socket.gettimeout() is None
            goes_on.set()
            assert link.receive()[0] == {"kind": "late"}
            link.close()

    def test_a_host_that_vanished_is_a_lost_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The system says so by an error of time, which is none of ours."""

        def vanish(*_: object) -> None:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

        with listening(echo) as address:
            link = Link(address, SECRET)
            monkeypatch.setattr(
                link,
                "socket",
                SimpleNamespace(recv_into=vanish, sendall=vanish, close=link.close),
            )
            with pytest.raises(ConnectionResetError, match="timed out"):
                link.receive()
            with pytest.raises(ConnectionResetError, match="timed out"):
                link.send({"kind": "push"})
            monkeypatch.undo()
            link.close()

    @pytest.mark.skipif(
        not hasattr(socket, "TCP_USER_TIMEOUT"), reason="options of Linux"
    )
    def test_a_silent_host_is_noticed_within_seconds_where_that_is_wanted(self) -> None:
        def options(link: Link) -> list[int]:
            names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT
            return [link.socket.getsockopt(socket.IPPROTO_TCP, n) for n in names]

        with listening(echo) as address:
            link = Link(address, SECRET)
            usual = options(link)
            link.watch_host(2)
            assert options(link) == [1, 1, 2000]
            assert usual != options(link)
            link.send({"kind": "push"})
            assert link.receive()[0] == {"kind": "push"}
            link.close()

    def test_waits_no_longer_than_its_limit(self) -> None:
        with listening(echo) as address:
            link = Link(address, SECRET)
            with pytest.raises(ExchangeTimeout, match=r"no frame came within 0\.01 s"):
                link.receive(timeout_s=0.01)
            link.close()

    def test_refuses_frames_that_are_too_large(self) -> None:
        with listening(echo) as address:
            link = Link(address, SECRET, max_body_bytes=4)
            link.send({"kind": "one"}, b"12345")
            with pytest.raises(BadFrame):
                link.receive()
            link.close()

    def test_a_call_that_gets_no_further_is_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def reset(*_: object) -> None:
            raise ConnectionResetError("it is gone")

        with listening(echo) as address:
            link = Link(address, SECRET)
            monkeypatch.setattr(link, "send", reset)
            with pytest.raises(ConnectionResetError, match="it is gone"):
                link.introduce({"kind": "shard"})
            assert link.socket.fileno() < 0
