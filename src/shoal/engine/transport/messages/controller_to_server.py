"""Commands of the controller to servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeAlias, final

from shoal.engine.transport.fields import (
    MOST_ALL,
    MOST_NAME,
    address,
    rate,
    some,
    text,
    whole,
)
from shoal.engine.transport.messages.base import FixedKind, Parser, by_kind, read
from shoal.wire.frames import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(FixedKind):
    """A command to a server.

    Args:
        heard: Number of the last report that the controller has heard; None where it
            does not say.
    """

    heard: int | None = None

    def pack(self) -> Head:
        """The head of its frame."""
        head: Head = {"kind": self.kind}
        if self.heard is not None:
            head["heard"] = self.heard
        return head | self.to_json()

    def to_json(self) -> dict[str, Any]:
        """The fields except `heard`, as plain values."""
        names = [field.name for field in fields(self) if field.name != "heard"]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(heard=_heard(head))


def _heard(head: Head) -> int | None:
    return whole(head["heard"]) if "heard" in head else None


# --------------------------------------------------------------- to every server


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Command):
    """This is the controller."""

    kind: ClassVar[str] = "control"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Command):
    """Asks the server for a `Pong`."""

    kind: ClassVar[str] = "ping"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Command):
    """The run is over."""

    kind: ClassVar[str] = "stop"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GoAlone(Command):
    """Standbys up to a generation are gone.

    Args:
        generation: Counts the standbys of a run.
    """

    kind: ClassVar[str] = "alone"
    generation: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(heard=_heard(head), generation=whole(head["generation"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lead(Command):
    """Promotes a standby.

    Args:
        living: Tokens of workers whose processes live.
        order: Address of the server that orders events, if it is another one.
        has_order: Whether `order` is part of the message.
    """

    kind: ClassVar[str] = "lead"
    living: tuple[str, ...]
    order: tuple[str, int] | None = None
    has_order: bool = True

    def to_json(self) -> dict[str, Any]:
        """The fields except `heard`, as plain values."""
        order = {"order": self.order} if self.has_order else {}
        return {"living": self.living, **order}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        order = head.get("order")
        return cls(
            heard=_heard(head),
            living=tuple(text(t, MOST_NAME) for t in some(head["living"], MOST_ALL)),
            order=None if order is None else address(order),
            has_order="order" in head,
        )


# ------------------------------------------------------------- to one kind of them


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnded(Command):
    """The process of a worker ended, to the server that orders.

    Args:
        token: Name of the process.
    """

    kind: ClassVar[str] = "gone"
    token: str

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(heard=_heard(head), token=text(head["token"], MOST_NAME))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Follow(Command):
    """Another server orders events from now on, to a shard.

    Args:
        order: Address of that server.
    """

    kind: ClassVar[str] = "follow"
    order: tuple[str, int]

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(heard=_heard(head), order=address(head["order"]))


# ---------------------------------------------------------- to the state of the run


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed(Command):
    """An epoch may begin.

    Args:
        epoch: Its number.
    """

    kind: ClassVar[str] = "proceed"
    epoch: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(heard=_heard(head), epoch=whole(head["epoch"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Expect(Command):
    """No more workers than these will join before the start.

    Args:
        workers: Number of workers.
    """

    kind: ClassVar[str] = "expect"
    workers: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(heard=_heard(head), workers=whole(head["workers"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Halt(Command):
    """No more data is handed out."""

    kind: ClassVar[str] = "halt"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pace(Command):
    """Hands out one step, as callbacks see each one.

    Args:
        after: Version that the controller has heard of; -1 for as it is now, None to
            hand out as much as ever again.
    """

    kind: ClassVar[str] = "pace"
    after: int | None

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        after = head["after"]
        if after is not None:
            after = whole(int(after) + 1) - 1
        return cls(heard=_heard(head), after=after)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SetLearningRate(Command):
    """A callback has set the learning rate.

    Args:
        value: The learning rate, None under a schedule.
    """

    kind: ClassVar[str] = "learning_rate"
    value: float | None

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(heard=_heard(head), value=rate(head["value"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeModel(Command):
    """Callbacks have changed something else of the model; the changes follow."""

    kind: ClassVar[str] = "changes"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Command):
    """Ends the run, and tells the workers."""

    kind: ClassVar[str] = "finish"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AskCenter(Command):
    """Requests the center."""

    kind: ClassVar[str] = "center"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AskState(Command):
    """Requests the state of one worker's optimizer."""

    kind: ClassVar[str] = "state"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AskCheckpoint(Command):
    """Requests all that another server needs to continue.

    Args:
        wants_snapshot: And, later, the optimizer's state of one more worker; None
            where that is not said.
    """

    kind: ClassVar[str] = "checkpoint"
    wants_snapshot: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields except `heard`, as plain values."""
        wants = self.wants_snapshot
        return {} if wants is None else {"wants_snapshot": wants}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        wants = head.get("wants_snapshot")
        return cls(
            heard=_heard(head), wants_snapshot=None if wants is None else bool(wants)
        )


RunCommand: TypeAlias = (
    Proceed | Expect | Halt | Pace | SetLearningRate | ChangeModel | Finish
    | AskCenter | AskState | AskCheckpoint
)  # fmt: skip
"""Commands that change the state of a run, and are therefore events."""
RUN_COMMANDS: Mapping[str, Parser[RunCommand]] = by_kind(
    Proceed, Expect, Halt, Pace, SetLearningRate, ChangeModel, Finish,
    AskCenter, AskState, AskCheckpoint,
)  # fmt: skip
"""By kind."""
COMMANDS: Mapping[str, Parser[Command]] = {
    **RUN_COMMANDS,
    **by_kind(Control, Ping, Stop, GoAlone, Lead, WorkerEnded, Follow),
}
"""By kind."""


def read_command(head: Head) -> Command:
    """Reads a command of the controller.

    Raises:
        BadFrame: No controller of this version sends this.
    """
    return read(COMMANDS, head, "the controller")
