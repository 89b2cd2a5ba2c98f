"""A server's process. It imports no more than it serves with: others wait for it."""

from __future__ import annotations

import gc
import os
import socket
import sys
from dataclasses import dataclass, replace
from functools import partial

from shoal.engine.server.base import open_connections
from shoal.engine.server.primary import Primary
from shoal.engine.server.shard import Shard
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.errors import ShoalError
from shoal.launchers.titles import title


@dataclass(frozen=True, kw_only=True)
class ServeInherited:
    """What to serve, or to follow, and the inherited socket it listens on.

    Args:
        spec: Of a server, or of a standby.
        descriptor: Of the socket.
        is_kept: The process will be given another run when this one is over.
        name: Of the server, as it is called when it leads.
        run: Id of the run, empty for one that has none.
    """

    spec: ServerSpec | StandbySpec
    descriptor: int
    is_kept: bool = False
    name: str = "server"
    run: str = ""


def serve(given: ServeInherited) -> None:
    """Runs a server process until its run is over, then ends it or lets it wait."""
    # A copy: who serves closes it, and there may be other runs.
    listener = socket.socket(fileno=os.dup(given.descriptor))
    lead = partial(title, given.name, given.run)
    if isinstance(given.spec, ServerSpec):
        lead()
        spec = replace(given.spec, is_private=True)
        kind = Shard if spec.shard else Primary
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
