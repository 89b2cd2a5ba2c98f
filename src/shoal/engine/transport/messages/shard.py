"""Messages between workers and servers that share the vector.

A worker sends each shard its part of a message (`Attend`, `Stage`), and gets its part
of the answer (`Seated`, `Kept`, `Part`). A shard reports to the ordering server, number
0, what it has (`ShardCalls`, `Has`, `Took` of `standby.py`, `Moving`), and gets
events (`Ordered`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias, final

from shoal.engine.coordination.instructions import Body
from shoal.engine.transport.fields import MOST_ALL, MOST_NAME, some, text, whole
from shoal.engine.transport.messages.base import FixedKind, by_kind
from shoal.engine.transport.messages.events import Event, pack_event, read_event
from shoal.engine.transport.messages.server_to_worker import BODIES
from shoal.engine.transport.messages.standby import Took
from shoal.wire.frames import Head

# ---------------------------------------------------------------- worker to shard


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attend(FixedKind):
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
    rank: int
    incarnation: int
    question: int
    wants_center: bool
    token: str
    wants_slot: bool = False

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
            question=whole(head["question"]),
            wants_center=bool(head["wants_center"]),
            token=text(head["token"], MOST_NAME),
            wants_slot=bool(head.get("wants_slot")),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(FixedKind):
    """A shard's part of a message follows.

    Args:
        question: Number of the request.
        is_coded: Whether it is encoded.
    """

    kind: ClassVar[str] = "stage"
    question: int
    is_coded: bool

    def pack(self) -> Head:
        """The head of its frame."""
        return {
            "kind": self.kind, "question": self.question, "is_coded": self.is_coded,
        }  # fmt: skip

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            question=whole(head["question"]), is_coded=bool(head.get("is_coded"))
        )


# ---------------------------------------------------------------- shard to worker


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Seated(FixedKind):
    """The worker has joined; the shard's part of the center follows on request."""

    kind: ClassVar[str] = "seated"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(FixedKind):
    """A part of a message was received, by the shard's standby as well.

    Args:
        question: Number of the request.
    """

    kind: ClassVar[str] = "kept"
    question: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(question=whole(head["question"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Part(FixedKind):
    """The shard's part of an answer follows.

    Args:
        question: Number of the request.
        body: The part of the answer.
        is_coded: Whether it is encoded; None without a vector.
    """

    kind: ClassVar[str] = "part"
    question: int
    body: Body
    is_coded: bool | None = None

    @property
    def has_vectors(self) -> bool:
        """Whether there is a part of a vector."""
        return self.body != "none"

    def pack(self) -> Head:
        """The head of its frame."""
        head: Head = {
            "kind": self.kind, "question": self.question, "body": self.body,
        }  # fmt: skip
        if self.is_coded is not None:
            head["is_coded"] = self.is_coded
        return head

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        is_coded = head.get("is_coded")
        return cls(
            question=whole(head["question"]),
            body=BODIES[head.get("body", "none")],
            is_coded=None if is_coded is None else bool(is_coded),
        )


OfShard: TypeAlias = Kept | Part
OF_SHARD = by_kind(Kept, Part)
"""Messages of a shard to a worker that has joined, by kind."""

# --------------------------------------------------------------- shard to number 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCalls(FixedKind):
    """A shard wants to follow.

    Args:
        number: Number of the shard.
        have: Number of its last event.
    """

    kind: ClassVar[str] = "shard"
    number: int
    have: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=whole(head["number"]), have=whole(head["have"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Has(FixedKind):
    """A shard, and its standby if it has one, has its part of a message.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        question: Number of the request.
    """

    kind: ClassVar[str] = "has"
    rank: int
    incarnation: int
    question: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
            question=whole(head["question"]),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Moving(FixedKind):
    """Bytes of some workers are on their way to a shard: they are not silent.

    Args:
        ranks: Ranks of these workers.
    """

    kind: ClassVar[str] = "moved"
    ranks: tuple[int, ...]

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(ranks=tuple(map(whole, some(head["ranks"], MOST_ALL))))


FromShard: TypeAlias = Took | Has | Moving
FROM_SHARD = by_kind(Took, Has, Moving)
"""By kind."""

# --------------------------------------------------------------- number 0 to shard


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered(FixedKind):
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
