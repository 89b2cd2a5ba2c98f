"""A worker's connection to one server, or to the standby that replaced it.

This file decides how a worker connects and reconnects. The messages are in
`request_channel.py`, or in `shard_client.py` if the server only has a part of the
vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, final

from shoal.engine.environment import Environment
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.messages.server_to_worker import Elsewhere, Refused, reading
from shoal.engine.transport.messages.shard import Attend
from shoal.engine.transport.messages.worker_to_server import Join, Rejoin
from shoal.errors import ExchangeTimeout, ShoalError
from shoal.wire.frames import Head, Link

CALL_S = 60.0  # time for a server to answer the handshake
TURN_S = 5.0  # the same at one of several addresses
CALL_PAUSE_S = 0.02
GONE_S = 2  # without any packet of a server's node; a worker is given up after 3 s

Answered: TypeAlias = tuple[Head, memoryview]
Introduction: TypeAlias = Join | Rejoin | Attend
Address: TypeAlias = tuple[str, int]
Addresses: TypeAlias = tuple[Address, ...]
"""Address of a server; others are those that its standby may have, if it has one."""


class Fenced(ShoalError):
    """The server refused this process: another has its rank, or its lineage is old."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """A worker's address of the server, and its identity.

    Args:
        address: Address of the server.
        other: Address of its standby, present or later; None if there is none.
        secret: Result of `worker_secret` for the run's secret.
        sizes: Sizes of the vectors.
        hint: The rank that it asks for.
        token: Name of its process for the controller.
        node: Its machine, if it is the server's; other workers tell their address.
        wants_slot: Vectors go through shared memory if both are at one address.
        certificate: Certificate of the server, None without TLS.
        shards: Addresses of the servers that share the vector with that one.
    """

    address: Address
    secret: bytes = field(repr=False)
    sizes: Sizes
    hint: int
    token: str
    other: Address | None = None
    node: str = "localhost"
    wants_slot: bool = True
    certificate: bytes | None = None
    shards: tuple[Addresses, ...] = ()

    @property
    def addresses(self) -> Addresses:
        """Addresses of the server and its standby."""
        return (self.address,) if self.other is None else (self.address, self.other)


@final
class ClientConnection:
    """A connection to one server.

    Args:
        server_address: Address and identity of the worker.
        addresses: Addresses of the server and its standby.
        environment: Clock, and connections.

    Attributes:
        link: The connection, once `call` has returned.
    """

    link: Link

    def __init__(
        self,
        server_address: ServerAddress,
        addresses: Addresses,
        environment: Environment,
    ) -> None:
        self._server_address, self._addresses = server_address, list(addresses)
        self._environment = environment

    def call(self, message: Introduction, *, can_map: bool) -> Answered:
        """Connects to the server that leads, and introduces the worker.

        Several addresses are tried in turn: a standby redirects it, and after a lost
        server no handshake is answered until another one has started.

        Args:
            message: The first message.
            can_map: Vectors may go through shared memory.

        Raises:
            ConnectionError: The server closed the connection.
            ExchangeTimeout: No handshake was answered at any address.
            Fenced: The server refuses this worker.
        """
        has_other, refused = len(self._addresses) > 1, 0
        clock = self._environment.clock
        until = clock() + CALL_S
        while True:
            try:
                limit_s = TURN_S if has_other else CALL_S
                answer, body = self._call_once(message, limit_s, can_map=can_map)
                if answer["kind"] != Elsewhere.kind:
                    break
                self.link.close()
                refused = 0
            except (ConnectionError, ExchangeTimeout) as error:
                is_refused = isinstance(error.__context__, ConnectionRefusedError)
                refused = refused + 1 if is_refused else 0
                is_over = clock() > until or refused == len(self._addresses)
                if is_over or not has_other:  # refused everywhere: the run is over
                    raise
            self._turn()
            self._environment.sleep(CALL_PAUSE_S)
        if answer["kind"] == Refused.kind:
            self.link.close()
            with reading(answer["kind"]):
                refused = Refused.parse(answer)
            raise fenced(refused)
        return answer, body

    def _call_once(
        self, message: Introduction, limit_s: float, *, can_map: bool
    ) -> Answered:
        server_address = self._server_address
        self.link = self._environment.connect(
            self._addresses[0],
            server_address.secret,
            certificate=server_address.certificate,
            timeout_s=limit_s,
        )
        try:
            is_local = self.link.is_local
            if len(self._addresses) > 2 and not is_local:
                # The server's node may vanish without a word while its standby lives
                # elsewhere. A worker that went on waiting would count as hung.
                self.link.watch_host(GONE_S)
            if isinstance(message, Join) and not is_local:
                message = message.replace(node=self.link.own_host)
            wants_slot = can_map and server_address.wants_slot and is_local
            self.link.send(message.replace(wants_slot=wants_slot).pack())
            return self.link.receive()
        except BaseException:
            self.link.close()
            raise

    def call_again(
        self, error: ConnectionError, message: Introduction, *, can_map: bool
    ) -> Answered:
        """Waits for the standby to lead after the server was lost.

        Args:
            error: The error that showed it.
            message: The first message.
            can_map: Vectors may go through shared memory.

        Raises:
            ConnectionError: There is no standby, or it is gone as well.
            Fenced: The server refuses this worker.
        """
        self.link.close()
        if len(self._addresses) < 2:
            raise error
        self._turn()
        try:
            return self.call(message, can_map=can_map)
        except ExchangeTimeout:
            raise error from None

    def _turn(self) -> None:
        """Goes on to the next address; the last one follows after all others."""
        self._addresses.append(self._addresses.pop(0))

    def close(self) -> None:
        """Closes the connection, if there is one."""
        link: Link | None = getattr(self, "link", None)
        if link is not None:
            link.close()


def fenced(refused: Refused) -> Fenced:
    """Returns the error for a refusal."""
    return Fenced(f"the server refused this worker: {refused.reason}")
