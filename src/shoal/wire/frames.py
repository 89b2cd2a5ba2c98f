"""Frames between processes: a fixed header, a JSON head, raw bytes.

Both ends prove the run's secret before anything is parsed; nothing from a peer
is ever unpickled. A frame that breaks a limit closes its connection.
This file has the caller's side; `server_connection.py` has the server's.
"""

from __future__ import annotations

import json
import select
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from shoal.errors import ExchangeTimeout, ShoalError
from shoal.forks import blank, gives_up
from shoal.interruption import check, descriptor, drain
from shoal.wire import tls
from shoal.wire.handshake import ANSWER_BYTES, Caller, NoProof

Head: TypeAlias = dict[str, Any]
Octets: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"SHL1"
HEADER = struct.Struct("!4sIQ")  # magic, bytes of head, bytes of body
MAX_HEAD_BYTES = 1 << 20
GREETING_TIMEOUT_S = 10.0
LOOK_S = 0.1
AHEAD_BYTES = 1 << 12  # read together with a header: most frames are shorter
SMALL_BYTES = 1 << 14
_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once, not each time


class BadFrame(ShoalError):
    """A peer sent bytes that no peer of this run sends."""


def memory_for(size: int) -> memoryview:
    """Reserves bytes that take memory only as they arrive: peers may announce any size.

    Raises:
        BadFrame: There is not enough memory.
    """
    if size <= SMALL_BYTES:
        return memoryview(bytearray(size))
    try:
        return np.empty(size, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise BadFrame(f"no memory for the {size:,} bytes of a frame") from error


def pack_head(head: Head, body_bytes: int) -> bytes:
    """Returns header and head of a frame, as bytes."""
    text = _encode(head).encode()
    return HEADER.pack(MAGIC, len(text), body_bytes) + text


def unpack_header(
    data: Octets, max_body_bytes: int, max_head_bytes: int = MAX_HEAD_BYTES
) -> tuple[int, int]:
    """Returns the sizes of head and body.

    Raises:
        BadFrame: The magic is wrong, or a size is beyond the limit.
    """
    magic, head_bytes, body_bytes = HEADER.unpack(data)
    if magic != MAGIC:
        raise BadFrame(f"frame starts with {magic!r}")
    if head_bytes > max_head_bytes or body_bytes > max_body_bytes:
        raise BadFrame(f"frame too large: head {head_bytes}, body {body_bytes} bytes")
    return head_bytes, body_bytes


def unpack_head(data: Octets) -> Head:
    """Returns the JSON head of a frame.

    Raises:
        BadFrame: It is not a JSON object.
    """
    try:
        head = json.loads(str(data, "utf-8"))  # of bytes, it would look which code
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"head is not JSON: {error}") from None
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
        raise BadFrame("head is not an object with a kind")
    return head


