"""Commands of the controller to servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias, final

from shoal.engine.transport.fields import (
    Address,
    Flag,
    Name,
    Names,
    Rate,
    Whole,
    whole,
)
from shoal.engine.transport.messages.base import Message, Parser, by_kind, read
from shoal.wire.frames import Head


class Command(Message):
    """A command to a server.

    Args:
        heard: Number of the last report that the controller has heard; None where it
            does not say.
    """

    heard: Whole | None = None


# --------------------------------------------------------------- to every server


@final
class Control(Command):
    """This is the controller."""

    kind: ClassVar[str] = "control"


@final
class Ping(Command):
    """Asks the server for a `Pong`."""

    kind: ClassVar[str] = "ping"


@final
class Stop(Command):
    """The run is over."""

    kind: ClassVar[str] = "stop"


@final
class GoAlone(Command):
    """Standbys up to a generation are gone.

    Args:
        generation: Counts the standbys of a run.
    """

    kind: ClassVar[str] = "alone"
    generation: Whole


@final
class Lead(Command):
    """Promotes a standby.

    Args:
        living: Tokens of workers whose processes live.
        order: Address of the server that orders events, if it is another one.
        has_order: Whether `order` is part of the message.
    """

    kind: ClassVar[str] = "lead"
    living: Names
    # In code, `order` is the address of the primary; the key is bytes on the wire.
    order: Address | None = None
    has_order: Flag = True

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        found = super().to_json()
        del found["has_order"]
        return {**found, "order": self.order} if self.has_order else found

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return super().parse({**head, "has_order": "order" in head})


# ------------------------------------------------------------- to one kind of them


@final
class WorkerEnded(Command):
    """The process of a worker ended, to the server that orders.

    Args:
        token: Name of the process.
    """

    kind: ClassVar[str] = "gone"
    token: Name


@final
class Follow(Command):
    """Another server orders events from now on, to a shard.

    Args:
        order: Address of that server.
    """

    kind: ClassVar[str] = "follow"
    order: Address


# ---------------------------------------------------------- to the state of the run


@final
class Proceed(Command):
    """An epoch may begin.

    Args:
        epoch: Its number.
    """

    kind: ClassVar[str] = "proceed"
    epoch: Whole


@final
class Expect(Command):
    """No more workers than these will join before the start.

    Args:
        workers: Number of workers.
    """

    kind: ClassVar[str] = "expect"
    workers: Whole


@final
class Halt(Command):
    """No more data is handed out."""

    kind: ClassVar[str] = "halt"


def _version(value: Any) -> int:
    return whole(int(value) + 1) - 1


@final
class Pace(Command):
    """Hands out one step, as callbacks see each one.

    Args:
        after: Version that the controller has heard of; -1 for as it is now, None to
            hand out as much as ever again.
    """

    kind: ClassVar[str] = "pace"
    after: Annotated[int, _version] | None


@final
class SetLearningRate(Command):
    """A callback has set the learning rate.

    Args:
        value: The learning rate, None under a schedule.
    """

    kind: ClassVar[str] = "learning_rate"
    value: Rate


@final
class ChangeModel(Command):
    """Callbacks have changed something else of the model; the changes follow."""

    kind: ClassVar[str] = "changes"


@final
class Finish(Command):
    """Ends the run, and tells the workers."""

    kind: ClassVar[str] = "finish"


@final
class AskCenter(Command):
    """Requests the center."""

    kind: ClassVar[str] = "center"


@final
class AskState(Command):
    """Requests the state of one worker's optimizer."""

    kind: ClassVar[str] = "state"


@final
class AskCheckpoint(Command):
    """Requests all that another server needs to continue.

    Args:
        wants_snapshot: And, later, the optimizer's state of one more worker; None
            where that is not said.
    """

    kind: ClassVar[str] = "checkpoint"
    wants_snapshot: Flag | None = None


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
