"""Peers that know the secret of a run and send malformed messages."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

from shoal.engine.transport.messages.base import Message
from shoal.engine.transport.server_connection import ServerConnection
from shoal.wire.frames import HEADER, MAGIC, Head, pack_head

SECRET = b"s" * 32
PATIENCE_S = 20


@final
class Raw(Message):
    """Sends any head.

    Args:
        head: The head.
    """

    head: Head

    def pack(self) -> Head:
        return self.head


def frame(head: Any, body: bytes = b"", *, size: int | None = None) -> bytes:
    """Packs a frame with any head.

    Args:
        head: Any JSON, or text that stands where JSON should.
        body: Body of the frame.
        size: Size of the body in the header, if it is a wrong one.
    """
    if isinstance(head, dict) and size is None:
        return pack_head(head, len(body)) + body
    words = (head if isinstance(head, str) else json.dumps(head)).encode()
    told = len(body) if size is None else size
    return HEADER.pack(MAGIC, len(words), told) + words + body


@contextmanager
def saying(*frames: bytes, secret: bytes = SECRET) -> Iterator[tuple[str, int]]:
    """A server that shakes hands with its first caller, sends this, reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_say, args=(listener, secret, frames))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            with suppress(OSError):  # nobody called
                socket.create_connection(listener.getsockname(), 1).close()
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


def _say(listener: socket.socket, secret: bytes, frames: tuple[bytes, ...]) -> None:
    connection, _ = listener.accept()
    channel = ServerConnection(connection, secret, max_body_bytes=0)
    with connection, suppress(ConnectionError):
        while not channel.is_proven:
            select.select([connection], [], [], PATIENCE_S)
            channel.read()
        connection.setblocking(True)
        connection.settimeout(PATIENCE_S)
        connection.sendall(b"".join(frames))
        while connection.recv(1 << 16):
            pass
