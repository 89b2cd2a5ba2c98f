"""A worker's conversation with its server, whichever of two leads.

Nothing is asked before the last question was answered. Where several servers share the
vector this one is told everything, and each of the others its part of the vectors. What
is said lies in `client.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shoal.data.read_ahead import BEAT_S
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.transport import answers
from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.client_connection import (
    Answered,
    ClientConnection,
    Fenced,
    ServerAddress,
    who,
)
from shoal.engine.transport.codec import connection_codec
from shoal.engine.transport.messages import exactly
from shoal.engine.transport.partition import sizes_of
from shoal.engine.transport.shared_memory import Slot
from shoal.engine.worker.shard_client import ShardClients
from shoal.errors import ShoalError
from shoal.strategies.base import Strategy
from shoal.vectors import Vector
from shoal.wire.frames import Head, Link

__all__ = ["Fenced", "RequestChannel", "ServerAddress"]


@final
@dataclass(eq=False)
class Question:
    """What was asked, until it is answered.

    Args:
        head: As it was sent.
        parts: Of its vectors, as they were sent.
        blob: That went along.
        has_vectors: Whether there are any.
        staged: Other servers take their parts of them; None where there are none.
        error: It could not be sent.
    """

    head: Head
    parts: tuple[memoryview, ...]
    blob: bytes
    has_vectors: bool
    staged: Future[None] | None = None
    error: ConnectionError | None = None


@final
class DeferredAnswer:
    """An answer that is read when somebody wants it, and not before.

    Args:
        read: Waits for it.
    """

    def __init__(self, read: Callable[[], Answered]) -> None:
        self._read, self._found = read, Future[Answered]()

    def done(self) -> bool:
        """Whether it was read."""
        return self._found.done()

    def exception(self) -> BaseException | None:
        """Reads it; what that raised, None for nothing."""
        if not self.done():
            try:
                self._found.set_result(self._read())
            except BaseException as error:
                self._found.set_exception(error)
        return self._found.exception()

    def result(self) -> Answered:
        """Reads it, or raises what that raised."""
        self.exception()
        return self._found.result()


class RequestChannel:
    """A worker's connection.

    Args:
        seat: Where and as whom to join.
        strategy: Of the run.
        environment: Time, connections and threads.

    Attributes:
        buffers: Where vectors lie, once it is settled.
        rank: Of this worker, once it has joined; so is `incarnation`.
    """

    buffers: Buffers
    rank: int
    incarnation: int

    def __init__(
        self,
        seat: ServerAddress,
        strategy: Strategy,
        environment: Environment = SYSTEM,
    ) -> None:
        self.environment = environment
        self.strategy, self.sizes = strategy, seat.sizes
        self._seat, self._question = seat, 0
        self._early: Future[Answered] | DeferredAnswer | None = None
        self._connection = ClientConnection(seat, seat.addresses, environment)
        count = len(seat.shards) + 1
        self._own_sizes = sizes_of(seat.sizes, 0, count) if count > 1 else seat.sizes
        self._shard_clients: ShardClients | None = None

    @property
    def _link(self) -> Link:
        return self._connection.link

    @property
    def line_to_server(self) -> int:
        """Descriptor of the connection, to wait for an answer beside other things."""
        return self._link.socket.fileno()

    @property
    def far_host(self) -> str:
        """Address of this machine, empty where it is the server's own."""
        return "" if self._link.is_local else self._link.own_host

    def _join(self, head: Head) -> tuple[Head, Vector, Vector, bytes]:
        """Takes a place at all servers.

        Args:
            head: What to say.

        Returns:
            The answer, the center, statistics, and an optimizer's state.

        Raises:
            Fenced: The server has another model, or gave the place to another.
            BadFrame: It says what no server of ours says.
        """
        head, body = self._connection.call(head, can_map=True)
        try:
            return (head, *self._sit_down(head, body))
        except BaseException:
            self._connection.close()
            if self._shard_clients is not None:
                self._shard_clients.leave()
            raise

    def _sit_down(self, head: Head, body: memoryview) -> tuple[Vector, Vector, bytes]:
        """Takes the place that it was given; see `_join`."""
        sizes = self._own_sizes
        with answers.reading(head):
            self.rank, self.incarnation, offer = answers.place(head)
            start = np.frombuffer(body, np.float32, sizes.vector + sizes.statistics)
        vector, statistics = start[: sizes.vector], start[sizes.vector :]
        self._settle(offer)
        if self._seat.shards:
            self._shard_clients = ShardClients(
                self._seat,
                self.buffers,
                self.strategy,
                who(self.rank, self.incarnation),
                self.environment,
            )
            vector = np.concatenate([vector, *self._shard_clients.attend()])
        return vector, statistics, bytes(body[start.nbytes :])

    def _settle(self, offer: dict[str, str] | None) -> None:
        slot, sizes = None, self._own_sizes
        if offer is not None:
            slot = Slot.attach(offer["path"], sizes.slot_bytes, offer["mark"])
        try:
            self._link.send({"kind": "slot", "is_shared": slot is not None})
        except ConnectionError:
            if slot is not None:
                slot.close()
            raise
        self._own = Buffers(sizes, slot)
        if not self._seat.shards:
            self.buffers = self._own
        elif self._shard_clients is None:
            self.buffers = Buffers(self.sizes, None)
        self._vector_codec = connection_codec(self._own, self.strategy, is_server=False)

    def _ask(
        self, head: Head, *, has_vectors: bool = False, blob: bytes = b""
    ) -> Answered:
        """Asks the server, or the one that took its place, until one answers."""
        return self._get(self._put(head, has_vectors=has_vectors, blob=blob))

    def _put(
        self, head: Head, *, has_vectors: bool = False, blob: bytes = b""
    ) -> Question:
        """Says something, and does not wait for the answer."""
        self._question += 1
        head["question"] = question = self._question
        is_push, shard_clients = head["kind"] == "push", self._shard_clients
        staged = None
        if shard_clients is not None and has_vectors:
            staged = shard_clients.stage(question, is_push=is_push)
            self._copy_up()
        parts = self._parts(is_push=is_push) if has_vectors else ()
        if len(parts) > 1:
            head["is_coded"] = True
        asked = Question(head, parts, blob, has_vectors, staged)
        self._send_question(asked)
        return asked

    def _send_question(self, asked: Question) -> None:
        """Sends it; that this failed is met by who waits for the answer."""
        asked.error = None
        try:
            self._link.send(asked.head, *asked.parts, asked.blob)
        except ConnectionError as error:
            asked.error = error

    def _get(self, asked: Question) -> Answered:
        """Waits for an answer, of the server or of the one that took its place."""
        while True:
            try:
                if asked.error is not None:
                    raise asked.error
                answer = self._receive()
                break
            except ConnectionError as error:
                self._go_back(error)
                # As it is: that server may not know what the other one had.
                asked.head.pop("is_coded", None)
                asked.parts = (self._own.inline_up,) if asked.has_vectors else ()
                self._send_question(asked)
        if asked.staged is not None:
            asked.staged.result()
        shard_clients = self._shard_clients
        has_body = answer[0].get("body", "none") != "none"
        # Parts of a snapshot may be written over only when all of them are stored.
        is_stored = answer[0]["kind"] == "stored" and asked.has_vectors
        if shard_clients is not None and (has_body or is_stored):
            shard_clients.take(asked.head["question"])
        if shard_clients is not None and has_body:
            self._copy_down()
        return answer

    def _copy_up(self) -> None:
        """What the server that orders gets of a message."""
        own = self._own
        own.message[:] = self.buffers.message[: own.message.size]
        own.rest_up[:] = self.buffers.rest_up

    def _copy_down(self) -> None:
        """What the server that orders has sent of an answer."""
        own = self._own
        self.buffers.reply[: own.reply.size] = own.reply
        self.buffers.rest_down[:] = own.rest_down

    def _parts(self, *, is_push: bool) -> tuple[memoryview, ...]:
        """What a message adds to its frame: a vector that is encoded has two parts."""
        vector_codec = self._vector_codec
        if vector_codec is not None and is_push:
            found = vector_codec.pack()
            if found is not None:
                return found
        elif vector_codec is not None:
            vector_codec.sent()
        return (self._own.inline_up,)

    def _receive(self) -> Answered:
        """Waits for an answer; its vectors are then in `self._own`.

        Returns:
            The answer, and what came behind its vectors.
        """
        own, vector_codec = self._own, self._vector_codec
        into = own.inline_down if vector_codec is None else vector_codec.landing
        head, body = self._link.receive(into or None)
        inline = len(own.inline_down)
        with answers.reading(head):
            if vector_codec is not None and head.get("is_coded"):
                return head, body[vector_codec.unpack(body) :]
            if head.get("body", "none") == "none" or not inline:
                return head, body
            # What is too short has been received over the last reply.
            vectors = exactly(body[:inline], inline, "vectors")
            if body.obj is not own.down.obj:
                own.down[:] = vectors
        return head, body[inline:]

    def _go_back(self, error: ConnectionError) -> None:
        """The server is gone: waits for its standby to lead, and takes its place there.

        The standby knows which question was answered and how.

        Raises:
            ConnectionError: There is no standby, or it is gone as well.
        """
        me, before = who(self.rank, self.incarnation), self._own
        while self._own is before:
            head = {"kind": "rejoin", **me}
            head, _ = self._connection.call_again(error, head, can_map=True)
            with answers.reading(head):
                offer = answers.slot(head)
            try:
                self._settle(offer)
            except ConnectionError as another:  # and that one is gone now
                error = another
        self._own.up[:] = before.up
        if self._own.slot is None:
            # There may be an early answer that was not taken in. In a slot it lies, as
            # the standby knows it.
            self._own.down[:] = before.down
        before.close()

    # ---------------------------------------------------------------- telling

    @property
    def has_early(self) -> bool:
        """Whether there is, or will be, an answer that was not waited for."""
        return self._early is not None

    def _ask_early(self, head: Head) -> None:
        """Says something with vectors, and does not wait; `_arrive` does."""
        self._early = self.environment.in_background(
            lambda: self._ask(head, has_vectors=True)
        )

    def _ask_later(self, head: Head) -> None:
        """Says something with vectors; `_arrive` reads the answer.

        No thread waits for it, as with `_ask_early`: who lost its server goes back
        there.
        """
        asked = self._put(head, has_vectors=True)
        self._early = DeferredAnswer(lambda: self._get(asked))

    def _arrive(self) -> Answered:
        """Waits for the answer that was not waited for.

        Raises:
            RuntimeError: There is none.
        """
        early, self._early = self._early, None
        if early is None:
            raise RuntimeError("nothing was asked early")
        return early.result()

    def _let_arrive(self) -> None:
        """One question at a time: waits, and leaves the answer where it is."""
        early = self._early
        if early is not None:
            early.exception()

    def tell(self, kind: str, **fields: Any) -> None:
        """Tells the controller of something that is no failure yet."""
        self._let_arrive()
        self._ask({"kind": kind, **fields})

    def busy(self) -> AbstractContextManager[None]:
        """Says every second that it works. Nothing else may be said meanwhile."""

        def say() -> None:
            with suppress(OSError, ShoalError):  # whatever is said next meets it
                self.tell("busy")

        return self.environment.every(BEAT_S, say)

    def fail(self, **report: Any) -> None:
        """Tells the controller that user code raised, whichever server leads."""
        self._let_arrive()
        self._ask({"kind": "failed", **report})

    def leave(self) -> None:
        """Closes the connection and gives the slot back."""
        self._connection.close()
        if self._shard_clients is not None:
            self._shard_clients.leave()
        self._own.close()
        self.buffers.close()
