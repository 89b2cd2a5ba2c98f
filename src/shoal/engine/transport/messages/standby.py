"""Messages between a server and its standby, sent before replies leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias, final

from shoal.engine.transport.fields import MOST_PATH, mapping, text, whole
from shoal.engine.transport.messages.base import FixedKind, by_kind
from shoal.engine.transport.messages.events import (
    Event,
    Staged,
    pack_event,
    read_event,
)
from shoal.engine.transport.shared_memory import SlotOffer
from shoal.wire.frames import Head

# --------------------------------------------------------------- standby to server


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyCalls(FixedKind):
    """A standby wants to follow.

    Args:
        generation: Counts the standbys of a run.
    """

    kind: ClassVar[str] = "standby"
    generation: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(generation=whole(head["generation"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Took(FixedKind):
    """Events up to a number were received.

    Args:
        number: Number of events; for a standby, since it joined.
    """

    kind: ClassVar[str] = "took"
    number: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=whole(head["number"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped(FixedKind):
    """A standby has mapped the shared memory of a worker.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
    """

    kind: ClassVar[str] = "mapped"
    rank: int
    incarnation: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(rank=whole(head["rank"]), incarnation=whole(head["incarnation"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CannotFollow(FixedKind):
    """A standby cannot read a message.

    Args:
        reason: The reason.
    """

    kind: ClassVar[str] = "refused"
    reason: str

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(reason=f"{head['reason']!s:.300}")


FromStandby: TypeAlias = Took | Mapped | CannotFollow
FROM_STANDBY = by_kind(Took, Mapped, CannotFollow)
"""By kind."""

# --------------------------------------------------------------- server to standby


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen(FixedKind):
    """The state of the run until now follows."""

    kind: ClassVar[str] = "frozen"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Logged(FixedKind):
    """An event is about to be handled; vectors and other bytes follow.

    Args:
        event: The event.
        at: Seconds of the run; a `Staged` has no time.
        vectors: Bytes of vectors.
        is_mapped: They are in the worker's slot, which the standby has mapped.
    """

    kind: ClassVar[str] = "event"
    event: Event | Staged
    at: float
    vectors: int
    is_mapped: bool = False

    def pack(self) -> Head:
        """The head of its frame."""
        event = self.event
        is_staged = isinstance(event, Staged)
        found = event.to_json() if is_staged else pack_event(event, self.at)
        head = {"kind": self.kind, "event": found, "vectors": self.vectors}
        if self.is_mapped:
            head["is_mapped"] = True
        return head

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        found = mapping(head["event"])
        event, at = (
            (Staged.parse(found), 0.0)
            if found["event"] == Staged.name
            else read_event(found)
        )
        return cls(
            event=event,
            at=at,
            vectors=whole(head["vectors"]),
            is_mapped=bool(head.get("is_mapped")),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlot(FixedKind):
    """The memory of a worker's vectors.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        offer: Offer of the shared memory.
    """

    kind: ClassVar[str] = "slot"
    rank: int
    incarnation: int
    offer: SlotOffer

    def pack(self) -> Head:
        """The head of its frame."""
        who = {"rank": self.rank, "incarnation": self.incarnation}
        return {"kind": self.kind, **who, **self.offer._asdict()}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
            offer=SlotOffer(
                text(head["path"], MOST_PATH), text(head["mark"], MOST_PATH)
            ),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsTook(FixedKind):
    """All shards have events up to a number.

    Args:
        number: Number of the last one.
    """

    kind: ClassVar[str] = "ordered"
    number: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=whole(head["number"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerHeard(FixedKind):
    """The controller has reports up to a number.

    Args:
        number: Number of the last one.
    """

    kind: ClassVar[str] = "heard"
    number: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=whole(head["number"]))


ToStandby: TypeAlias = Frozen | Logged | WorkerSlot | ShardsTook | ControllerHeard
TO_STANDBY = by_kind(Frozen, Logged, WorkerSlot, ShardsTook, ControllerHeard)
"""By kind."""
