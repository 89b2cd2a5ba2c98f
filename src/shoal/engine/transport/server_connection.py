"""The called side of a connection: non-blocking, driven by a selector.

This file decides how bytes become a handshake and frames, and how many of them are
handled before other peers have their turn.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import final

from shoal.engine.environment import SYSTEM
from shoal.wire import tls
from shoal.wire.frames import (
    AHEAD_BYTES,
    HEADER,
    BadFrame,
    Head,
    configure,
    memory_for,
    pack_head,
    unpack_head,
    unpack_header,
)
from shoal.wire.handshake import HELLO_BYTES, TAG_BYTES, Callee, NoProof

CALLER_HEAD_BYTES = 1 << 14  # for a peer without a role
TURN_BYTES = 8 << 20  # limit for one peer before others have their turn
TURN_FRAMES = 64
SHORT = ("header", "head")
MOST_WAITING = (
    64  # parts of frames; beyond it a peer that does not read is not read either
)

# Errors of a socket that can do no more now.
LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _unread(connection: socket.socket) -> int:
    """Bytes that were sent and not taken by the other end, 0 if unknown."""
    try:
        found = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return struct.unpack("i", found)[0]


@final
class ServerConnection:
    """One accepted connection.

    Args:
        connection: Accepted socket; it is owned from now on.
        secret: The run's secret.
        max_body_bytes: Limit of frames, once `admit` was called.
        context: Context of TLS, None without it.
        clock: Monotonic clock, in seconds.

    Raises:
        OSError: The caller has closed the connection already.

    Attributes:
        since: Monotonic seconds when it was accepted or had proved the secret.
    """

    def __init__(
        self,
        connection: socket.socket,
        secret: bytes,
        *,
        max_body_bytes: int,
        context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = SYSTEM.clock,
    ) -> None:
        connection.setblocking(False)
        configure(connection)
        self._tls: ssl.SSLSocket | None = None
        if context is not None:
            connection = self._tls = tls.wrap_callee(connection, context)
        self.socket = connection
        self._clock, self.since = clock, clock()
        self.is_proven = False
        self._limit, self._is_admitted = max_body_bytes, False
        self._callee = Callee(secret)
        self._out: deque[memoryview] = deque()
        self._head: Head | None = None
        self._header = memory_for(HEADER.size)
        self._body_bytes = 0
        self._wants_write = False
        self._moved = self._seen = 0
        self._seen_unread = 0
        self._stage, self._wanted, self._filled = "", memoryview(b""), 0
        self._expect(
            "hello" if context is None else "handshake", memory_for(HELLO_BYTES)
        )
        self._room = self._ahead = memoryview(b"")
        self.inbox: memoryview | None = None
        """Memory for bodies that fit; others get fresh memory."""

    @classmethod
    def of(
        cls, connection: socket.socket, ahead: bytes, secret: bytes, max_body_bytes: int
    ) -> ServerConnection:
        """Returns a connection that this end made, after the handshake.

        Args:
            connection: Socket; it is owned from now on.
            ahead: Bytes that were read from it already.
            secret: The run's secret.
            max_body_bytes: Limit of frames.
        """
        channel = cls(connection, secret, max_body_bytes=max_body_bytes)
        channel._ahead = memoryview(ahead)
        if isinstance(connection, ssl.SSLSocket):
            channel._tls = connection
        channel.is_proven = channel._is_admitted = True
        channel._expect("header", memory_for(HEADER.size))
        return channel

    @property
    def is_commander(self) -> bool:
        """Whether it proved the run's own secret, as a controller does."""
        return self.is_proven and self._callee.is_commander

    def admit(self) -> None:
        """Lifts the limits of callers: the peer has a role."""
        self._is_admitted = True

    @property
    def is_shaking_hands(self) -> bool:
        """Whether the TLS handshake is still running."""
        return self._stage == "handshake"

    # ---------------------------------------------------------------- sending

    @property
    def has_output(self) -> bool:
        """Whether bytes wait until the socket takes them."""
        if self.is_shaking_hands:
            return self._wants_write
        return bool(self._out)

    @property
    def is_congested(self) -> bool:
        """Whether it sends requests without reading the answers."""
        return len(self._out) > MOST_WAITING

    @property
    def has_input(self) -> bool:
        """Whether bytes are buffered here that no selector reports."""
        if self._ahead:
            return True
        return self._tls is not None and self._tls.pending() > 0

    def send(self, head: Head, *body: memoryview | bytes) -> None:
        """Queues one frame and sends what the socket takes now.

        Body memory must stay unchanged until it is sent: workers wait for an answer, so
        their memory is free again at their next message.
        """
        parts = [memoryview(p).cast("B") for p in body if len(p)]
        self._out.append(memoryview(pack_head(head, sum(len(part) for part in parts))))
        self._out.extend(parts)
        self.flush()

    def keep_output(self) -> None:
        """Copies waiting bytes, so that their memory can be used again."""
        # Read-only parts are bytes, which nobody changes.
        self._out = deque(
            part if part.readonly else memoryview(bytes(part)) for part in self._out
        )

    def flush(self) -> None:
        """Sends what the socket takes now."""
        if self.is_shaking_hands:
            return
        while self._out:
            try:
                sent = self.socket.send(self._out[0])
            except LATER:
                return
            self._moved += sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    # -------------------------------------------------------------- receiving

    def read(self) -> list[tuple[Head, memoryview]]:
        """Reads the socket, within limits; returns the complete frames.

        Raises:
            ConnectionResetError: The peer is gone.
            BadFrame: The peer does not follow the protocol.
        """
        # One thread serves all peers. A turn ends after TURN_FRAMES or TURN_BYTES, so
        # that a peer which sends without end cannot keep the others waiting.
        # A body of a worker is in its inbox, which the server uses until it has handled
        # the frame: so a turn ends with the first body.
        frames: list[tuple[Head, memoryview]] = []
        if self.is_shaking_hands and not self._shake_hands():
            return frames
        taken = 0
        while len(frames) < TURN_FRAMES:
            if self._filled < len(self._wanted):
                if taken >= TURN_BYTES:  # never with a whole part in hand: what
                    return frames  # is left lies in the socket, and wakes us
                got = self._receive()
                if got is None:
                    return frames
                if got == 0:
                    if frames:  # its last frames count; the next read finds the end
                        return frames
                    raise ConnectionResetError("the peer closed the connection")
                self._filled += got
                self._moved += got
                taken += got
                continue
            frame = self._advance()
            if frame is not None:
                frames.append(frame)
                if self.inbox is not None and len(frame[1]):
                    return frames  # the next body would overwrite this one
        return frames

    def _receive(self) -> int | None:
        """Number of received bytes, 0 at the end, None if there are none yet.

        With a header it also reads the bytes behind it, often the whole frame.
        """
        wanted = self._wanted[self._filled :]
        if not self._ahead:
            if self._stage not in SHORT:
                return self._take(wanted)
            if not self._room:
                self._room = memoryview(bytearray(AHEAD_BYTES))
            got = self._take(self._room)
            if not got:
                return got
            self._ahead = self._room[:got]
        count = min(len(wanted), len(self._ahead))
        wanted[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return count

    def _take(self, target: memoryview) -> int | None:
        try:
            return self.socket.recv_into(target)
        except LATER:
            return None
        except OSError:
            return 0

    def _shake_hands(self) -> bool:
        """Continues the TLS handshake; returns whether it is done."""
        if self._tls is None:
            raise RuntimeError("a handshake without TLS")
        self._wants_write = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self._wants_write = True
            return False
        except ssl.SSLError as error:
            raise BadFrame(f"no TLS of this run: {error.reason or error}") from None
        self._expect("hello", self._wanted)
        return True

    def _expect(self, stage: str, target: memoryview) -> None:
        self._stage, self._wanted, self._filled = stage, target, 0

    def _advance(self) -> tuple[Head, memoryview] | None:
        """Advances by one stage; returns a frame after the last one."""
        data = self._wanted
        if self._stage == "hello":
            self._answer(bytes(data))
        elif self._stage == "proof":
            self._check(bytes(data))
        elif self._stage == "header":
            head_bytes = self._read_header(data)
            if head_bytes > len(self._ahead):
                self._expect("head", memory_for(head_bytes))
                return None
            data, self._ahead = self._ahead[:head_bytes], self._ahead[head_bytes:]
            return self._read_head(data)
        elif self._stage == "head":
            return self._read_head(data)
        elif self._head is not None:
            return self._end_frame(self._head, data)
        return None

    def _read_head(self, data: memoryview) -> tuple[Head, memoryview] | None:
        head, size = unpack_head(data), self._body_bytes
        if size == 0:
            return self._end_frame(head, memoryview(b""))
        fits = self.inbox is not None and size <= len(self.inbox)
        body = self.inbox[:size] if fits and self.inbox else None
        self._head = head
        self._expect("body", body or memory_for(size))
        return None

    def _end_frame(self, head: Head, body: memoryview) -> tuple[Head, memoryview]:
        self._head = None
        self._expect("header", self._header)
        return head, body

    def _read_header(self, data: memoryview) -> int:
        """Returns the size of the head. It is limited for a peer without a role.

        A controller has no limit: its first commands may come with its introduction.
        """
        if self._is_admitted or self.is_commander:
            sizes = unpack_header(data, self._limit)
        else:
            sizes = unpack_header(data, 0, CALLER_HEAD_BYTES)
        head_bytes, self._body_bytes = sizes
        return head_bytes

    def _answer(self, hello: bytes) -> None:
        try:
            answer = self._callee.answer(hello)
        except NoProof as error:
            raise BadFrame(str(error)) from None
        self._out.append(memoryview(answer))
        self.flush()
        self._expect("proof", memory_for(TAG_BYTES))

    def _check(self, proof: bytes) -> None:
        try:
            self._callee.check(proof)
        except NoProof as error:
            raise BadFrame(str(error)) from None
        self.is_proven, self.since = True, self._clock()
        self._expect("header", self._header)

    def has_moved(self) -> bool:
        """Whether bytes came, or went to the other end, since the last call.

        On a slow link, bytes that the system has taken are on their way for a while.
        """
        unread = _unread(self.socket)
        has_moved = self._moved != self._seen or unread != self._seen_unread
        self._seen, self._seen_unread = self._moved, unread
        return has_moved

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()
