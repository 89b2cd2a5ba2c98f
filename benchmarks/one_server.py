"""A server in a process of its own, and clients that do nothing but exchange."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.ledger import Piece
from shoal.engine.server.main import ServeInherited
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.transport.segments import LONG, InPairs, in_turn
from shoal.engine.worker.client import ServerClient
from shoal.launchers.base import Role
from shoal.launchers.process import ProcessLauncher
from shoal.strategies import get
from shoal.vectors import Vector
from shoal.wire.frames import Link
from shoal.wire.tls import Identity


@contextmanager
def one_server(
    size: int,
    strategy: str,
    *,
    clients: int = 1,
    host: str = "127.0.0.1",
    identity: Identity | None = None,
) -> Generator[ServerAddress]:
    """Serves until the context ends; yields the address and identity for clients.

    Args:
        size: Floats of the vector.
        strategy: Name of the strategy.
        clients: Number of clients that will join.
        host: Address on which it listens.
        identity: Identity for TLS, None for none.
    """
    listener = socket.create_server((host, 0), backlog=128)
    launcher = ProcessLauncher(shared=[listener.fileno()])
    sizes = Sizes(vector=size, statistics=0, metrics=4, digest="")
    rules = Rules(
        epoch_rows=(1 << 40,), first_epoch=0, epochs=1, workers=clients, batch=1,
        window=1, is_rounds=False, exchanges_gradients=False, is_elastic=True,
    )  # fmt: skip
    secret = secrets.token_bytes(32)
    spec = ServerSpec(
        secret=secret, strategy=get(strategy), rules=rules, sizes=sizes,
        vector=np.zeros(size, "f4"), statistics=np.zeros(0, "f4"), identity=identity,
    )  # fmt: skip
    certificate = None if identity is None else identity.certificate
    address = listener.getsockname()
    try:
        server = launcher.start(
            Role(target="shoal.engine.server.main:serve", name="server")
        )
        launcher.give(server, ServeInherited(spec=spec, descriptor=listener.fileno()))
        control = Link(address, secret, certificate=certificate)
        control.send({"kind": "control"})
        control.send({"kind": "proceed", "epoch": 0})
        yield ServerAddress(
            address=address, secret=secret, sizes=sizes, hint=-1, token="",
            certificate=certificate,
        )  # fmt: skip
        control.close()
    finally:
        launcher.close()
        listener.close()


class Client:
    """A worker without a model.

    Args:
        server_address: Address of a server, and identity for joining.
        strategy: Name of that server's strategy.
        has_slot: Vectors through shared memory.
        has_cores: It may use all cores, like a worker that is alone on its machine.
    """

    def __init__(
        self,
        server_address: ServerAddress,
        strategy: str,
        *,
        has_slot: bool = True,
        has_cores: bool = False,
    ) -> None:
        self._pairs = InPairs(LONG)
        self._client = ServerClient(
            replace(server_address, wants_slot=has_slot),
            get(strategy),
            spread=self._pairs if has_cores else in_turn,
        )
        self.local: Vector = np.ones(server_address.sizes.vector, "f4")
        self._nothing = np.zeros(0, "f4")
        self._client.ready()

    def exchange(self) -> None:
        """One message, and its reply."""
        client = self._client
        while not client.progress.pieces:
            client.need()
        piece: Piece = client.progress.pieces.popleft()
        client.push_weights(self.local, self._nothing, [piece], 1)

    def leave(self) -> None:
        """Closes the connection."""
        self._client.leave()
        self._pairs.close()
