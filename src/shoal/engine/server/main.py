"""A server's process. It imports only what serving needs: others wait for it."""

from __future__ import annotations

import gc
import os
import socket
import sys
from dataclasses import dataclass, replace
from functools import partial

from shoal.engine.server.base import open_connections
from shoal.engine.server.primary import Primary
from shoal.engine.server.shard import ShardServer
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.errors import ShoalError
from shoal.launchers.titles import title


@dataclass(frozen=True, kw_only=True)
class ServeInherited:
    """A spec, and the inherited socket for it.

    Args:
        spec: Spec of a server, or of a standby.
        descriptor: Descriptor of the socket.
        is_kept: The process gets another run when this one is over.
        name: Name of the server when it leads.
        run: Id of the run, empty if it has none.
    """

    spec: ServerSpec | StandbySpec
    descriptor: int
    is_kept: bool = False
    name: str = "server"
    run: str = ""


def serve(given: ServeInherited) -> None:
    """Runs a server until its run is over, then ends the process or returns."""
    # A copy: the server closes it, and there may be other runs.
    listener = socket.socket(fileno=os.dup(given.descriptor))
    lead = partial(title, given.name, given.run)
    if isinstance(given.spec, ServerSpec):
        lead()
        spec = replace(given.spec, is_private=True)
        kind = ShardServer if spec.shard else Primary
        kind(spec, open_connections(spec, listener)).run()
    else:
        title(given.name.replace("server", "standby"), given.run)
        try:
            standby = Standby.open(given.spec, listener)
        except (OSError, ShoalError) as error:
            sys.exit(f"this standby could not follow its server: {error}")
        standby.run(lead)
    if not given.is_kept:
        sys.exit(0)
    gc.collect()
