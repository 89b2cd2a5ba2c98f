"""What servers report to the controller.

Reports that follow from events are numbered: the controller says which it has heard,
and a standby that takes over tells the others again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, final

from shoal.engine.transport.fields import (
    MOST_ALL,
    MOST_NAME,
    MOST_TEXT,
    mapping,
    some,
    text,
    whole,
)
from shoal.engine.transport.messages.base import FixedKind, Parser, by_kind, read
from shoal.engine.transport.messages.server_to_worker import RunState
from shoal.engine.transport.messages.worker_reports import WORKER_REPORTS, WorkerReport
from shoal.wire.frames import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(FixedKind):
    """A report to the controller.

    Args:
        number: Counts the reports that follow from events; None for others.
    """

    number: int | None = None

    def pack(self) -> Head:
        """The head of its frame."""
        head = {"kind": self.kind, **self.to_json()}
        if self.number is not None:
            head["number"] = self.number
        return head

    def to_json(self) -> dict[str, Any]:
        """The fields except `number`, as plain values."""
        names = [field.name for field in fields(self) if field.name != "number"]
        return {name: getattr(self, name) for name in names}


def _number(head: Head) -> int | None:
    return whole(head["number"]) if "number" in head else None


# ------------------------------------------------------------ of the server itself


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(Report):
    """The answer to a `Ping`."""

    kind: ClassVar[str] = "pong"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Leads(Report):
    """A standby has taken over."""

    kind: ClassVar[str] = "leads"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfStandby(Report):
    """Something about the standby.

    Args:
        generation: Counts the standbys of a run.
    """

    generation: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=_number(head), generation=whole(head["generation"]))


@final
class StandbyCalled(OfStandby):
    """A standby has connected, and is not accepted yet."""

    __slots__ = ()
    kind: ClassVar[str] = "standby_called"


@final
class StandbyReady(OfStandby):
    """A standby has the whole state of the server."""

    __slots__ = ()
    kind: ClassVar[str] = "standby_ready"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyLeft(OfStandby):
    """The connection to a standby is closed.

    Args:
        reason: The reason.
    """

    kind: ClassVar[str] = "standby_left"
    reason: str

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            generation=whole(head["generation"]),
            reason=text(head["reason"], MOST_TEXT),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger(Report):
    """Callers were rejected.

    Args:
        peer: Address of the last one.
        reason: Reason for the last one.
        count: Number of callers.
    """

    kind: ClassVar[str] = "stranger"
    peer: str
    reason: str
    count: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            peer=text(head["peer"], MOST_TEXT),
            reason=text(head["reason"], MOST_TEXT),
            count=whole(head["count"]),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch(Report):
    """A process with another model wanted to join.

    Args:
        node: Its machine.
    """

    kind: ClassVar[str] = "mismatch"
    node: str

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=_number(head), node=text(head["node"], MOST_NAME))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unordered(Report):
    """A shard has no connection to the server that orders.

    Args:
        shard: Its number.
    """

    kind: ClassVar[str] = "unordered"
    shard: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=_number(head), shard=whole(head["shard"]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Report):
    """The strategy's own code raised, which ends the run.

    Args:
        reason: Text for the user.
    """

    kind: ClassVar[str] = "broken"
    reason: str

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=_number(head), reason=text(head["reason"], MOST_ALL))


# -------------------------------------------------------------------- of workers


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Report):
    """A process has become a worker.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        pid: Process id on that machine.
        node: Its machine.
        token: Name of the process for the controller.
    """

    kind: ClassVar[str] = "joined"
    rank: int
    incarnation: int
    pid: int
    node: str
    token: str

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
            pid=whole(head["pid"]),
            node=text(head["node"], MOST_NAME),
            token=text(head["token"], MOST_NAME),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady(Report):
    """A worker has compiled its model.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
    """

    kind: ClassVar[str] = "ready"
    rank: int
    incarnation: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft(Report):
    """A worker is gone.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        reason: The reason.
        is_hung: It was dropped because it was silent.
        rows: Samples that were leased to it.
    """

    kind: ClassVar[str] = "left"
    rank: int
    incarnation: int
    reason: str
    is_hung: bool
    rows: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
            reason=text(head["reason"], MOST_TEXT),
            is_hung=bool(head["is_hung"]),
            rows=whole(head["rows"]),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Report):
    """A round has closed without some workers.

    Args:
        ranks: Ranks of these workers.
    """

    kind: ClassVar[str] = "late"
    ranks: list[int]

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        ranks = [whole(rank) for rank in some(head["ranks"], MOST_ALL)]
        return cls(number=_number(head), ranks=ranks)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTold(Report):
    """A worker reports to the controller; the kind is that of its message.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        said: The message.
    """

    kind: ClassVar[str] = ""
    rank: int
    incarnation: int
    said: WorkerReport

    def pack(self) -> Head:
        """The head of its frame."""
        head: Head = {
            "rank": self.rank, "incarnation": self.incarnation,
            "kind": self.said.kind, **self.said.to_json(),
        }  # fmt: skip
        return head if self.number is None else {**head, "number": self.number}

    def to_json(self) -> dict[str, Any]:
        """The fields except `number`, as plain values."""
        who = {"rank": self.rank, "incarnation": self.incarnation}
        return {**who, **self.said.to_json()}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            rank=whole(head["rank"]),
            incarnation=whole(head["incarnation"]),
            said=WORKER_REPORTS[head["kind"]].from_json(head),
        )


# --------------------------------------------------------------------- of the run


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Report):
    """A warning for the user.

    Args:
        text: The text.
    """

    kind: ClassVar[str] = "warning"
    text: str

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=_number(head), text=text(head["text"], MOST_TEXT))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Report):
    """Work since the last snapshot is not committed any more.

    Args:
        lineage: Lineage from now on.
        clock: Committed steps of the user's batch size.
        committed: Committed samples of each open epoch, by its number.
    """

    kind: ClassVar[str] = "rollback"
    lineage: int
    clock: int
    committed: dict[str, int]

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        committed = mapping(head["committed"])
        return cls(
            number=_number(head),
            lineage=whole(head["lineage"]),
            clock=whole(head["clock"]),
            committed={epoch: whole(rows) for epoch, rows in committed.items()},
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges(Report):
    """Exchanges took place; large sums of metrics of the last one follow.

    Args:
        records: Fields of the records, see `Record`.
    """

    kind: ClassVar[str] = "records"
    records: list[list[Any]]

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(number=_number(head), records=some(head["records"], MOST_ALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowsCenter(Report):
    """The center follows, as vector, statistics, and sums of metrics if any.

    Args:
        state: State of the run.
        size: Floats of the vector; for a shard, of its part.
        statistics: Floats of the statistics.
    """

    state: RunState
    size: int
    statistics: int

    def _lengths(self) -> dict[str, Any]:
        lengths = {"size": self.size, "statistics": self.statistics}
        return {**self.state.to_json(), **lengths}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded(ShowsCenter):
    """Every sample of an epoch is committed.

    Args:
        epoch: Its number.
        rows: Samples of the epoch.
    """

    kind: ClassVar[str] = "epoch"
    epoch: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        """The fields except `number`, as plain values."""
        return {"epoch": self.epoch, "rows": self.rows, **self._lengths()}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            epoch=whole(head["epoch"]),
            rows=whole(head["rows"]),
            state=RunState.parse(head),
            size=whole(head["size"]),
            statistics=whole(head["statistics"]),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CenterShown(ShowsCenter):
    """The center that the controller requested.

    Args:
        samples: Committed samples of all epochs.
    """

    kind: ClassVar[str] = "center"
    samples: int

    def to_json(self) -> dict[str, Any]:
        """The fields except `number`, as plain values."""
        return {"samples": self.samples, **self._lengths()}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            samples=whole(head["samples"]),
            state=RunState.parse(head),
            size=whole(head["size"]),
            statistics=whole(head["statistics"]),
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState(Report):
    """The state of an optimizer follows.

    Args:
        sender: The worker; None under gradient exchange: all have the same state.
    """

    sender: Sender | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields except `number`, as plain values."""
        return {} if self.sender is None else self.sender._asdict()

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        sender = None
        if "rank" in head:
            sender = Sender(*(whole(head[name]) for name in Sender._fields))
        return cls(number=_number(head), sender=sender)


