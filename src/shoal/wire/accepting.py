"""The handshake with a caller, for a side that waits for one caller at a time.

Each caller has a key of its own, so that its name need not travel before it has proved
that it knows the key. The server of a run, which serves all of its callers in one
thread, has another form of this in `engine/transport/server_connection.py`.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping

from shoal.wire import tls
from shoal.wire.frames import GREETING_TIMEOUT_S, BadFrame, Link, configure
from shoal.wire.handshake import HELLO_BYTES, TAG_BYTES, Callee, NoProof


def accept(
    connection: socket.socket,
    keys: Mapping[str, bytes],
    context: ssl.SSLContext | None = None,
    max_body_bytes: int = 0,
) -> tuple[str, Link]:
    """Accepts a caller that proves one of these keys; closes any other connection.

    Args:
        connection: Accepted socket; it is owned from now on.
        keys: Name of a caller -> its key.
        context: Context of TLS, None without it.
        max_body_bytes: Larger frames of the caller are refused; default 0: heads only.

    Returns:
        The name of the caller, and the connection for frames.

    Raises:
        BadFrame: It knows none of the keys.
        OSError: It closed the connection, has no TLS, or is too slow.
    """
    until = time.monotonic() + GREETING_TIMEOUT_S
    try:
        connection.settimeout(GREETING_TIMEOUT_S)
        configure(connection)
        if context is not None:
            connection = tls.wrap_callee(connection, context)
            connection.do_handshake()
        name, callee, answer = _answer(_exactly(connection, HELLO_BYTES, until), keys)
        connection.sendall(answer)
        callee.check(_exactly(connection, TAG_BYTES, until))
    except NoProof as error:
        connection.close()
        raise BadFrame(str(error)) from None
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    return name, Link.accepted(connection, max_body_bytes)


def _answer(hello: bytes, keys: Mapping[str, bytes]) -> tuple[str, Callee, bytes]:
    for name, key in keys.items():
        callee = Callee(key)
        try:
            return name, callee, callee.answer(hello)
        except NoProof:
            continue
    raise NoProof("the caller knows none of the keys that are open")


def _exactly(connection: socket.socket, count: int, until: float) -> bytes:
    """Reads bytes until a deadline, which a caller that sends one at a time misses."""
    data = bytearray()
    while len(data) < count:
        connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the caller left in the handshake")
        data += part
    return bytes(data)
