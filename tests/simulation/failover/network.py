"""Connections of the simulation, as servers and their callers see them.

A connection keeps the order of what it carries, and carries heads as text, as TCP
does. What one end sends lies there until the other end is given it: memory that must
not change before it is sent is read as late as it can be.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast, final

from shoal.engine.environment import Environment
from shoal.engine.transport.listener import Listener, Peer
from shoal.engine.transport.messages.base import Message
from shoal.errors import ExchangeTimeout
from shoal.wire.frames import BadFrame, Head, Link
from tests.simulation.failover.strand import Strand

GREETING_S = 0.5  # that a caller waits in vain, more or less

Address: TypeAlias = tuple[str, int]
Part: TypeAlias = memoryview | bytes
T = TypeVar("T")


@final
@dataclass(eq=False)
class Frame:
    """A frame from one end; the end of the connection is a frame without a head.

    Args:
        text: The head, as text; empty for the end of the connection.
        parts: Parts of the body.
    """

    text: str = ""
    parts: list[Part] = field(default_factory=list[Part])

    def keep(self) -> None:
        """Copies the parts that may change."""
        self.parts = [bytes(part) for part in self.parts]

    def open(self) -> tuple[Head, bytes]:
        """Returns head and body, as they are now."""
        return json.loads(self.text), b"".join(bytes(part) for part in self.parts)


@final
@dataclass(eq=False)
class Wire:
    """One connection; to a server it is channel and socket.

    Args:
        is_commander: The caller knows the run's secret.
        up: On the way to the server.
        down: On the way to who called.
        is_closed: The server has closed it.
        inbox: Memory in which a server wants bodies.
    """

    is_commander: bool = False
    up: deque[Frame] = field(default_factory=deque[Frame])
    down: deque[Frame] = field(default_factory=deque[Frame])
    is_closed: bool = False
    inbox: memoryview | None = None

    @property
    def socket(self) -> Wire:
        """Returns itself: there is no socket beside it."""
        return self

    def fileno(self) -> int:
        """Returns its number, below 0 once it is closed."""
        return -1 if self.is_closed else id(self)

    def keep_output(self) -> None:
        """Copies the frames that wait to be sent."""
        for frame in self.down:
            frame.keep()

    def say(self, head: Head, *body: Part) -> None:
        """Sends a frame of the caller."""
        if not self.is_closed:
            self.up.append(Frame(json.dumps(head), [bytes(part) for part in body]))

    def has_moved(self) -> bool:
        """Returns False: frames arrive at once here, or not at all."""
        return False

    def hang_up(self, arrives: int | None = None) -> None:
        """Closes the caller's end.

        Args:
            arrives: Frames that still do; None for all.
        """
        while arrives is not None and len(self.up) > arrives:
            self.up.pop()
        self.up.append(Frame())

    def lose(self, up: int, down: int) -> None:
        """Breaks the connection; this number of sent frames still arrives."""
        self.hang_up(up)
        self.keep_output()
        while len(self.down) > down:
            self.down.pop()
        self.down.append(Frame())

    def close(self, arrives: int | None = None) -> None:
        """Closes the server's end; see `hang_up`."""
        if self.is_closed:
            return
        self.is_closed = True
        self.up.clear()
        self.keep_output()  # its memory is about to be given back
        while arrives is not None and len(self.down) > arrives:
            self.down.pop()
        self.down.append(Frame())


@final
class SimConnections:
    """Replaces `shoal.engine.transport.listener.Connections` for a server."""

    def __init__(self) -> None:
        self._listener: Listener
        self.is_stopped = False
        """The process does not run now; who calls is not greeted."""
        self.peers: dict[Wire, Peer] = {}
        self.due: Wire | None = None
        """Of which the next frame is taken when the server listens next."""
        self._watched: dict[Wire, Callable[[], None]] = {}
        self._lost: list[tuple[Peer, str]] = []

    def deliver_to(self, listener: Listener) -> None:
        """See `Connections`."""
        self._listener = listener

    @property
    def speaking(self) -> list[Wire]:
        """Connections with a frame for this server."""
        watched = [wire for wire in self._watched if wire.down]
        return [wire for wire in self.peers if wire.up] + watched

    def accept(self, wire: Wire) -> None:
        """Accepts a caller."""
        channel: Any = wire
        self.peers[wire] = Peer(channel=channel, name="simulated")

    def serve(self, timeout_s: float) -> None:
        """Handles the frame that is due."""
        del timeout_s
        wire, self.due = self.due, None
        if wire in self._watched:
            self._watched[wire]()
        elif wire is not None:
            self._hear(self.peers[wire], wire)
        self._drop_lost()

    def _hear(self, peer: Peer, wire: Wire) -> None:
        frame = wire.up.popleft()
        if not frame.text:
            self.drop(peer, "the peer closed the connection")
            return
        head, data = frame.open()
        body = memoryview(bytearray(data))
        if wire.inbox is not None and 0 < len(body) <= len(wire.inbox):
            body = wire.inbox[: len(data)]
            body[:] = data
        try:
            self._listener.on_frame(peer, head, body)
        except BadFrame as error:
            self.drop(peer, f"bad frame: {error}")

    def _drop_lost(self) -> None:
        while self._lost:
            self.drop(*self._lost.pop(0))

    def send(self, peer: Peer, message: Message, *body: Part) -> None:
        """Sends one frame."""
        wire: Any = peer.channel
        if wire.is_closed:
            self._lost.append((peer, "connection lost"))
        else:
            wire.down.append(Frame(json.dumps(message.pack()), [*body]))

    def drop(self, peer: Peer, reason: str) -> None:
        """Closes one connection and tells the listener."""
        wire: Any = peer.channel
        if self.peers.pop(wire, None) is not None:
            wire.close()
            self._listener.on_gone(peer, reason)

    def deliver_again(self, peer: Peer, head: Head) -> None:
        """Gives another listener a peer's first message."""
        try:
            self._listener.on_frame(peer, head, memoryview(b""))
        except BadFrame as error:
            self.drop(peer, f"bad frame: {error}")

    def drop_slow_callers(self) -> None:
        """Does nothing: every caller here introduces itself at once."""

    def watch(self, wire: Wire, hear: Callable[[], None]) -> None:
        """Calls `hear` when a frame is due."""
        self._watched[wire] = hear

    def unwatch(self, wire: Wire) -> None:
        """The inverse of `watch`."""
        del self._watched[wire]

    def close(self) -> None:
        """Closes everything."""
        for wire, peer in list(self.peers.items()):
            peer.role = "dismissed"
            self.drop(peer, "the run is over")
            wire.close()


