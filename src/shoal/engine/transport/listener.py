"""The sockets of a server: one thread, one selector, every peer non-blocking.

This file decides which peers are read and when a peer counts as gone; the messages are
handled in `engine/server/primary.py`. Callers that have not proved the secret yet are
in `callers.py`.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from shoal.engine.environment import SYSTEM
from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.callers import UnverifiedCallers
from shoal.engine.transport.codec import ConnectionCodec
from shoal.engine.transport.messages.base import Message
from shoal.engine.transport.server_connection import ServerConnection
from shoal.wire.frames import GREETING_TIMEOUT_S, BadFrame, Head, Link

MAX_CONNECTIONS = 4096
MAX_CALLERS = 256
OURS = ("controller", "standby", "shard", "primary")  # read even with waiting output
MOST_REASON = 300  # characters of the reason for a closed connection


@dataclass(eq=False)
class Peer:
    """One connection, and the state of its other end.

    Args:
        channel: The connection.
        name: Address of the peer.
        role: Role that the peer introduced itself with, empty before.
        rank: Rank of a worker.
        incarnation: Incarnation of a worker, or generation of a standby.
        offer: Shared memory that a worker has not mapped yet.
        vector_codec: Codec of a worker's vectors, None without encoding.
        is_settled: A worker has reported whether it mapped the memory.
        is_asking: It has sent a request on this connection, and has no answer yet.
        events: Events that the selector waits for.
        is_hung: It was dropped because it was silent.
        is_refused: It proved the secret, and was refused.
    """

    channel: ServerConnection
    name: str
    role: str = ""
    rank: int = -1
    incarnation: int = 0
    offer: Buffers | None = None
    vector_codec: ConnectionCodec | None = None
    is_settled: bool = False
    is_asking: bool = False
    events: int = selectors.EVENT_READ
    is_hung: bool = False
    is_refused: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether its connection is closed."""
        return self.channel.socket.fileno() < 0


class Listener(ABC):
    """The receiver of peers' messages."""

    @abstractmethod
    def on_frame(self, peer: Peer, head: Head, body: memoryview) -> None:
        """Handles a message of a peer that knows the secret.

        Raises:
            BadFrame: The peer does not follow the protocol; its connection is closed.
        """

    @abstractmethod
    def on_gone(self, peer: Peer, reason: str) -> None:
        """Handles a peer's closed connection."""


