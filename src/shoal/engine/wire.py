"""Frames between processes: a fixed header, a JSON head, raw bytes.

Both ends prove the run's secret before anything is parsed; nothing that comes
from a peer is ever unpickled. A frame that breaks a limit closes its connection.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from shoal.errors import ExchangeTimeout, ShoalError

Head: TypeAlias = dict[str, Any]

MAGIC = b"SHL1"
HEADER = struct.Struct("!4sIQ")  # magic, bytes of head, bytes of body
NONCE_BYTES = 32
PROOF_BYTES = 32
MAX_HEAD_BYTES = 1 << 20
GREETING_TIMEOUT_S = 10.0
LOOK_S = 0.1


class BadFrame(ShoalError):
    """A peer sent what no peer of ours sends."""


def proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    """What a peer shows to prove that it knows the secret, fresh for each greeting."""
    return hmac.new(secret, role + first + second, hashlib.sha256).digest()


def pack_head(head: Head, body_bytes: int) -> bytes:
    """Header and head of a frame, as bytes."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return HEADER.pack(MAGIC, len(text), body_bytes) + text


def unpack_header(data: bytes | bytearray, max_body_bytes: int) -> tuple[int, int]:
    """Sizes of head and body.

    Raises:
        BadFrame: Wrong magic, or larger than a peer of ours sends.
    """
    magic, head_bytes, body_bytes = HEADER.unpack(data)
    if magic != MAGIC:
        raise BadFrame(f"frame starts with {magic!r}")
    if head_bytes > MAX_HEAD_BYTES or body_bytes > max_body_bytes:
        raise BadFrame(f"frame too large: head {head_bytes}, body {body_bytes} bytes")
    return head_bytes, body_bytes


def unpack_head(data: bytes | bytearray) -> Head:
    """The JSON head of a frame.

    Raises:
        BadFrame: It is not a JSON object.
    """
    try:
        head = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"head is not JSON: {error}") from None
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
        raise BadFrame("head is not an object with a kind")
    return head


