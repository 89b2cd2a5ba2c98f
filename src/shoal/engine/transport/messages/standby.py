"""Messages between a server and its standby, sent before replies leave."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self, final

from shoal.engine.transport.fields import Clipped, Whole, mapping, whole
from shoal.engine.transport.messages.base import Message, by_kind
from shoal.engine.transport.messages.events import (
    Event,
    Staged,
    pack_event,
    read_event,
)
from shoal.engine.transport.messages.server_to_worker import read_offer
from shoal.engine.transport.messages.structs import Spread
from shoal.engine.transport.shared_memory import SlotOffer
from shoal.wire.frames import Head

# --------------------------------------------------------------- standby to server


@final
class StandbyCalls(Message):
    """A standby wants to follow.

    Args:
        generation: Counts the standbys of a run.
    """

    kind: ClassVar[str] = "standby"
    generation: Whole


@final
class Took(Message):
    """Events up to a number were received.

    Args:
        number: Number of events; for a standby, since it joined.
    """

    kind: ClassVar[str] = "took"
    number: Whole


@final
class Mapped(Message):
    """A standby has mapped the shared memory of a worker.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
    """

    kind: ClassVar[str] = "mapped"
    rank: Whole
    incarnation: Whole


@final
class CannotFollow(Message):
    """A standby cannot read a message.

    Args:
        reason: The reason.
    """

    kind: ClassVar[str] = "refused"
    reason: Clipped


FROM_STANDBY = by_kind(Took, Mapped, CannotFollow)
"""By kind."""

# --------------------------------------------------------------- server to standby


@final
class Frozen(Message):
    """The state of the run until now follows."""

    kind: ClassVar[str] = "frozen"


@final
class Logged(Message):
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
class WorkerSlot(Message):
    """The memory of a worker's vectors.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        offer: Offer of the shared memory.
    """

    kind: ClassVar[str] = "slot"
    rank: Whole
    incarnation: Whole
    offer: Annotated[SlotOffer, Spread(read_offer, SlotOffer._asdict)]


@final
class ShardsTook(Message):
    """All shards have events up to a number.

    Args:
        number: Number of the last one.
    """

    kind: ClassVar[str] = "ordered"
    number: Whole


@final
class ControllerHeard(Message):
    """The controller has reports up to a number.

    Args:
        number: Number of the last one.
    """

    kind: ClassVar[str] = "heard"
    number: Whole


TO_STANDBY = by_kind(Frozen, Logged, WorkerSlot, ShardsTook, ControllerHeard)
"""By kind."""