@final
class OptimizerState(WorkerState):
    """The state that the controller requested."""

    __slots__ = ()
    kind: ClassVar[str] = "optimizer"


@final
class WorkerSnapshot(WorkerState):
    """A state for the next checkpoint."""

    __slots__ = ()
    kind: ClassVar[str] = "snapshot"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartState(Report):
    """All that another server needs to continue: arrays, and an optimizer's state.

    Args:
        sequencer: The sequencer as plain values.
        arrays: Name, dtype and size of each array.
        changes: Serial number of the newest callback change that is included.
    """

    kind: ClassVar[str] = "restart"
    sequencer: dict[str, Any]
    arrays: tuple[tuple[str, str, int], ...]
    changes: int = 0

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            number=_number(head),
            sequencer=mapping(head["sequencer"]),
            arrays=tuple(
                (text(name, MOST_NAME), text(dtype, MOST_NAME), whole(size))
                for name, dtype, size in some(head["arrays"], MOST_ALL)
            ),
            changes=whole(head.get("changes", 0)),
        )


VectorReport: TypeAlias = EpochEnded | CenterShown | RestartState
"""Reports that show the center: every server reports its part."""
REPORTS: Mapping[str, Parser[Report]] = {
    **by_kind(
        Pong, Leads, StandbyCalled, StandbyReady, StandbyLeft, Stranger, Mismatch,
        Unordered, Broken, Joined, WorkerReady, WorkerLeft, Late, Warned, RolledBack,
        Exchanges, EpochEnded, CenterShown, OptimizerState, WorkerSnapshot,
        RestartState,
    ),
    **dict.fromkeys(WORKER_REPORTS, WorkerTold),
}  # fmt: skip
"""By kind."""


def numbered(report: Report, number: int) -> Report:
    """Returns the report with a number."""
    return replace(report, number=number)


def read_report(head: Head) -> Report:
    """Reads a server's report.

    Raises:
        BadFrame: No server of this version sends this.
    """
    return read(REPORTS, head, "the server")