def configure(connection: socket.socket) -> None:
    """Small frames leave at once, and a dead peer is found."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Link:
    """The side that called: blocking, one frame at a time.

    Args:
        address: (host, port) of the server.
        secret: The run's secret, 32 bytes.
        timeout_s: For the connection and the greeting; frames wait for ever
            unless `receive` is given a limit.
        max_body_bytes: Larger frames are refused.
        meanwhile: Called now and then until the server greets; it may raise.

    Raises:
        ExchangeTimeout: Nobody answered in time.
        BadFrame: The peer does not know the secret.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        *,
        timeout_s: float = 60.0,
        max_body_bytes: int = 1 << 40,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        until = time.monotonic() + timeout_s
        try:
            self._socket = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            raise ExchangeTimeout(
                f"no server at {address[0]}:{address[1]}: {error}. "
                f"One was expected within {timeout_s:g} s. "
                "See the run's log for why it is not there."
            ) from None
        try:
            while time.monotonic() < until and not self.has_input(LOOK_S):
                meanwhile()
            self._greet(secret)
        except TimeoutError:
            self._socket.close()
            raise ExchangeTimeout(
                f"whoever listens at {address[0]}:{address[1]} does not greet. "
                f"The run's server was expected to within {timeout_s:g} s. "
                "See the run's log for why it does not."
            ) from None
        except BaseException:
            self._socket.close()
            raise
        configure(self._socket)
        self._socket.settimeout(None)

    def _greet(self, secret: bytes) -> None:
        theirs = self._exactly(NONCE_BYTES)
        mine = secrets.token_bytes(NONCE_BYTES)
        self._socket.sendall(mine + proof(secret, b"caller", theirs, mine))
        if not hmac.compare_digest(
            self._exactly(PROOF_BYTES), proof(secret, b"server", mine, theirs)
        ):
            raise BadFrame("the server does not know this run's secret")

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        while view:
            got = self._socket.recv_into(view)
            if got == 0:
                raise ConnectionResetError("the peer closed the connection")
            view = view[got:]

    def has_input(self, timeout_s: float) -> bool:
        """Whether there is something to receive, at most `timeout_s` from now."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def send(self, head: Head, *body: memoryview | bytes) -> None:
        """Sends one frame; `body` parts follow each other without copies."""
        parts: Sequence[memoryview | bytes] = [p for p in body if len(p)]
        size = sum(memoryview(p).nbytes for p in parts)
        self._socket.sendall(pack_head(head, size))
        for part in parts:
            self._socket.sendall(part)

    def receive(
        self, into: memoryview | None = None, timeout_s: float | None = None
    ) -> tuple[Head, memoryview]:
        """Waits for one frame; its body goes to the start of `into` if it fits.

        Raises:
            ExchangeTimeout: Nothing came within `timeout_s`.
            ConnectionResetError: The peer is gone.
        """
        self._socket.settimeout(timeout_s)
        try:
            header = self._exactly(HEADER.size)
        except TimeoutError:
            raise ExchangeTimeout(f"no frame came within {timeout_s:g} s") from None
        self._socket.settimeout(None)
        head_bytes, body_bytes = unpack_header(header, self._max_body_bytes)
        head = unpack_head(self._exactly(head_bytes))
        fits = into is not None and body_bytes <= len(into)
        body = into[:body_bytes] if fits and into is not None else None
        if body is None:
            body = memoryview(bytearray(body_bytes))
        self._fill(body)
        return head, body

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


class Channel:
    """The side that was called: non-blocking, driven by the server's selector.

    Args:
        connection: An accepted socket.
        secret: The run's secret.
        max_body_bytes: Larger frames are refused.
    """

    def __init__(
        self, connection: socket.socket, secret: bytes, *, max_body_bytes: int
    ) -> None:
        connection.setblocking(False)
        configure(connection)
        self.socket = connection
        self.accepted = time.monotonic()
        self.is_proven = False
        self.max_body_bytes = max_body_bytes
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._out: deque[memoryview] = deque([memoryview(self._nonce)])
        self._head: Head | None = None
        self._stage = "greeting"
        self._wanted = memoryview(bytearray(NONCE_BYTES + PROOF_BYTES))
        self._filled = 0
        self.inbox: memoryview | None = None
        """Where bodies go when they fit; otherwise into fresh memory."""

    @property
    def has_output(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._out)

    def send(self, head: Head, *body: memoryview | bytes) -> None:
        """Queues one frame and sends what the socket takes now.

        Body memory must stay unchanged until it is sent: workers ask and wait,
        so theirs is free again when they speak next.
        """
        parts = [memoryview(p).cast("B") for p in body if len(p)]
        self._out.append(memoryview(pack_head(head, sum(len(part) for part in parts))))
        self._out.extend(parts)
        self.flush()

    def flush(self) -> None:
        """Sends what the socket takes now."""
        while self._out:
            try:
                sent = self.socket.send(self._out[0])
            except BlockingIOError:
                return
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    def read(self) -> list[tuple[Head, memoryview]]:
        """Takes what the socket has; returns the frames that are complete.

        Raises:
            ConnectionResetError: The peer is gone.
            BadFrame: The peer is not one of ours.
        """
        frames: list[tuple[Head, memoryview]] = []
        while True:
            if self._filled < len(self._wanted):
                try:
                    got = self.socket.recv_into(self._wanted[self._filled :])
                except BlockingIOError:
                    return frames
                except OSError:
                    got = 0
                if got == 0:
                    if frames:  # its last words count; the next read finds the end
                        return frames
                    raise ConnectionResetError("the peer closed the connection")
                self._filled += got
                continue
            frame = self._advance()
            if frame is not None:
                frames.append(frame)
                if self.inbox is not None and len(frame[1]):
                    return frames  # the next body would overwrite this one

    def _expect(self, stage: str, target: memoryview) -> None:
        self._stage, self._wanted, self._filled = stage, target, 0

    def _advance(self) -> tuple[Head, memoryview] | None:
        """One stage further; a frame when it was the last."""
        data = self._wanted
        if self._stage == "greeting":
            self._check(bytes(data))
        elif self._stage == "header":
            head_bytes, self._body_bytes = unpack_header(
                bytearray(data), self.max_body_bytes
            )
            self._expect("head", memoryview(bytearray(head_bytes)))
            return None
        elif self._stage == "head":
            self._head = unpack_head(bytearray(data))
            fits = self.inbox is not None and self._body_bytes <= len(self.inbox)
            body = self.inbox[: self._body_bytes] if fits and self.inbox else None
            self._expect("body", body or memoryview(bytearray(self._body_bytes)))
            return None
        elif self._head is not None:
            frame = self._head, data
            self._expect("header", memoryview(bytearray(HEADER.size)))
            return frame
        self._expect("header", memoryview(bytearray(HEADER.size)))
        return None

    def _check(self, greeting: bytes) -> None:
        nonce, shown = greeting[:NONCE_BYTES], greeting[NONCE_BYTES:]
        wanted = proof(self._secret, b"caller", self._nonce, nonce)
        if not hmac.compare_digest(shown, wanted):
            raise BadFrame("the caller does not know this run's secret")
        self.is_proven = True
        answer = proof(self._secret, b"server", nonce, self._nonce)
        self._out.append(memoryview(answer))
        self.flush()

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()
