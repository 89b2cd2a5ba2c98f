"""Reports of servers that the center follows, or the state of an optimizer, or both."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, final

from shoal.engine.transport.fields import (
    MOST_NAME,
    Object,
    Whole,
    each,
    text,
    whole,
)
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.server_to_worker import State
from shoal.engine.transport.messages.structs import Spread
from shoal.wire.frames import Head


@final
class EpochEnded(Report):
    """Every sample of an epoch is committed; its center follows.

    Args:
        epoch: Its number.
        rows: Samples of the epoch.
        state: State of the run.
        size: Floats of the vector; for a shard, of its part.
        statistics: Floats of the statistics.
    """

    kind: ClassVar[str] = "epoch"
    epoch: Whole
    rows: Whole
    state: State
    size: Whole
    statistics: Whole


@final
class CenterShown(Report):
    """The center that the controller requested follows.

    Args:
        samples: Committed samples of all epochs.
        state: State of the run.
        size: Floats of the vector; for a shard, of its part.
        statistics: Floats of the statistics.
    """

    kind: ClassVar[str] = "center"
    samples: Whole
    state: State
    size: Whole
    statistics: Whole


class Sender(NamedTuple):
    """The worker that a state belongs to.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        sequence: Number of its last push that was applied.
    """

    rank: int
    incarnation: int
    sequence: int

    @classmethod
    def parse(cls, head: Head) -> Sender:
        """The inverse of `_asdict`."""
        return cls(*(whole(head[name]) for name in cls._fields))


class WorkerState(Report):
    """The state of an optimizer follows.

    Args:
        sender: The worker; None under gradient exchange: all have the same state.
    """

    sender: (
        Annotated[Sender, Spread(Sender.parse, Sender._asdict, first="rank")] | None
    ) = None


@final
class OptimizerState(WorkerState):
    """The state that the controller requested."""

    kind: ClassVar[str] = "optimizer"


@final
class WorkerSnapshot(WorkerState):
    """A state for the next checkpoint."""

    kind: ClassVar[str] = "snapshot"


def _array(value: Any) -> tuple[str, str, int]:
    name, dtype, size = value
    return text(name, MOST_NAME), text(dtype, MOST_NAME), whole(size)


@final
class RestartState(Report):
    """All that another server needs to continue: arrays, and an optimizer's state.

    Args:
        sequencer: The sequencer as plain values.
        arrays: Name, dtype and size of each array.
        changes: Serial number of the newest callback change that is included.
    """

    kind: ClassVar[str] = "restart"
    sequencer: Object
    arrays: Annotated[tuple[tuple[str, str, int], ...], each(_array)]
    changes: Whole = 0


ShowsCenter: TypeAlias = EpochEnded | CenterShown
"""The center follows, as vector, statistics, and sums of metrics if any."""
VectorReport: TypeAlias = ShowsCenter | RestartState
"""Every server reports its part of the center."""
