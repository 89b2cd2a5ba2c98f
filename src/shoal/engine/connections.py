"""The server's sockets: one thread, one selector, every peer non-blocking.

This file decides who is listened to and when somebody counts as gone; what is
said lies with `server.py`.
"""

from __future__ import annotations

import selectors
import socket
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, final

from shoal.engine.bulk import Bulk
from shoal.engine.patience import Patience
from shoal.engine.slots import Slot
from shoal.engine.wire import GREETING_TIMEOUT_S, BadFrame, Channel, Head

MAX_CONNECTIONS = 4096


@dataclass
class Peer:
    """One connection and what is known of its other end."""

    channel: Channel
    name: str
    role: str = ""
    rank: int = -1
    incarnation: int = 0
    bulk: Bulk | None = None
    offer: Slot | None = None
    head: Head = field(default_factory=dict[str, Any])
    patience: Patience = field(default_factory=Patience)
    is_hung: bool = False

    def the_bulk(self) -> Bulk:
        """Where its vectors lie.

        Raises:
            BadFrame: It has not said yet whether it has mapped its slot.
        """
        if self.bulk is None:
            raise BadFrame("a vector before the slot was settled")
        return self.bulk


class Listener(ABC):
    """Whoever is told what peers say."""

    @abstractmethod
    def on_frame(self, peer: Peer, head: Head, body: memoryview) -> None:
        """A peer that knows the secret says something.

        Raises:
            BadFrame: It is not what a peer of ours says; its connection is closed.
        """

    @abstractmethod
    def on_gone(self, peer: Peer, reason: str) -> None:
        """A peer's connection is closed."""


@final
class Connections:
    """All connections of a server.

    Args:
        socket_: Bound and listening; it is owned from now on.
        secret: Of the run.
        max_body_bytes: Larger frames are refused.
        listener: Whom to tell.
    """

    def __init__(
        self,
        socket_: socket.socket,
        secret: bytes,
        max_body_bytes: int,
        listener: Listener,
    ) -> None:
        self._socket, self._secret, self._limit = socket_, secret, max_body_bytes
        self._listener = listener
        self._peers: dict[int, Peer] = {}
        self._lost: list[tuple[Peer, str]] = []
        socket_.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(socket_, selectors.EVENT_READ, None)

    def serve(self, timeout_s: float) -> None:
        """Hears whoever speaks, for at most `timeout_s` if nobody does."""
        for key, mask in self._selector.select(timeout_s):
            peer: Peer | None = key.data
            if peer is None:
                self._accept()
            elif self._peers.get(key.fd) is peer:
                self._attend(peer, mask)
            while self._lost:
                self.drop(*self._lost.pop(0))

    def drop_strangers(self) -> None:
        """Closes connections that did not prove in time that they know the secret."""
        late = time.monotonic() - GREETING_TIMEOUT_S
        for peer in list(self._peers.values()):
            if not peer.channel.is_proven and peer.channel.accepted < late:
                self.drop(peer, "no proof of the secret in time")

    def send(self, peer: Peer, head: Head, *body: memoryview | bytes) -> None:
        """Sends one frame, or finds that its peer is gone.

        A peer is dropped only between two messages: whoever is gone must not be
        mistaken for the sender of the message that is answered, nor change the
        order of what is carried out.
        """
        try:
            peer.channel.send(head, *body)
        except OSError as error:
            self._lost.append((peer, str(error) or "connection lost"))
            return
        self._send_rest(peer)

    def drop(self, peer: Peer, reason: str) -> None:
        """Closes one connection and says so."""
        connection = peer.channel.socket
        if self._peers.pop(connection.fileno(), None) is None:
            return
        self._selector.unregister(connection)
        peer.channel.close()
        for bulk in (peer.bulk, peer.offer):
            if bulk is not None:
                bulk.close()
        peer.bulk = peer.offer = None
        self._listener.on_gone(peer, reason)

    def close(self) -> None:
        """Closes everything, and gives every slot back."""
        for peer in list(self._peers.values()):
            peer.role = "dismissed"
            self.drop(peer, "the run is over")
        self._selector.close()
        self._socket.close()

    def _accept(self) -> None:
        try:
            connection, address = self._socket.accept()
        except OSError:
            return
        if len(self._peers) >= MAX_CONNECTIONS:
            connection.close()
            return
        channel = Channel(connection, self._secret, max_body_bytes=self._limit)
        peer = Peer(channel=channel, name=str(address))
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._send_rest(peer)

    def _attend(self, peer: Peer, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                peer.channel.flush()
            if mask & selectors.EVENT_READ:
                for head, body in peer.channel.read():
                    self._listener.on_frame(peer, head, body)
        except BadFrame as error:
            self.drop(peer, f"bad frame: {error}")
        except OSError as error:
            self.drop(peer, str(error) or "connection lost")
        else:
            self._send_rest(peer)

    def _send_rest(self, peer: Peer) -> None:
        """Watches for room in the socket only while something waits."""
        connection = peer.channel.socket
        if connection.fileno() < 0:
            return
        try:
            peer.channel.flush()
        except OSError as error:
            self._lost.append((peer, str(error) or "connection lost"))
            return
        wanted = selectors.EVENT_READ
        if peer.channel.has_output:
            wanted |= selectors.EVENT_WRITE
        if self._selector.get_key(connection).events != wanted:
            self._selector.modify(connection, wanted, peer)
