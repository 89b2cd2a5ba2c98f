"""Messages between workers and servers that share the vector.

A worker sends each shard its part of a message (`Attend`, `MessagePart`), and gets its
part of the answer (`Attached`, `Kept`, `AnswerPart`). A shard reports to the ordering
server, number 0, what it has (`ShardCalls`, `Has`, `Took` of `standby.py`, `Moving`),
and gets events (`Ordered`).
"""

from __future__ import annotations

from typing import ClassVar, Self, TypeAlias, final

from shoal.engine.transport.fields import Flag, Name, Whole, Wholes, whole
from shoal.engine.transport.messages.base import Message, by_kind
from shoal.engine.transport.messages.events import Event, pack_event, read_event
from shoal.engine.transport.messages.server_to_worker import BodyKind
from shoal.engine.transport.messages.standby import Took
from shoal.wire.frames import Head

# ---------------------------------------------------------------- worker to shard


@final
class Attend(Message):
    """A worker that number 0 knows joins at a shard.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        question: Number of the request whose answer it waits for, 0 for none.
        wants_center: Whether the shard's part of the center is to follow the answer.
        token: Token with which it joined.
        wants_slot: Vectors through shared memory; shards have none.
    """

    kind: ClassVar[str] = "attend"
    rank: Whole
    incarnation: Whole
    question: Whole
    wants_center: Flag
    token: Name
    wants_slot: Flag = False


@final
class MessagePart(Message):
    """A shard's part of a message follows.

    Args:
        question: Number of the request.
        is_coded: Whether it is encoded.
    """

    kind: ClassVar[str] = "stage"
    question: Whole
    is_coded: Flag = False


# ---------------------------------------------------------------- shard to worker


@final
class Attached(Message):
    """The worker has joined; the shard's part of the center follows on request."""

    kind: ClassVar[str] = "seated"


@final
class Kept(Message):
    """A part of a message was received, by the shard's standby as well.

    Args:
        question: Number of the request.
    """

    kind: ClassVar[str] = "kept"
    question: Whole


@final
class AnswerPart(Message):
    """The shard's part of an answer follows.

    Args:
        question: Number of the request.
        body: The part of the answer.
        is_coded: Whether it is encoded; None without a vector.
    """

    kind: ClassVar[str] = "part"
    question: Whole
    body: BodyKind = "none"
    is_coded: Flag | None = None

    @property
    def has_vectors(self) -> bool:
        """Whether there is a part of a vector."""
        return self.body != "none"


OfShard: TypeAlias = Kept | AnswerPart
OF_SHARD = by_kind(Kept, AnswerPart)
"""Messages of a shard to a worker that has joined, by kind."""

# --------------------------------------------------------------- shard to number 0


@final
class ShardCalls(Message):
    """A shard wants to follow.

    Args:
        number: Number of the shard.
        have: Number of its last event.
    """

    kind: ClassVar[str] = "shard"
    number: Whole
    have: Whole


@final
class Has(Message):
    """A shard, and its standby if it has one, has its part of a message.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        question: Number of the request.
    """

    kind: ClassVar[str] = "has"
    rank: Whole
    incarnation: Whole
    question: Whole


@final
class Moving(Message):
    """Bytes of some workers are on their way to a shard: they are not silent.

    A shard says it each half second, too, to show that it is not silent itself.

    Args:
        ranks: Ranks of these workers, perhaps none.
    """

    kind: ClassVar[str] = "moved"
    ranks: Wholes


FROM_SHARD = by_kind(Took, Has, Moving)
"""By kind."""

# --------------------------------------------------------------- number 0 to shard


@final
class Ordered(Message):
    """An event with its place in the order.

    Args:
        number: Counts events.
        event: The event.
        at: Seconds of the run.
    """

    kind: ClassVar[str] = "order"
    number: int
    event: Event
    at: float

    def pack(self) -> Head:
        """The head of its frame."""
        event = pack_event(self.event, self.at)
        return {"kind": self.kind, "number": self.number, "event": event}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        event, at = read_event(head["event"])
        return cls(number=whole(head["number"]), event=event, at=at)
