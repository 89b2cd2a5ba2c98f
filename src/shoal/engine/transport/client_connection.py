"""A worker's line to one server, whichever of two processes that is.

This file decides how a worker comes to a server and back to it. What is said there lies
in `request_channel.py`, or in `shard_client.py` where the server only has a part of the
vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

from shoal.engine.environment import Environment
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.messages.server_to_worker import Elsewhere, Refused, reading
from shoal.engine.transport.messages.shard import Attend
from shoal.engine.transport.messages.worker_to_server import Join, Rejoin
from shoal.errors import ExchangeTimeout, ShoalError
from shoal.wire.frames import Head, Link

CALL_S = 60.0  # until somebody greets
TURN_S = 5.0  # the same at one of two addresses
CALL_PAUSE_S = 0.02

Answered: TypeAlias = tuple[Head, memoryview]
Introduction: TypeAlias = Join | Rejoin | Attend
Address: TypeAlias = tuple[str, int]
Addresses: TypeAlias = tuple[Address, ...]
"""Where a server listens; the second is that of its standby, if it may have one."""


class Fenced(ShoalError):
    """The server refused this process: another one has its place, or its past."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """Who a worker says it is when it joins.

    Args:
        address: Of the server.
        other: Where a standby listens, or will; None where there is none.
        secret: What `worker_secret` made of the run's.
        sizes: Of the vectors.
        hint: The rank it wishes for.
        token: Names its process to the controller.
        node: Its machine, where that is the server's; others tell their address.
        wants_slot: Vectors through shared memory, where both are at one address.
        certificate: Of the server, None where it does not use TLS.
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
        """Of the server."""
        return (self.address,) if self.other is None else (self.address, self.other)


@final
class ClientConnection:
    """A connection to one server.

    Args:
        seat: Who calls.
        addresses: Of the server.
        environment: Time, and connections.

    Attributes:
        link: The connection, once `call` has returned.
    """

    link: Link

    def __init__(
        self, seat: ServerAddress, addresses: Addresses, environment: Environment
    ) -> None:
        self._seat, self._addresses = seat, list(addresses)
        self._environment = environment

    def call(self, message: Introduction, *, can_map: bool) -> Answered:
        """Calls whoever leads, and says who this is.

        With two addresses it tries them in turn: a standby tells to call elsewhere, and
        where a server was lost nobody greets until another one has started.

        Args:
            message: What to say.
            can_map: Vectors may go through shared memory.

        Raises:
            ConnectionError: The server hung up.
            ExchangeTimeout: Nobody greets at any address.
            Fenced: This worker is not wanted.
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
            except (ConnectionError, ExchangeTimeout) as error:
                is_refused = isinstance(error.__context__, ConnectionRefusedError)
                refused = refused + 1 if is_refused else 0
                is_over = clock() > until or refused == len(self._addresses)
                if is_over or not has_other:  # refused everywhere: the run is over
                    raise
            self._addresses.reverse()
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
        seat = self._seat
        self.link = self._environment.connect(
            self._addresses[0],
            seat.secret,
            certificate=seat.certificate,
            timeout_s=limit_s,
        )
        try:
            is_local = self.link.is_local
            if isinstance(message, Join) and not is_local:
                message = replace(message, node=self.link.own_host)
            wants_slot = can_map and seat.wants_slot and is_local
            self.link.send(replace(message, wants_slot=wants_slot).pack())
            return self.link.receive()
        except BaseException:
            self.link.close()
            raise

    def call_again(
        self, error: ConnectionError, message: Introduction, *, can_map: bool
    ) -> Answered:
        """The server is gone: waits for its standby to lead.

        Args:
            error: How that was found.
            message: What to say.
            can_map: Vectors may go through shared memory.

        Raises:
            ConnectionError: There is no standby, or it is gone as well.
            Fenced: This worker is not wanted.
        """
        self.link.close()
        if len(self._addresses) < 2:
            raise error
        self._addresses.reverse()
        try:
            return self.call(message, can_map=can_map)
        except ExchangeTimeout:
            raise error from None

    def close(self) -> None:
        """Closes the connection, if there is one."""
        link: Link | None = getattr(self, "link", None)
        if link is not None:
            link.close()


def fenced(refused: Refused) -> Fenced:
    """What a refusal raises."""
    return Fenced(f"the server refused this worker: {refused.reason}")