def configure(connection: socket.socket) -> None:
    """Makes small frames leave at once, and a dead peer be noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


@final
class Link:
    """The caller's side of a connection: blocking, one frame at a time.

    Args:
        address: (host, port) of the server.
        secret: The run's secret, or the workers' key made from it.
        certificate: Certificate of the run's server, None without TLS.
        timeout_s: Limit for the connection and the handshake; frames wait forever
            unless `receive` is given a limit.
        max_body_bytes: Limit of a body; larger frames are refused.
        meanwhile: Called regularly until the server's answer; it may raise.

    Raises:
        ExchangeTimeout: No server answered in time.
        ConnectionResetError: The server closed the connection: it has another secret,
            or only one end uses TLS.
        BadFrame: The listener is not the server of this run.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        *,
        certificate: bytes | None = None,
        timeout_s: float = 60.0,
        max_body_bytes: int = 1 << 40,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._max_body_bytes, self._meanwhile = max_body_bytes, meanwhile
        self._room, self._ahead = memoryview(bytearray(AHEAD_BYTES)), memoryview(b"")
        self._place = f"{address[0]}:{address[1]}"
        self.is_closing = False
        """Whether Ctrl-C is no longer raised during waits for frames."""
        self._until = time.monotonic() + timeout_s
        try:
            self.socket = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            raise ExchangeTimeout(
                f"no server at {self._place}: {error}. "
                f"Expected the run's server within {timeout_s:g} s. "
                "Check the run's log for the reason."
            ) from None
        gives_up(self)
        try:
            configure(self.socket)
            if certificate is not None:
                self._encrypt(certificate)
            self._prove(secret)
            self.socket.settimeout(None)
        except TimeoutError:
            self.socket.close()
            raise ExchangeTimeout(
                f"the listener at {self._place} does not answer the handshake. "
                f"Expected the run's server to answer within {timeout_s:g} s. "
                "Check the run's log for the reason."
            ) from None
        except BaseException:
            self.socket.close()
            raise

    @classmethod
    def accepted(cls, connection: socket.socket, max_body_bytes: int) -> Link:
        """The side that was called, after the greeting; see `accepting.accept`.

        Args:
            connection: Owned from now on.
            max_body_bytes: Larger frames are refused.
        """
        link = cls.__new__(cls)
        link._max_body_bytes, link._meanwhile = max_body_bytes, lambda: None
        link._room, link._ahead = memoryview(bytearray(AHEAD_BYTES)), memoryview(b"")
        link._place, link._until = "a caller", 0.0
        link.is_closing, link.socket = False, connection
        gives_up(link)
        return link

    # --------------------------------------------------------------- handshake

    def _encrypt(self, certificate: bytes) -> None:
        """Runs the TLS handshake; the server may start late."""
        self.socket.setblocking(False)
        try:
            wrapped = self.socket = tls.wrap_caller(self.socket, certificate)
        except OSError as error:
            raise self._closed(f"before TLS began ({error})") from None
        while True:
            try:
                wrapped.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._wait()
            except ssl.SSLCertVerificationError:
                raise self._wrong_certificate() from None
            except OSError as error:  # not being connected is not a ConnectionError
                raise self._closed(f"in the TLS handshake ({error})") from None
        if not tls.is_pinned(wrapped, certificate):
            raise self._wrong_certificate()

    def _wrong_certificate(self) -> BadFrame:
        return BadFrame(
            f"the server at {self._place} shows another certificate. "
            "Expected the one that was made for this run. Check whether another run "
            "uses that address, or a host in between intercepts the connection."
        )

    def _closed(self, when: str) -> ConnectionResetError:
        return ConnectionResetError(
            f"the server at {self._place} closed the connection {when}. "
            "Expected it to know this run's secret, and to use TLS if this end does. "
            "Check whether it is the server of another run."
        )

    def _prove(self, secret: bytes) -> None:
        caller = Caller(secret)
        self.socket.settimeout(max(0.001, self._until - time.monotonic()))
        try:
            self.socket.sendall(caller.hello)
            self._wait()
            proof = caller.prove(self._exactly(ANSWER_BYTES))
            self.socket.sendall(proof)
        except NoProof as error:
            raise BadFrame(str(error)) from None
        except (ConnectionError, ssl.SSLError) as error:
            raise self._closed(f"in the handshake ({error})") from None

    def _wait(self) -> None:
        """Waits for the first byte of the server.

        Raises:
            TimeoutError: No byte came.
        """
        while not self.has_input(LOOK_S):
            if time.monotonic() > self._until:
                raise TimeoutError
            self._meanwhile()

    # ----------------------------------------------------------------- frames

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        while view:
            view = view[self._take(view) :]

    def _take(self, view: memoryview) -> int:
        wake = descriptor()
        try:
            if wake is not None:
                self._await_bytes(wake)
            got = self.socket.recv_into(view)
        except ssl.SSLError as error:  # truncated where TLS did not expect it
            raise ConnectionResetError(str(error)) from None
        except TimeoutError as error:
            if error.errno is None:  # this side's limit
                raise
            raise ConnectionResetError(str(error)) from None
        if got == 0:
            raise ConnectionResetError("the peer closed the connection")
        return got

    def _await_bytes(self, wake: int) -> None:
        """Waits for bytes like the socket, and for a signal: a safe point.

        Raises:
            TimeoutError: The limit of the socket has passed.
            KeyboardInterrupt: Ctrl-C was pressed; the frame is abandoned.
        """
        limit_s = self.socket.gettimeout()
        until = None if limit_s is None else time.monotonic() + limit_s
        while not self._has_bytes(wake, until):
            if not self.is_closing:
                check()
            if until is not None and time.monotonic() > until:
                raise TimeoutError

    def _has_bytes(self, wake: int, until: float | None) -> bool:
        """Whether bytes have come, by `until` or until a signal."""
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        poll, own = select.poll(), self.socket.fileno()
        for waited_on in (own, wake):
            poll.register(waited_on, select.POLLIN)
        left_s = None if until is None else max(0.0, until - time.monotonic())
        found = dict(poll.poll(None if left_s is None else 1e3 * left_s))
        if wake in found:
            drain()
        return own in found

    def _next(self, count: int) -> memoryview:
        """Returns the next bytes, valid until the next call."""
        if count > AHEAD_BYTES:
            data = memory_for(count)
            self._fill(data[self._from_ahead(data) :])
            return data
        if len(self._ahead) < count:
            filled = len(self._ahead)
            self._room[:filled] = self._ahead
            self._ahead = self._room[:filled]
            while filled < count:
                filled += self._take(self._room[filled:])
                self._ahead = self._room[:filled]
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        return data

    def _from_ahead(self, view: memoryview) -> int:
        """Moves bytes that were read ahead to their place; returns their number."""
        count = min(len(view), len(self._ahead))
        view[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return count

    def watch_host(self, limit_s: int) -> None:
        """Counts the peer as gone when its host answers nothing, not even probes.

        Without it a host that lost its power or its network is noticed after hours. A
        process that is busy or stopped is no such case: its system answers. Where the
        system lacks these options, nothing changes.

        Args:
            limit_s: Seconds, at least 2.
        """
        options = {
            "TCP_KEEPIDLE": 1,
            "TCP_KEEPINTVL": 1,
            "TCP_KEEPCNT": limit_s - 1,
            "TCP_USER_TIMEOUT": 1000 * limit_s,
        }
        for name, value in options.items():
            number = getattr(socket, name, None)
            if number is not None:
                self.socket.setsockopt(socket.IPPROTO_TCP, number, value)

    def give_up_socket(self) -> tuple[socket.socket, bytes]:
        """Hands over the connection, with the bytes that were already read from it."""
        return self.socket, bytes(self._ahead)

    @property
    def is_local(self) -> bool:
        """Whether both ends have one address, as on one machine."""
        try:
            return self.socket.getsockname()[0] == self.socket.getpeername()[0]
        except OSError:  # it was just closed, which the next send will find
            return False

    @property
    def own_host(self) -> str:
        """Returns the address of this end, "" if the connection is closed."""
        try:
            return self.socket.getsockname()[0]
        except OSError:
            return ""

    @property
    def has_pending(self) -> bool:
        """Whether bytes wait here that no selector sees."""
        if self._ahead:
            return True
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def has_input(self, timeout_s: float) -> bool:
        """Whether a frame can be received, within `timeout_s`."""
        if self.has_pending:
            return True
        wake = descriptor()
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            if wake is not None:  # a signal ends the wait
                selector.register(wake, selectors.EVENT_READ)
            found = {key.fd for key, _ in selector.select(timeout_s)}
        if wake in found:
            drain()
        return bool(found - {wake})

    def send(self, head: Head, *body: memoryview | bytes) -> None:
        """Sends one frame; `body` parts follow each other without copies."""
        parts: Sequence[memoryview | bytes] = [p for p in body if len(p)]
        size = sum(memoryview(p).nbytes for p in parts)
        try:
            self.socket.sendall(pack_head(head, size))
            for part in parts:
                self.socket.sendall(part)
        except ssl.SSLError as error:
            raise ConnectionResetError(str(error)) from None
        except TimeoutError as error:
            if error.errno is None:  # this side's limit
                raise
            raise ConnectionResetError(str(error)) from None

    def introduce(self, head: Head) -> None:
        """Sends the first message; a call that fails closes the connection."""
        try:
            self.send(head)
        except BaseException:
            self.close()
            raise

    def receive(
        self,
        into: memoryview | None = None,
        timeout_s: float | None = None,
        stall_s: float | None = None,
    ) -> tuple[Head, memoryview]:
        """Waits for one frame; its body goes to the start of `into` if it fits.

        Args:
            into: Buffer for the body, default None: new memory.
            timeout_s: Limit until the frame begins, default None: forever.
            stall_s: Limit of a pause within the frame, default None: forever.

        Raises:
            ExchangeTimeout: Nothing came within `timeout_s`.
            TimeoutError: Nothing more came within `stall_s`.
            ConnectionResetError: The peer closed the connection.
            BadFrame: The bytes are not a frame of this run.
        """
        if timeout_s is None and stall_s is None:
            return self._frame(into)
        self.socket.settimeout(timeout_s)
        try:
            return self._frame(into, lambda: self.socket.settimeout(stall_s))
        finally:
            self.socket.settimeout(None)

    def _frame(
        self, into: memoryview | None, begun: Callable[[], None] = lambda: None
    ) -> tuple[Head, memoryview]:
        """Receives one frame; calls `begun` when its header is there."""
        try:
            header = self._next(HEADER.size)
        except TimeoutError:
            limit_s = self.socket.gettimeout()
            raise ExchangeTimeout(f"no frame came within {limit_s:g} s") from None
        head_bytes, body_bytes = unpack_header(header, self._max_body_bytes)
        begun()
        head = unpack_head(self._next(head_bytes))
        fits = into is not None and body_bytes <= len(into)
        body = into[:body_bytes] if fits and into is not None else None
        if body is None:
            body = memory_for(body_bytes)
        self._fill(body[self._from_ahead(body) :])
        return head, body

    def give_up(self) -> None:
        """Closes the descriptor in a fork, which would keep the connection open."""
        blank(self.socket.fileno())

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()
