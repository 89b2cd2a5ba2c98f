"""Events of a run, as servers send them to shards and standbys.

The same events in the same order make the same replica wherever they are handled, so
each says all that counts; `read_event` believes nothing. The vectors of a worker's
message are no part of its event.
"""

from __future__ import annotations

from typing import ClassVar, Self, TypeAlias, final

from shoal.engine.transport.fields import (
    Flag,
    Hint,
    Name,
    Pid,
    Text,
    Whole,
    mapping,
    quantity,
    whole,
)
from shoal.engine.transport.messages.controller_to_server import (
    RUN_COMMANDS,
    RunCommand,
)
from shoal.engine.transport.messages.structs import Struct
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


class BaseEvent(Struct):
    """Something that happened. Abstract."""

    name: ClassVar[str] = ""

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        return {"event": self.name, **super().to_json()}


@final
class WorkerJoins(BaseEvent):
    """A process becomes a worker.

    Args:
        hint: The rank it asks for, -1 for any.
        pid: Process id on that machine.
        node: Its machine.
        token: Name of its process for the controller.
    """

    name: ClassVar[str] = "join"
    hint: Hint
    pid: Pid
    node: Name
    token: Name

    def to_json(self) -> Head:
        """Name and fields as plain values."""
        known = {"pid": self.pid, "node": self.node, "token": self.token}
        return {"event": self.name, "hint": self.hint, "known": known}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `to_json`."""
        return super().parse({**head, **mapping(head["known"])})


@final
class WorkerLeaves(BaseEvent):
    """A worker is gone.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        reason: The reason.
        is_hung: It was dropped because it was silent.
    """

    name: ClassVar[str] = "leave"
    rank: Whole
    incarnation: Whole
    reason: Text
    is_hung: Flag


@final
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
    def parse(cls, head: Head) -> Self:
        """The inverse of `to_json`."""
        message: FromWorker
        if "said" in head:
            said = mapping(head["said"])
            message = WORKER_REPORTS[said["kind"]].from_json(said)
        else:
            message = REQUESTS[head["event"]].parse(head)
        return cls(
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
            question=whole(head["question"]),
            message=message,
            has_blob=bool(head.get("has_blob")),
        )


@final
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
    def parse(cls, head: Head) -> Self:
        """The inverse of `to_json`."""
        return cls(command=RUN_COMMANDS[head["kind"]].parse(head))


@final
class Flush(BaseEvent):
    """It is time to report exchanges."""

    name: ClassVar[str] = "flush"


@final
class Overdue(BaseEvent):
    """A round with its quorum has waited long enough for the others."""

    name: ClassVar[str] = "overdue"


Event: TypeAlias = WorkerJoins | WorkerLeaves | WorkerSays | Commanded | Flush | Overdue
"""Events that a replica handles."""


@final
class Staged(BaseEvent):
    """A shard has its part of a message: sent to its standby, no event of the replica.

    Args:
        rank: Rank of the worker.
        staged: Number of the request.
        incarnation: Incarnation of the worker.
    """

    name: ClassVar[str] = "stage"
    rank: Whole
    staged: Whole
    incarnation: Whole


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
