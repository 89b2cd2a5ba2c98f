"""A worker's clients of the servers that have a part of the vector and order nothing.

Each of them gets its part of a message before the ordering server gets the message, or
at the same time; with the answer of that one, each sends its part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import final

import numpy as np

from shoal.engine.environment import Environment
from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.client_connection import ClientConnection, ServerAddress
from shoal.engine.transport.codec import connection_codec
from shoal.engine.transport.fields import exactly
from shoal.engine.transport.messages.server_to_worker import reading
from shoal.engine.transport.messages.shard import (
    OF_SHARD,
    AnswerPart,
    Attend,
    Kept,
    MessagePart,
    OfShard,
)
from shoal.engine.transport.partition import cuts, sizes_of
from shoal.strategies.base import Strategy
from shoal.vectors import Vector


@final
class ShardClient:
    """A worker's client of one of them.

    Args:
        connection: Connection to the server.
        buffers: Memory of its part of messages and answers.
        strategy: Strategy of the run.
        me: Returns the worker's introduction, as the ordering server gave it.
    """

    def __init__(
        self,
        connection: ClientConnection,
        buffers: Buffers,
        strategy: Strategy,
        me: Attend,
    ) -> None:
        self._connection, self._buffers, self._me = connection, buffers, me
        self._strategy = strategy
        self._staged = self._taken = 0

    def attend(self) -> Vector:
        """Joins there; returns its part of the center."""
        answer, body = self._connection.call(self._me, can_map=False)
        self._settle()
        with reading(answer["kind"]):
            size = 4 * self._buffers.sizes.vector
            return np.frombuffer(exactly(body, size, "a center"), np.float32)

    def _settle(self) -> None:
        self._vector_codec = connection_codec(
            self._buffers, self._strategy, is_server=False
        )

    def stage(self, question: int, *, is_push: bool) -> None:
        """Sends its part of a message, until the server and its standby have it."""
        self._staged = question
        vector_codec = self._vector_codec
        coded = vector_codec.pack() if vector_codec is not None and is_push else None
        if vector_codec is not None and coded is None:
            vector_codec.sent()
        parts = (self._buffers.up,) if coded is None else coded
        message = MessagePart(question=question, is_coded=coded is not None)
        try:
            self._connection.link.send(message.pack(), *parts)
        except ConnectionError as error:
            self._go_back(error, question)
        self._await(Kept, question)

    def take(self, question: int) -> None:
        """Waits for its part of an answer, which is then in the buffers."""
        if self._taken != question:
            self._await(AnswerPart, question)

    def _await(self, kind: type[OfShard], question: int) -> None:
        while True:
            try:
                message = self._receive()
            except ConnectionError as error:
                self._go_back(error, question)
                continue
            if isinstance(message, AnswerPart):  # a promoted standby may have it ready
                self._taken = message.question
            if isinstance(message, kind) and message.question == question:
                return

    def _receive(self) -> OfShard:
        vector_codec = self._vector_codec
        into = self._buffers.down if vector_codec is None else vector_codec.landing
        head, body = self._connection.link.receive(into)
        with reading(head["kind"]):
            if head["kind"] not in OF_SHARD:
                raise ValueError("a shard says something else")
            message = OF_SHARD[head["kind"]].parse(head)
            part = message if isinstance(message, AnswerPart) else None
            if vector_codec is not None and part is not None and part.is_coded:
                exactly(body[vector_codec.unpack(body) :], 0, "more than a part")
            elif len(body) or (part is not None and part.has_vectors):
                # A body that is too short would leave a part of the last reply.
                size = len(self._buffers.down)
                vectors = exactly(body, size, "a part")
                if body.obj is not self._buffers.down.obj:
                    self._buffers.down[:] = vectors
        return message

    def _go_back(self, error: ConnectionError, question: int) -> None:
        """Rejoins at the part's current process, which may lack the message."""
        # It has its weights, and lacks at most the answer to its last request.
        message = self._me.replace(question=question, wants_center=False)
        self._connection.call_again(error, message, can_map=False)
        self._settle()
        if self._staged == question:
            # Unencoded: that process may lack the state of the encoding.
            plain = MessagePart(question=question, is_coded=False)
            try:
                self._connection.link.send(plain.pack(), self._buffers.up)
            except ConnectionError as again:
                self._go_back(again, question)

    def leave(self) -> None:
        """Closes the connection, if there is one."""
        self._connection.close()


@final
class ShardClients:
    """A worker's clients of all of them.

    Args:
        server_address: Address and identity of the worker.
        buffers: Memory of whole messages and answers.
        strategy: Strategy of the run.
        me: Rank and incarnation of the worker.
        environment: Clock, connections and threads.
    """

    def __init__(
        self,
        server_address: ServerAddress,
        buffers: Buffers,
        strategy: Strategy,
        me: Attend,
        environment: Environment,
    ) -> None:
        self._environment = environment
        count = len(server_address.shards) + 1
        parts = cuts(server_address.sizes.vector, count)
        self._shard_clients = [
            ShardClient(
                ClientConnection(server_address, addresses, environment),
                buffers.part(
                    parts[number], sizes_of(server_address.sizes, number, count)
                ),
                strategy,
                me,
            )
            for number, addresses in enumerate(server_address.shards, start=1)
        ]

    def attend(self) -> Sequence[Vector]:
        """Joins at each; returns their parts of the center."""
        return [shard_client.attend() for shard_client in self._shard_clients]

    def stage(self, question: int, *, is_push: bool) -> Future[None]:
        """Sends each its part of a message, without waiting."""

        def work(shard_client: ShardClient) -> Callable[[], None]:
            return lambda: shard_client.stage(question, is_push=is_push)

        return self._all([work(shard_client) for shard_client in self._shard_clients])

    def take(self, question: int) -> None:
        """Waits for all parts of an answer."""

        def work(shard_client: ShardClient) -> Callable[[], None]:
            return lambda: shard_client.take(question)

        works = [work(shard_client) for shard_client in self._shard_clients]
        self._all(works).result()

    def _all(self, works: Sequence[Callable[[], None]]) -> Future[None]:
        """Runs all functions in parallel."""
        in_background = self._environment.in_background

        def run() -> None:
            # The first needs no thread but this one.
            others = [in_background(work) for work in works[1:]]
            works[0]()
            for other in others:
                other.result()

        return in_background(run)

    def leave(self) -> None:
        """Closes the connections."""
        for shard_client in self._shard_clients:
            shard_client.leave()
