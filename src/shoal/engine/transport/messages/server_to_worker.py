"""Messages of a server to a worker: its rank, and answers to requests.

A server of this run is trusted, but it may be of another version, or wrong: a worker
says then what it cannot read, instead of failing anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeAlias, final

from shoal.engine.coordination.instructions import Body, Group
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.fields import (
    MOST_ALL,
    MOST_PATH,
    WRONG,
    Clipped,
    Whole,
    rate,
    some,
    text,
    whole,
)
from shoal.engine.transport.messages.base import Message, Parser, by_kind
from shoal.engine.transport.messages.structs import Spread
from shoal.engine.transport.messages.worker_to_server import NanStatus
from shoal.engine.transport.shared_memory import SlotOffer
from shoal.wire.frames import BadFrame, Head

BODIES: Mapping[str, Body] = {
    "none": "none", "reply": "reply", "center": "center", "snapshot": "snapshot",
}  # fmt: skip
BodyKind: TypeAlias = Annotated[Body, BODIES.__getitem__]


@contextmanager
def reading(kind: str) -> Generator[None]:
    """Wraps errors of reading an answer of some kind.

    Raises:
        BadFrame: The answer cannot be read.
    """
    try:
        yield
    except WRONG as error:
        raise unreadable(kind, error) from error


def unreadable(kind: str, error: Exception) -> BadFrame:
    """Returns the error for an answer that cannot be read."""
    return BadFrame(
        f"the server's answer {kind!r:.40} cannot be read: "
        f"{type(error).__name__}: {error!s:.200}. Expected what the server of this "
        "version says. See whether all machines have the same version of Shoal."
    )


def read_offer(found: Any) -> SlotOffer:
    """Reads an offer of shared memory."""
    return SlotOffer(text(found["path"], MOST_PATH), text(found["mark"], MOST_PATH))


def _pack_offer(offer: SlotOffer | None) -> dict[str, str] | None:
    return None if offer is None else offer._asdict()


@final
class RunState(NamedTuple):
    """State of the run that every answer contains.

    Args:
        version: Version of the center.
        lineage: Lineage of the center.
        clock: Committed steps of the user's batch size.
        workers: Number of living workers, at least 1.
        learning_rate: Learning rate, None under a schedule.
        changed: Serial number of the newest callback change.
    """

    version: int
    lineage: int
    clock: int
    workers: int
    learning_rate: float | None
    changed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        # The key "lr" is `learning_rate`: keys are bytes on the wire.
        return {
            "version": self.version, "lineage": self.lineage, "clock": self.clock,
            "workers": self.workers, "lr": self.learning_rate, "changed": self.changed,
        }  # fmt: skip

    @classmethod
    def parse(cls, head: Head) -> RunState:
        """The inverse of `to_json`."""
        return cls(
            version=whole(head["version"]),
            lineage=whole(head["lineage"]),
            clock=whole(head["clock"]),
            workers=whole(head["workers"]),
            learning_rate=rate(head["lr"]),
            changed=whole(head.get("changed", 0)),
        )


State: TypeAlias = Annotated[
    RunState, Spread(RunState.parse, RunState.to_json, first="version")
]
Offer: TypeAlias = Annotated[SlotOffer, read_offer]

# -------------------------------------------------------------------------- places


@final
class Welcome(Message):
    """A process has become a worker; center, statistics and a state follow.

    Args:
        rank: Rank of the worker.
        incarnation: Counts the processes that had this rank.
        slot: Shared memory that it may map, None for none.
        state: State of the run.
    """

    kind: ClassVar[str] = "welcome"
    rank: Whole
    incarnation: Whole
    slot: Offer | None
    state: State

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {**super().to_json(), "slot": _pack_offer(self.slot)}


@final
class WelcomeBack(Message):
    """A worker has rejoined at the server that took over.

    Args:
        slot: Shared memory that it may map, None for none.
    """

    kind: ClassVar[str] = "again"
    slot: Offer | None

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {"slot": _pack_offer(self.slot)}


@final
class Elsewhere(Message):
    """Redirects a worker: this is a standby, and another server leads."""

    kind: ClassVar[str] = "elsewhere"


@final
class Refused(Message):
    """A process or its message is refused: it joins again, or exits.

    Args:
        reason: The reason.
        state: State of the run; None for a process that has no rank in it.
    """

    kind: ClassVar[str] = "refused"
    reason: Clipped
    state: State | None = None

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`; it is a refusal without a reason as well."""
        return super().parse({"reason": None, **head})


# ------------------------------------------------------------------------- answers