@final
class SimLink:
    """Replaces `shoal.wire.frames.Link` for a caller.

    Args:
        wire: The connection.
        strand: Who waits for frames with the turn handed back; None for one that
            only listens when a frame is there.
        hears: Called with every head.
    """

    def __init__(
        self,
        wire: Wire,
        strand: Strand | None = None,
        hears: Callable[[Head], None] = lambda _: None,
    ) -> None:
        self.socket, self._strand, self._hears = wire, strand, hears
        self._is_over = False

    @property
    def is_local(self) -> bool:
        """Returns True: there is one machine only."""
        return True

    def send(self, head: Head, *body: Part) -> None:
        """Sends one frame."""
        if self._is_over:
            raise ConnectionResetError("the connection is closed")
        self.socket.say(head, *body)

    def receive(
        self,
        into: memoryview | None = None,
        timeout_s: float | None = None,
        stall_s: float | None = None,
    ) -> tuple[Head, memoryview]:
        """Waits for one frame.

        Raises:
            ConnectionResetError: The server is gone.
        """
        del timeout_s, stall_s
        down = self.socket.down
        if self._strand is not None:
            self._strand.wait(lambda: bool(down))
        frame = down.popleft()
        if not frame.text:
            self._is_over = True
            raise ConnectionResetError("the peer closed the connection")
        head, data = frame.open()
        self._hears(head)
        if into is not None and len(data) <= len(into):
            into[: len(data)] = data
            return head, into[: len(data)]
        return head, memoryview(data)

    @property
    def has_pending(self) -> bool:
        """Returns False: no bytes are buffered here."""
        return False

    def has_input(self, timeout_s: float) -> bool:
        """Whether there is a frame."""
        del timeout_s
        return bool(self.socket.down)

    def close(self, arrives: int | None = None) -> None:
        """Closes the connection; see `Wire.hang_up`."""
        if not self._is_over:
            self._is_over = True
            self.socket.hang_up(arrives)


@final
class Network(Environment):
    """The environment of a simulated run: addresses, and the time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.servers: dict[Address, SimConnections] = {}
        self.strand: Strand | None = None
        """Whose turn it is."""
        self.links: dict[Strand, SimLink] = {}
        """The last of each."""
        self.is_closed = False
        self.version = 0
        """The newest version that any head had."""

    def hears(self, head: Head) -> None:
        """Records the newest version in a head that was sent."""
        self.version = max(self.version, head.get("version", 0))

    def call(self, address: Address, *, is_commander: bool) -> Wire:
        """Calls a server.

        Raises:
            ExchangeTimeout: Nobody listens there.
        """
        server = self.servers.get(address)
        if server is None or server.is_stopped:
            self.now += GREETING_S
            try:
                raise ConnectionRefusedError if self.is_closed else TimeoutError
            except OSError as error:
                raise ExchangeTimeout(f"nobody is there: {error!r}") from None
        wire = Wire(is_commander)
        server.accept(wire)
        return wire

    # ------------------------------------------------------- the environment

    def connect(
        self,
        address: Address,
        secret: bytes,
        *,
        certificate: bytes | None = None,
        timeout_s: float = 60.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Link:
        """Connects a worker."""
        del secret, certificate, timeout_s, meanwhile
        strand = self._running
        strand.wait(lambda: True)
        found = SimLink(self.call(address, is_commander=False), strand, self.hears)
        self.links[strand] = found
        return cast("Link", found)

    @property
    def _running(self) -> Strand:
        if self.strand is None:
            raise RuntimeError("only a worker waits")
        return self.strand

    def clock(self) -> float:
        """The time; it moves only between events, and while a thread sleeps."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Hands the turn back."""
        self.now += seconds
        self._running.wait(lambda: True)

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """Runs the work at once; its result is taken later."""
        found: Future[T] = Future()
        found.set_result(work())
        return found

    def every(
        self, seconds: float, action: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Does nothing: no time passes while a worker computes."""
        del seconds, action
        return nullcontext()
