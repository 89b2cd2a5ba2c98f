"""Sockets that listen at a port of the user's choice, or at the next free one."""

from __future__ import annotations

import errno
import socket

TRIES = 16
"""Ports that are tried, as Spark does (`spark.port.maxRetries`)."""


def listen(host: str, port: int = 0, backlog: int | None = None) -> socket.socket:
    """Listens at the first free port.

    Args:
        host: Address of this machine.
        port: First port to try; 0: any that is free.
        backlog: Callers that may wait; default None: the system's own number.

    Raises:
        OSError: None of the ports is free, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in range(port, port + TRIES - 1) if port else ():
        try:
            return socket.create_server((host, number), family=family, backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    last = port + TRIES - 1 if port else 0
    return socket.create_server((host, last), family=family, backlog=backlog)