@final
class Connections:
    """All connections of a server.

    Args:
        socket_: Bound and listening socket; it is owned from now on.
        secret: The run's secret.
        max_body_bytes: Larger frames are refused.
        context: Context of TLS, None without it.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        socket_: socket.socket,
        secret: bytes,
        max_body_bytes: int,
        context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = SYSTEM.clock,
    ) -> None:
        self._clock = clock
        self._socket, self._secret, self._limit = socket_, secret, max_body_bytes
        self._context = context
        self._listener: Listener
        self._peers: dict[int, Peer] = {}
        self._callers: dict[int, Peer] = {}
        self._lost: list[tuple[Peer, str]] = []
        # In order: they have bytes that no selector reports.
        self._eager: dict[Peer, None] = {}
        socket_.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._unverified = UnverifiedCallers(self._selector, clock)
        self._unverified.selector.register(socket_, selectors.EVENT_READ, None)

    def deliver_to(self, listener: Listener) -> None:
        """Sets the receiver of messages, before any peer is served.

        A standby that takes over hands its connections to the server it becomes.
        """
        self._listener = listener

    def serve(self, timeout_s: float) -> None:
        """Serves peers with input; waits for at most `timeout_s` if there are none.

        Callers come last, and only while they have not used up their time.
        """
        # `_hear` may add a peer again: it has its next turn after all others.
        eager, self._eager = self._eager, {}
        wait_s = self._unverified.wait_s(0.0 if eager else timeout_s)
        found = self._selector.select(wait_s)
        for peer in eager:
            if self._peers.get(peer.channel.socket.fileno()) is peer:
                self._hear(peer, selectors.EVENT_READ)
        has_callers = False
        for key, mask in found:
            if key.data is None:
                has_callers = True
            elif not isinstance(key.data, Peer):  # see `watch`
                key.data()
            elif self._peers.get(key.fd) is key.data and key.data not in eager:
                self._hear(key.data, mask)
        if has_callers:
            self._serve_callers()
        self._drop_lost()

    def _serve_callers(self) -> None:
        for key, mask in self._unverified.take_turn():
            if key.data is None:
                self._accept()
            elif self._callers.get(key.fd) is key.data:
                self._hear(key.data, mask)

    def adopt(self, link: Link, role: str) -> Peer:
        """Serves a connection that this end made like an accepted one.

        Args:
            link: The connection; it is owned from now on.
            role: Role of the other end.
        """
        channel = ServerConnection.of(*link.give_up_socket(), self._secret, self._limit)
        peer = Peer(channel=channel, name=role, role=role)
        self._peers[channel.socket.fileno()] = peer
        self._selector.register(channel.socket, selectors.EVENT_READ, peer)
        self._eager[peer] = None  # bytes may have come with the handshake
        return peer

    def watch(self, socket_: socket.socket, hear: Callable[[], None]) -> None:
        """Calls `hear` in `serve` whenever a socket of another owner has input."""
        self._selector.register(socket_, selectors.EVENT_READ, hear)

    def unwatch(self, socket_: socket.socket) -> None:
        """The inverse of `watch`."""
        self._selector.unregister(socket_)

    def _hear(self, peer: Peer, mask: int) -> None:
        # Its events may have changed since the selector was asked.
        self._attend(peer, mask & peer.events)
        self._drop_lost()

    def _drop_lost(self) -> None:
        while self._lost:
            self.drop(*self._lost.pop(0))

    def drop_slow_callers(self) -> None:
        """Closes connections of callers that were too slow to prove the secret.

        Those that proved it must introduce themselves in time as well.
        """
        late = self._clock() - GREETING_TIMEOUT_S
        for peer in list(self._callers.values()):
            if peer.channel.since < late:
                what = "word" if peer.channel.is_proven else "proof of the secret"
                self.drop(peer, f"no {what} in time")

    def send(self, peer: Peer, message: Message, *body: memoryview | bytes) -> None:
        """Sends one frame, or finds that its peer is gone.

        A peer is dropped only between two messages: a lost peer must not be mistaken
        for the sender of the message that is answered, nor change the order of effects.
        """
        try:
            peer.channel.send(message.pack(), *body)
        except OSError as error:
            self._lost.append((peer, str(error) or "connection lost"))
            return
        self._send_rest(peer)

    def drop(self, peer: Peer, reason: str) -> None:
        """Closes one connection and tells the receiver."""
        connection = peer.channel.socket
        descriptor = connection.fileno()
        if self._peers.pop(descriptor, None) is None:
            return  # dropped before: a closed socket has the descriptor -1
        self._selector_of(peer).unregister(connection)
        self._callers.pop(descriptor, None)
        peer.channel.close()
        if peer.offer is not None:
            peer.offer.close()
            peer.offer = None
        self._listener.on_gone(peer, reason[:MOST_REASON])

    def close(self) -> None:
        """Closes everything, and gives every slot back."""
        for peer in list(self._peers.values()):
            # Its loss is no event: a worker's role would make one.
            peer.role = "dismissed"
            self.drop(peer, "the run is over")
        self._unverified.close()
        self._selector.close()
        self._socket.close()

    def _selector_of(self, peer: Peer) -> selectors.BaseSelector:
        is_caller = peer.channel.socket.fileno() in self._callers
        return self._unverified.selector if is_caller else self._selector

    def _accept(self) -> None:
        try:
            connection, address = self._socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # Descriptors have run out. The caller stays in the queue and would wake
                # this loop again at once.
                self._make_room(len(self._callers) - 1)
            return
        self._make_room(MAX_CALLERS - 1)
        try:
            if len(self._peers) >= MAX_CONNECTIONS:
                raise ConnectionRefusedError("too many connections")
            channel = ServerConnection(
                connection,
                self._secret,
                max_body_bytes=self._limit,
                context=self._context,
                clock=self._clock,
            )
        except OSError:
            connection.close()
            return
        peer = Peer(channel=channel, name=str(address))
        descriptor = channel.socket.fileno()
        self._peers[descriptor] = self._callers[descriptor] = peer
        self._unverified.selector.register(channel.socket, selectors.EVENT_READ, peer)

    def _make_room(self, most: int) -> None:
        """Drops the oldest caller; one that knows the secret comes last.

        Processes of the run introduce themselves at once, so they are seldom the
        oldest.
        """
        while len(self._callers) > max(0, most):
            waiting = list(self._callers.values())
            unproven = [peer for peer in waiting if not peer.channel.is_proven]
            self.drop((unproven or waiting)[0], "too many callers without proof")

    def _admit(self, peer: Peer) -> None:
        """A caller has a role now."""
        connection = peer.channel.socket
        self._unverified.selector.unregister(connection)
        del self._callers[connection.fileno()]
        self._selector.register(connection, peer.events, peer)
        peer.channel.admit()

    def _attend(self, peer: Peer, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                peer.channel.flush()
            if mask & selectors.EVENT_READ or peer.channel.is_shaking_hands:
                for head, body in peer.channel.read():
                    self._deliver(peer, head, body)
        except BadFrame as error:
            self.drop(peer, f"bad frame: {error}")
        except OSError as error:
            self.drop(peer, str(error) or "connection lost")
        else:
            self._send_rest(peer)

    def _deliver(self, peer: Peer, head: Head, body: memoryview) -> None:
        self._listener.on_frame(peer, head, body)
        if peer.role and peer.channel.socket.fileno() in self._callers:
            self._admit(peer)

    def deliver_again(self, peer: Peer, head: Head) -> None:
        """Gives a peer's first message to another receiver."""
        try:
            self._deliver(peer, head, memoryview(b""))
        except BadFrame as error:
            self.drop(peer, f"bad frame: {error}")
        else:
            self._send_rest(peer)

    def _send_rest(self, peer: Peer) -> None:
        """Watches for room in the socket only while output waits.

        A worker that does not read its answers is not read until it does. Other peers
        are read at the next turn if they have bytes that no selector reports.
        """
        connection = peer.channel.socket
        if connection.fileno() < 0:
            return
        try:
            peer.channel.flush()
        except OSError as error:
            self._lost.append((peer, str(error) or "connection lost"))
            return
        wanted = selectors.EVENT_READ
        if peer.channel.is_congested and peer.role not in OURS:
            wanted = 0
        if peer.channel.has_output:
            wanted |= selectors.EVENT_WRITE
        if peer.events != wanted:
            self._selector_of(peer).modify(connection, wanted, peer)
            peer.events = wanted
        if wanted & selectors.EVENT_READ and peer.channel.has_input:
            self._eager[peer] = None
        else:
            self._eager.pop(peer, None)
