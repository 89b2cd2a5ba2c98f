"""A server's process. It imports no more than it serves with: others wait for it."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, replace

from shoal.engine.machine import ServerSpec
from shoal.engine.server import Server, open_connections
from shoal.engine.standby import Standby, StandbySpec
from shoal.errors import ShoalError


@dataclass(frozen=True, kw_only=True)
class ServeInherited:
    """What to serve, or to follow, and the inherited socket it listens on."""

    spec: ServerSpec | StandbySpec
    descriptor: int


def serve(given: ServeInherited) -> None:
    """Runs a server process until its run is over, then ends the process."""
    listener = socket.socket(fileno=given.descriptor)
    if isinstance(given.spec, ServerSpec):
        spec = replace(given.spec, is_private=True)
        Server(spec, open_connections(spec, listener)).run()
        sys.exit(0)
    try:
        standby = Standby.open(given.spec, listener)
    except (OSError, ShoalError) as error:
        sys.exit(f"this standby could not follow its server: {error}")
    standby.run()
    sys.exit(0)
