"""Frames between processes: a fixed header, a JSON head, raw bytes.

Both ends prove the run's secret before anything is parsed; nothing that comes
from a peer is ever unpickled. A frame that breaks a limit closes its connection.
The side that called is here, the side that was called in `server_connection.py`.
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
    """A peer sent what no peer of ours sends."""


def memory_for(size: int) -> memoryview:
    """Bytes that take room only when they come: a peer may announce what it likes.

    Raises:
        BadFrame: There cannot be so many.
    """
    if size <= SMALL_BYTES:
        return memoryview(bytearray(size))
    try:
        return np.empty(size, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise BadFrame(f"no memory for the {size:,} bytes of a frame") from error


def pack_head(head: Head, body_bytes: int) -> bytes:
    """Header and head of a frame, as bytes."""
    text = _encode(head).encode()
    return HEADER.pack(MAGIC, len(text), body_bytes) + text


def unpack_header(
    data: Octets, max_body_bytes: int, max_head_bytes: int = MAX_HEAD_BYTES
) -> tuple[int, int]:
    """Sizes of head and body.

    Raises:
        BadFrame: Wrong magic, or larger than a peer of ours sends.
    """
    magic, head_bytes, body_bytes = HEADER.unpack(data)
    if magic != MAGIC:
        raise BadFrame(f"frame starts with {magic!r}")
    if head_bytes > max_head_bytes or body_bytes > max_body_bytes:
        raise BadFrame(f"frame too large: head {head_bytes}, body {body_bytes} bytes")
    return head_bytes, body_bytes


def unpack_head(data: Octets) -> Head:
    """The JSON head of a frame.

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
    """Small frames leave at once, and a dead peer is found."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


@final
class Link:
    """The side that called: blocking, one frame at a time.

    Args:
        address: (host, port) of the server.
        secret: The run's secret, or what workers are given of it.
        certificate: Of the run's server, None where it does not use TLS.
        timeout_s: For the connection and the greeting; frames wait for ever
            unless `receive` is given a limit.
        max_body_bytes: Larger frames are refused.
        meanwhile: Called now and then until the server greets; it may raise.

    Raises:
        ExchangeTimeout: Nobody answered in time.
        ConnectionResetError: The server hung up: it does not know the secret, or one
            end uses TLS and the other does not.
        BadFrame: Whoever listens there is not the server of this run.
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
        """Whether Ctrl-C is not raised any more where a frame is waited for."""
        self._until = time.monotonic() + timeout_s
        try:
            self.socket = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            raise ExchangeTimeout(
                f"no server at {self._place}: {error}. "
                f"One was expected within {timeout_s:g} s. "
                "See the run's log for why it is not there."
            ) from None
        gives_up(self)
        try:
            configure(self.socket)
            if certificate is not None:
                self._encrypt(certificate)
            self._greet(secret)
            self.socket.settimeout(None)
        except TimeoutError:
            self.socket.close()
            raise ExchangeTimeout(
                f"whoever listens at {self._place} does not greet. "
                f"The run's server was expected to within {timeout_s:g} s. "
                "See the run's log for why it does not."
            ) from None
        except BaseException:
            self.socket.close()
            raise

    @classmethod
    def accepted(cls, connection: socket.socket) -> Link:
        """The side that was called, after the greeting; see `accepting.accept`.

        Args:
            connection: Owned from now on.
        """
        link = cls.__new__(cls)
        link._max_body_bytes, link._meanwhile = 1 << 40, lambda: None
        link._room, link._ahead = memoryview(bytearray(AHEAD_BYTES)), memoryview(b"")
        link._place, link._until = "a caller", 0.0
        link.is_closing, link.socket = False, connection
        gives_up(link)
        return link

    # --------------------------------------------------------------- greeting

    def _encrypt(self, certificate: bytes) -> None:
        """Shakes hands; the server may take its time to start."""
        self.socket.setblocking(False)
        try:
            wrapped = self.socket = tls.wrap_caller(self.socket, certificate)
        except OSError as error:
            raise self._hung_up(f"before TLS began ({error})") from None
        while True:
            try:
                wrapped.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._wait()
            except ssl.SSLCertVerificationError:
                raise self._wrong_certificate() from None
            except OSError as error:  # that it is not connected is no ConnectionError
                raise self._hung_up(f"in the handshake of TLS ({error})") from None
        if not tls.is_pinned(wrapped, certificate):
            raise self._wrong_certificate()

    def _wrong_certificate(self) -> BadFrame:
        return BadFrame(
            f"the server at {self._place} shows another certificate. "
            "The one that was made for this run was expected, and no other is taken. "
            "Another run may use that address, or somebody is in between."
        )

    def _hung_up(self, when: str) -> ConnectionResetError:
        return ConnectionResetError(
            f"the server at {self._place} hung up {when}. "
            "It was expected to know this run's secret, with TLS where TLS is used "
            "here. See whether it is the server of another run."
        )

    def _greet(self, secret: bytes) -> None:
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
            raise self._hung_up(f"in the greeting ({error})") from None

    def _wait(self) -> None:
        """Waits until the server says something.

        Raises:
            TimeoutError: It says nothing.
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
        except ssl.SSLError as error:  # cut off where TLS did not expect it
            raise ConnectionResetError(str(error)) from None
        except TimeoutError as error:
            if error.errno is None:  # a limit of ours
                raise
            raise ConnectionResetError(str(error)) from None
        if got == 0:
            raise ConnectionResetError("the peer closed the connection")
        return got

    def _await_bytes(self, wake: int) -> None:
        """Waits for some as the socket would, and for a signal: a safe point.

        Raises:
            TimeoutError: The limit of the socket is over.
            KeyboardInterrupt: Ctrl-C was pressed; the frame is cut.
        """
        limit_s = self.socket.gettimeout()
        until = None if limit_s is None else time.monotonic() + limit_s
        while not self._has_bytes(wake, until):
            if not self.is_closing:
                check()
            if until is not None and time.monotonic() > until:
                raise TimeoutError

    def _has_bytes(self, wake: int, until: float | None) -> bool:
        """Whether bytes have come, at the latest at `until` or when a signal came."""
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
        """The next bytes, which stay until more are asked for."""
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
        """Moves what was read ahead to where it belongs; how many bytes."""
        count = min(len(view), len(self._ahead))
        view[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return count

    def give_up_socket(self) -> tuple[socket.socket, bytes]:
        """The connection for somebody else, and what was read of it already."""
        return self.socket, bytes(self._ahead)

    @property
    def is_local(self) -> bool:
        """Whether both ends have one address, as on one machine."""
        try:
            return self.socket.getsockname()[0] == self.socket.getpeername()[0]
        except OSError:  # it was hung up just now, which whatever is sent next finds
            return False

    @property
    def own_host(self) -> str:
        """Address of this end, "" where it was hung up."""
        try:
            return self.socket.getsockname()[0]
        except OSError:
            return ""

    @property
    def has_pending(self) -> bool:
        """Whether bytes wait here that no selector knows of."""
        if self._ahead:
            return True
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def has_input(self, timeout_s: float) -> bool:
        """Whether there is something to receive, at most `timeout_s` from now."""
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

    def introduce(self, head: Head) -> None:
        """Sends the first word; a call that gets no further is closed."""
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
            into: Where the body goes, default None: into fresh memory.
            timeout_s: For the frame to begin, default None: for ever.
            stall_s: It may stop half-way for so long, default None: for ever.

        Raises:
            ExchangeTimeout: Nothing came within `timeout_s`.
            TimeoutError: Nothing more came within `stall_s`.
            ConnectionResetError: The peer is gone.
            BadFrame: It is no frame of a peer of ours.
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
        """One frame; `begun` is called when its header is there."""
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
        """A fork would keep the connection open when this end is gone."""
        blank(self.socket.fileno())

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()
