"""A worker's connection to the server that leads.

Each request waits for the answer to the one before. If several servers share the
vector, this one gets every message, and each of the others gets its part of the
vectors. `client.py` has the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from shoal.data.read_ahead import BEAT_S
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.client_connection import (
    ClientConnection,
    Fenced,
    ServerAddress,
)
from shoal.engine.transport.codec import connection_codec
from shoal.engine.transport.fields import exactly
from shoal.engine.transport.messages.server_to_worker import (
    Answer,
    Stored,
    ToWorker,
    Welcome,
    WelcomeBack,
    read_answer,
    reading,
)
from shoal.engine.transport.messages.shard import Attend
from shoal.engine.transport.messages.worker_reports import WorkerReport
from shoal.engine.transport.messages.worker_to_server import (
    Busy,
    Compiling,
    FromWorker,
    Join,
    Push,
    ReadingData,
    Rejoin,
    SlotSettled,
    WorkerRequest,
)
from shoal.engine.transport.partition import sizes_of
from shoal.engine.transport.shared_memory import Slot, SlotOffer
from shoal.engine.worker.shard_client import ShardClients
from shoal.errors import ShoalError
from shoal.strategies.base import Strategy
from shoal.vectors import Vector
from shoal.wire.frames import Link

__all__ = ["Fenced", "RequestChannel", "ServerAddress"]


class Answered(NamedTuple):
    """An answer to a request.

    Args:
        message: The server's message.
        rest: Bytes behind its vectors.
    """

    message: ToWorker
    rest: memoryview


@final
@dataclass(eq=False)
class Question:
    """A request until it is answered.

    Args:
        request: The request as it was sent.
        parts: Its vectors, as they were sent.
        blob: Bytes that follow the vectors.
        has_vectors: Whether there are any.
        staged: Sending of parts to other servers; None if there are none.
        error: Error of sending it.
    """

    request: WorkerRequest
    parts: tuple[memoryview, ...]
    blob: bytes
    has_vectors: bool
    staged: Future[None] | None = None
    error: ConnectionError | None = None


@final
class DeferredAnswer:
    """An answer that is read on demand.

    Args:
        read: Waits for the answer.
    """

    def __init__(self, read: Callable[[], Answered]) -> None:
        self._read, self._found = read, Future[Answered]()

    def done(self) -> bool:
        """Whether it was read."""
        return self._found.done()

    def exception(self) -> BaseException | None:
        """Reads it; returns its error, None without one."""
        if not self.done():
            try:
                self._found.set_result(self._read())
            except BaseException as error:
                self._found.set_exception(error)
        return self._found.exception()

    def result(self) -> Answered:
        """Reads it, or raises its error."""
        self.exception()
        return self._found.result()


class RequestChannel:
    """A worker's connection.

    Args:
        server_address: Address and identity for joining.
        strategy: Strategy of the run.
        environment: Clock, connections and threads.

    Attributes:
        buffers: Memory of the vectors, once it is settled.
        rank: Rank of this worker, once it has joined; so is `incarnation`.
    """

    buffers: Buffers
    rank: int
    incarnation: int

    def __init__(
        self,
        server_address: ServerAddress,
        strategy: Strategy,
        environment: Environment = SYSTEM,
    ) -> None:
        self.environment = environment
        self.strategy, self.sizes = strategy, server_address.sizes
        self._server_address, self._question = server_address, 0
        self._early: Future[Answered] | DeferredAnswer | None = None
        self._connection = ClientConnection(
            server_address, server_address.addresses, environment
        )
        count = len(server_address.shards) + 1
        self._own_sizes = (
            sizes_of(server_address.sizes, 0, count)
            if count > 1
            else server_address.sizes
        )
        self._shard_clients: ShardClients | None = None

    @property
    def _link(self) -> Link:
        return self._connection.link

    @property
    def line_to_server(self) -> int:
        """Descriptor of the connection, for waiting on several descriptors."""
        return self._link.socket.fileno()

    @property
    def far_host(self) -> str:
        """Address of this machine, empty if it is the server's own."""
        return "" if self._link.is_local else self._link.own_host

    def _join(self, message: Join) -> tuple[Welcome, Vector, Vector, bytes]:
        """Joins at all servers.

        Args:
            message: The first message.

        Returns:
            The answer, the center, statistics, and an optimizer's state.

        Raises:
            Fenced: The server has another model, or another process has the rank.
            BadFrame: No server of this version sends this.
        """
        head, body = self._connection.call(message, can_map=True)
        try:
            with reading(head["kind"]):
                if head["kind"] != Welcome.kind:
                    raise ValueError("no answer to a worker that joins")
                welcome = Welcome.parse(head)
            return (welcome, *self._sit_down(welcome, body))
        except BaseException:
            self._connection.close()
            if self._shard_clients is not None:
                self._shard_clients.leave()
            raise

    def _sit_down(
        self, welcome: Welcome, body: memoryview
    ) -> tuple[Vector, Vector, bytes]:
        """Settles the memory after the welcome; see `_join`."""
        sizes = self._own_sizes
        self.rank, self.incarnation = welcome.rank, welcome.incarnation
        with reading(welcome.kind):
            start = np.frombuffer(body, np.float32, sizes.vector + sizes.statistics)
        vector, statistics = start[: sizes.vector], start[sizes.vector :]
        self._settle(welcome.slot)
        if self._server_address.shards:
            self._shard_clients = ShardClients(
                self._server_address,
                self.buffers,
                self.strategy,
                self._attend(),
                self.environment,
            )
            vector = np.concatenate([vector, *self._shard_clients.attend()])
        return vector, statistics, bytes(body[start.nbytes :])

    def _attend(self) -> Attend:
        """Introduces this worker to the servers that order nothing."""
        return Attend(
            rank=self.rank,
            incarnation=self.incarnation,
            question=0,
            wants_center=True,
            token=self._server_address.token,
        )

    def _settle(self, offer: SlotOffer | None) -> None:
        slot, sizes = None, self._own_sizes
        if offer is not None:
            slot = Slot.attach(offer.path, sizes.slot_bytes, offer.mark)
        try:
            self._link.send(SlotSettled(is_shared=slot is not None).pack())
        except ConnectionError:
            if slot is not None:
                slot.close()
            raise
        self._own = Buffers(sizes, slot)
        if not self._server_address.shards:
            self.buffers = self._own
        elif self._shard_clients is None:
            self.buffers = Buffers(self.sizes, None)
        self._vector_codec = connection_codec(self._own, self.strategy, is_server=False)

    def _ask(
        self, message: FromWorker, *, has_vectors: bool = False, blob: bytes = b""
    ) -> Answered:
        """Sends a request until the server, or its successor, answers."""
        return self._get(self._put(message, has_vectors=has_vectors, blob=blob))

    def _put(
        self, message: FromWorker, *, has_vectors: bool = False, blob: bytes = b""
    ) -> Question:
        """Sends a request without waiting for the answer."""
        # A server, or its successor, answers a repeated number with the answer it gave
        # before (decision 14).
        self._question += 1
        question = self._question
        is_push, shard_clients = isinstance(message, Push), self._shard_clients
        staged = None
        # Sent first, or at the same time: the message becomes an event when every
        # server has its part (decision 21).
        if shard_clients is not None and has_vectors:
            staged = shard_clients.stage(question, is_push=is_push)
            self._copy_up()
        parts = self._parts(is_push=is_push) if has_vectors else ()
        request = WorkerRequest(message, question, is_coded=len(parts) > 1)
        asked = Question(request, parts, blob, has_vectors, staged)
        self._send_question(asked)
        return asked

    def _send_question(self, asked: Question) -> None:
        """Sends a request; an error is raised later, when the answer is awaited."""
        asked.error = None
        try:
            self._link.send(asked.request.pack(), *asked.parts, asked.blob)
        except ConnectionError as error:
            asked.error = error

    def _get(self, asked: Question) -> Answered:
        """Waits for an answer of the server, or of its successor."""
        while True:
            try:
                if asked.error is not None:
                    raise asked.error
                answer = self._receive()
                break
            except ConnectionError as error:
                self._go_back(error)
                # Unencoded: the successor may lack the state of the encoding.
                asked.request = asked.request._replace(is_coded=False)
                asked.parts = (self._own.inline_up,) if asked.has_vectors else ()
                self._send_question(asked)
        if asked.staged is not None:  # raises what sending the other parts has raised
            asked.staged.result()
        shard_clients = self._shard_clients
        message = answer.message
        has_body = isinstance(message, Answer) and message.has_vectors
        # Parts of a snapshot may be overwritten only when all of them are stored.
        is_stored = isinstance(message, Stored) and asked.has_vectors
        if shard_clients is not None and (has_body or is_stored):
            shard_clients.take(asked.request.number)
        if shard_clients is not None and has_body:
            self._copy_down()
        return answer

    def _copy_up(self) -> None:
        """Copies the ordering server's part of a message."""
        own = self._own
        own.message[:] = self.buffers.message[: own.message.size]
        own.rest_up[:] = self.buffers.rest_up

    def _copy_down(self) -> None:
        """Copies the ordering server's part of an answer."""
        own = self._own
        self.buffers.reply[: own.reply.size] = own.reply
        self.buffers.rest_down[:] = own.rest_down

    def _parts(self, *, is_push: bool) -> tuple[memoryview, ...]:
        """Vectors that are added to the frame: an encoded one has two parts."""
        vector_codec = self._vector_codec
        if vector_codec is not None and is_push:
            found = vector_codec.pack()
            if found is not None:
                return found
        elif vector_codec is not None:
            vector_codec.sent()
        return (self._own.inline_up,)

    def _receive(self) -> Answered:
        """Waits for an answer; its vectors are then in `self._own`."""
        own, vector_codec = self._own, self._vector_codec
        into = own.inline_down if vector_codec is None else vector_codec.landing
        head, body = self._link.receive(into or None)
        inline, message = len(own.inline_down), read_answer(head)
        if not isinstance(message, Answer) or not message.has_vectors:
            return Answered(message, body)
        if not inline and vector_codec is None:
            return Answered(message, body)
        with reading(message.kind):
            if vector_codec is not None and message.is_coded:
                return Answered(message, body[vector_codec.unpack(body) :])
            # A body that is too short would leave a part of the last reply.
            vectors = exactly(body[:inline], inline, "vectors")
            if body.obj is not own.down.obj:
                own.down[:] = vectors
        return Answered(message, body[inline:])

    def _go_back(self, error: ConnectionError) -> None:
        """Waits for the standby to lead after the server was lost, and rejoins there.

        The standby knows the last answered request and its answer.

        Raises:
            ConnectionError: There is no standby, or it is gone as well.
        """
        before, token = self._own, self._server_address.token
        me = Rejoin(rank=self.rank, incarnation=self.incarnation, token=token)
        while self._own is before:
            head, _ = self._connection.call_again(error, me, can_map=True)
            with reading(head["kind"]):
                if head["kind"] != WelcomeBack.kind:
                    raise ValueError("no answer to a worker that comes back")
                found = WelcomeBack.parse(head)
            try:
                self._settle(found.slot)
            except ConnectionError as another:  # the new server is gone as well
                error = another
        self._own.up[:] = before.up
        if self._own.slot is None:
            # With `overlap`, an answer may have arrived that the loop has not read: it
            # is kept. A slot in shared memory needs no copy, the standby maps the same.
            self._own.down[:] = before.down
        before.close()

    # ---------------------------------------------------------------- telling

    @property
    def has_early(self) -> bool:
        """Whether there is, or will be, the answer to an early push."""
        return self._early is not None

    def _ask_early(self, message: Push) -> None:
        """Sends a push without waiting; `_arrive` waits."""
        self._early = self.environment.in_background(
            lambda: self._ask(message, has_vectors=True)
        )

    def _ask_later(self, message: Push) -> None:
        """Sends a push; `_arrive` reads the answer.

        Unlike `_ask_early` it uses no thread: after a lost server, `_arrive` rejoins.
        """
        asked = self._put(message, has_vectors=True)
        self._early = DeferredAnswer(lambda: self._get(asked))

    def _arrive(self) -> Answered:
        """Waits for the answer to an early push.

        Raises:
            RuntimeError: There was no early push.
        """
        early, self._early = self._early, None
        if early is None:
            raise RuntimeError("nothing was asked early")
        return early.result()

    def _let_arrive(self) -> None:
        """Waits for the early answer without taking it: one request at a time."""
        early = self._early
        if early is not None:
            early.exception()

    def tell(self, message: WorkerReport | Busy | Compiling | ReadingData) -> None:
        """Reports to the server, or through it to the controller."""
        self._let_arrive()
        self._ask(message)

    def busy(self) -> AbstractContextManager[None]:
        """Reports every second that it works; no other message may be sent then."""

        def say() -> None:
            with suppress(OSError, ShoalError):  # the next message raises the same
                self.tell(Busy())

        return self.environment.every(BEAT_S, say)

    def leave(self) -> None:
        """Closes the connection, and gives the slot back."""
        self._connection.close()
        if self._shard_clients is not None:
            self._shard_clients.leave()
        self._own.close()
        self.buffers.close()
