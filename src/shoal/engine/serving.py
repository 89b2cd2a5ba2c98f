"""A server's process. It imports no more than it serves with: others wait for it."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass

from shoal.engine.server import Server, ServerSpec


@dataclass(frozen=True, kw_only=True)
class ServeInherited:
    """A server's spec and the inherited socket it listens on."""

    spec: ServerSpec
    descriptor: int


def serve(given: ServeInherited) -> None:
    """Runs a server process until its run is over, then ends the process."""
    listener = socket.socket(fileno=given.descriptor)
    Server(given.spec, listener).run()
    sys.exit(0)
