"""Events of a run, as servers send them to shards and standbys.

The same events in the same order make the same replica wherever they are handled, so
each says all that counts; `read_event` believes nothing. The vectors of a worker's
message are no part of its event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias, final

from shoal.engine.transport.fields import (
    MAX_HINT,
    MOST_NAME,
    MOST_PID,
    MOST_TEXT,
    mapping,
    quantity,
    text,
    whole,
)
from shoal.engine.transport.messages.controller_to_server import (
    RUN_COMMANDS,
    RunCommand,
)
from shoal.engine.transport.messages.worker_reports import (
    WORKER_REPORTS,
    Failed,
    WorkerReport,
)
from shoal.engine.transport.messages.worker_to_server import (
    REQUESTS,
    FromWorker,
    Snapshot,
)
from shoal.wire.frames import Head

COMPLAINT = "complaint"  # a report of a worker that is no failure
COMMAND = "command"


class BaseEvent:
    """Something that happened. Abstract, and no `ABC`, as `Message` is none."""

    __slots__ = ()

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        raise NotImplementedError

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        raise NotImplementedError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoins(BaseEvent):
    """A process becomes a worker.

    Args:
        hint: The rank it asks for, -1 for any.
        pid: Process id on that machine.
        node: Its machine.
        token: Name of its process for the controller.
    """

    name: ClassVar[str] = "join"
    hint: int
    pid: int
    node: str
    token: str

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        known = {"pid": self.pid, "node": self.node, "token": self.token}
        return {"event": self.name, "hint": self.hint, "known": known}

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        known = mapping(found["known"])
        return cls(
            hint=whole(int(found["hint"]) + 1, MAX_HINT + 1) - 1,
            pid=whole(known["pid"], MOST_PID),
            node=text(known["node"], MOST_NAME),
            token=text(known["token"], MOST_NAME),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeaves(BaseEvent):
    """A worker is gone.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        reason: The reason.
        is_hung: It was dropped because it was silent.
    """

    name: ClassVar[str] = "leave"
    rank: int
    incarnation: int
    reason: str
    is_hung: bool

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        return {
            "event": self.name, "rank": self.rank, "incarnation": self.incarnation,
            "reason": self.reason, "is_hung": self.is_hung,
        }  # fmt: skip

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        return cls(
            rank=whole(found["rank"]),
            incarnation=whole(found["incarnation"]),
            reason=text(found["reason"], MOST_TEXT),
            is_hung=bool(found["is_hung"]),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSays(BaseEvent):
    """A worker sends a message; its vectors are in the buffers of its session.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        question: Number of the request, 0 for one that need not be repeated.
        message: The message.
        has_blob: An optimizer's state follows.
    """

    rank: int
    incarnation: int
    question: int
    message: FromWorker
    has_blob: bool = False

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        message = self.message
        found: Head = {
            "event": message.kind, "rank": self.rank, "incarnation": self.incarnation,
            "question": self.question,
        }  # fmt: skip
        if isinstance(message, WorkerReport):
            if not isinstance(message, Failed):
                found["event"] = COMPLAINT
            found["said"] = {"kind": message.kind, **message.to_json()}
            return found
        found |= message.to_json()
        if isinstance(message, Snapshot):
            found["has_blob"] = self.has_blob
        return found

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        message: FromWorker
        if "said" in found:
            said = mapping(found["said"])
            message = WORKER_REPORTS[said["kind"]].from_json(said)
        else:
            message = REQUESTS[found["event"]].parse(found)
        return cls(
            rank=whole(found["rank"]),
            incarnation=whole(found["incarnation"]),
            question=whole(found["question"]),
            message=message,
            has_blob=bool(found.get("has_blob")),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded(BaseEvent):
    """The controller sends a command.

    Args:
        command: The command.
    """

    command: RunCommand

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        return {**self.command.pack(), "event": COMMAND}

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        return cls(command=RUN_COMMANDS[found["kind"]].parse(found))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Flush(BaseEvent):
    """It is time to report exchanges."""

    name: ClassVar[str] = "flush"

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        return {"event": self.name}

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        del found
        return cls()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue(BaseEvent):
    """A round with its quorum has waited long enough for the others."""

    name: ClassVar[str] = "overdue"

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        return {"event": self.name}

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        del found
        return cls()


Event: TypeAlias = WorkerJoins | WorkerLeaves | WorkerSays | Commanded | Flush | Overdue
"""Events that a replica handles."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(BaseEvent):
    """A shard has its part of a message: sent to its standby, no event of the replica.

    Args:
        rank: Rank of the worker.
        staged: Number of the request.
        incarnation: Incarnation of the worker.
    """

    name: ClassVar[str] = "stage"
    rank: int
    staged: int
    incarnation: int

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        return {
            "event": self.name, "rank": self.rank, "staged": self.staged,
            "incarnation": self.incarnation,
        }  # fmt: skip

    @classmethod
    def parse(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        return cls(
            rank=whole(found["rank"]),
            staged=whole(found["staged"]),
            incarnation=whole(found["incarnation"]),
        )


_NAMED = {
    event.name: event for event in (WorkerJoins, WorkerLeaves, Flush, Overdue)
}  # fmt: skip
_SAID = {*REQUESTS, COMPLAINT}


def pack_event(event: Event, at: float) -> Head:
    """An event as plain values, with its time.

    Args:
        event: What happened.
        at: Seconds of the run.
    """
    return {**event.to_json(), "at": at}


def read_event(found: object) -> tuple[Event, float]:
    """The inverse of `pack_event`.

    Raises:
        ValueError: It is none; or another of `fields.WRONG`.
    """
    head = mapping(found)
    name, at = head["event"], quantity(head["at"])
    if name == COMMAND:
        return Commanded.parse(head), at
    if name in _SAID:
        return WorkerSays.parse(head), at
    return _NAMED[name].parse(head), at