class Answer(Message):
    """The answer to a worker's request, made of an instruction `Respond`.

    Args:
        body: What is sent with it.
        pieces: New leases; for a `Repeat` all leases.
        nan_status: Status of the round.
        group: The group that averages the next step, None if the server does.
        sums: Sums for which the push must be computed.
        wants_snapshot: The worker is asked for its state.
        changes: Size of callback changes at the end of the body.
        state: State of the run.
        is_coded: Whether its vector is encoded; None without a vector.
    """

    body: Body = "none"
    pieces: tuple[Piece, ...] = ()
    nan_status: int = NanStatus.FINITE
    group: Group | None = None
    sums: tuple[float, ...] = ()
    wants_snapshot: bool = False
    changes: int = 0
    state: RunState
    is_coded: bool | None = None

    @property
    def has_vectors(self) -> bool:
        """Whether vectors are sent with it."""
        return self.body != "none"

    @property
    def is_center(self) -> bool:
        """Whether the worker must continue from the center."""
        return self.body in ("center", "snapshot")

    def pack(self) -> Head:
        """The head of its frame."""
        # Two keys keep older names: "doubt" is `nan_status`, "publish" is
        # `wants_snapshot`.
        head: Head = {
            "kind": self.kind, "body": self.body, "pieces": self.pieces,
            "doubt": self.nan_status, "group": self.group,
        }  # fmt: skip
        if self.sums:
            head["sums"] = self.sums
        head["publish"] = self.wants_snapshot
        if self.changes:
            head["changes"] = self.changes
        head |= self.state.to_json()
        if self.is_coded is not None:
            head["is_coded"] = self.is_coded
        return head

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        group, is_coded = head.get("group"), head.get("is_coded")
        pieces, sums = head.get("pieces"), head.get("sums")
        if pieces is not None:
            pieces = [Piece(*map(whole, piece)) for piece in some(pieces, MOST_ALL)]
            if pieces and any(piece.stop < piece.start for piece in pieces):
                raise ValueError("pieces that end before they begin")
        if sums is not None:
            sums = [float(value) for value in some(sums, MOST_ALL)]
            if not all(map(math.isfinite, sums)):
                raise ValueError(f"sums of {sums!r:.80}")
        return cls(
            body=BODIES[head.get("body", "none")],
            pieces=tuple(pieces or ()),
            nan_status=whole(head.get("doubt", 0)),
            group=None if group is None else _group(group),
            sums=tuple(sums or ()),
            wants_snapshot=bool(head.get("publish")),
            changes=whole(head.get("changes", 0)),
            state=RunState.parse(head),
            is_coded=None if is_coded is None else bool(is_coded),
        )


def _group(found: Any) -> Group:
    generation, ranks = found
    ranks = () if ranks is None else some(ranks, MOST_ALL)
    return Group(whole(generation), tuple(map(whole, ranks)))


@final
class Reply(Answer):
    """The strategy's reply to a push."""

    kind: ClassVar[str] = "reply"


@final
class Merged(Answer):
    """The mean of a round that the worker had no rows in."""

    kind: ClassVar[str] = "merged"


@final
class Grant(Answer):
    """New leases."""

    kind: ClassVar[str] = "grant"


@final
class Repeat(Answer):
    """The push was applied before, or came too late."""

    kind: ClassVar[str] = "repeat"


@final
class Again(Answer):
    """The push must be sent again with its vector, or be computed for other sums."""

    kind: ClassVar[str] = "again"


@final
class Publish(Answer):
    """The server requests the worker's state first."""

    kind: ClassVar[str] = "publish"


@final
class Done(Answer):
    """The run is over."""

    kind: ClassVar[str] = "done"


class Acknowledged(Message):
    """A message was received, and needs no other answer.

    Args:
        state: State of the run.
    """

    state: State


@final
class Stored(Acknowledged):
    """A snapshot was received."""

    kind: ClassVar[str] = "stored"


@final
class Noted(Acknowledged):
    """Any other message was received."""

    kind: ClassVar[str] = "noted"


ANSWERS: Mapping[str, type[Answer]] = {
    answer.kind: answer
    for answer in (Reply, Merged, Grant, Repeat, Again, Publish, Done)
}
"""By the kind of the instruction."""
ToWorker: TypeAlias = Answer | Acknowledged | Refused
"""Messages to a worker that has joined."""
_TO_WORKER: Mapping[str, Parser[ToWorker]] = {
    **ANSWERS, **by_kind(Stored, Noted, Refused),
}  # fmt: skip


def read_answer(head: Head) -> ToWorker:
    """Reads the answer to a request.

    Raises:
        BadFrame: A worker of this version does not know it.
    """
    kind = head["kind"]
    try:  # not `reading`: a context takes longer, and every exchange comes here
        return _TO_WORKER[kind].parse(head)
    except WRONG as error:
        raise unreadable(kind, error) from error
