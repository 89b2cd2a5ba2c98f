"""What servers report to the controller.

Reports that follow from events are numbered: the controller says which it has heard,
and a standby that takes over tells the others again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, final

from shoal.engine.transport.fields import (
    MOST_ALL,
    Flag,
    LongText,
    Name,
    Text,
    Whole,
    Wholes,
    mapping,
    some,
    whole,
)
from shoal.engine.transport.messages.base import Parser, Report, by_kind, read
from shoal.engine.transport.messages.state_reports import (
    CenterShown,
    EpochEnded,
    OptimizerState,
    RestartState,
    WorkerSnapshot,
)
from shoal.engine.transport.messages.structs import Spread
from shoal.engine.transport.messages.worker_reports import (
    WORKER_REPORTS,
    WorkerReport,
    pack_passed_on,
    read_passed_on,
)
from shoal.wire.frames import Head

# ------------------------------------------------------------ of the server itself


@final
class Pong(Report):
    """The answer to a `Ping`."""

    kind: ClassVar[str] = "pong"


@final
class Leads(Report):
    """A standby has taken over."""

    kind: ClassVar[str] = "leads"


class OfStandby(Report):
    """Something about the standby.

    Args:
        generation: Counts the standbys of a run.
    """

    generation: Whole


@final
class StandbyCalled(OfStandby):
    """A standby has connected, and is not accepted yet."""

    kind: ClassVar[str] = "standby_called"


@final
class StandbyReady(OfStandby):
    """A standby has the whole state of the server."""

    kind: ClassVar[str] = "standby_ready"


@final
class StandbyLeft(OfStandby):
    """The connection to a standby is closed.

    Args:
        reason: The reason.
    """

    kind: ClassVar[str] = "standby_left"
    reason: Text


@final
class CallerRejected(Report):
    """Callers were rejected.

    Args:
        peer: Address of the last one.
        reason: Reason for the last one.
        count: Number of callers.
    """

    # In events of older runs, too.
    kind: ClassVar[str] = "stranger"
    peer: Text
    reason: Text
    count: Whole


@final
class Mismatch(Report):
    """A process with another model wanted to join.

    Args:
        node: Its machine.
    """

    kind: ClassVar[str] = "mismatch"
    node: Name


@final
class Unordered(Report):
    """A shard has no connection to the server that orders.

    Args:
        shard: Its number.
    """

    kind: ClassVar[str] = "unordered"
    shard: Whole


@final
class Broken(Report):
    """The strategy's own code raised, which ends the run.

    Args:
        reason: Text for the user.
    """

    kind: ClassVar[str] = "broken"
    reason: LongText


# -------------------------------------------------------------------- of workers


class OfWorker(Report):
    """Something about a worker.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
    """

    rank: Whole
    incarnation: Whole


@final
class Joined(OfWorker):
    """A process has become a worker.

    Args:
        pid: Process id on that machine.
        node: Its machine.
        token: Name of the process for the controller.
    """

    kind: ClassVar[str] = "joined"
    pid: Whole
    node: Name
    token: Name


@final
class WorkerReady(OfWorker):
    """A worker has compiled its model."""

    kind: ClassVar[str] = "ready"


@final
class WorkerLeft(OfWorker):
    """A worker is gone.

    Args:
        reason: The reason.
        is_hung: It was dropped because it was silent.
        rows: Samples that were leased to it.
    """

    kind: ClassVar[str] = "left"
    reason: Text
    is_hung: Flag
    rows: Whole


@final
class Late(Report):
    """A round has closed without some workers.

    Args:
        ranks: Ranks of these workers.
    """

    kind: ClassVar[str] = "late"
    ranks: Wholes


@final
class WorkerTold(OfWorker):
    """A worker reports to the controller; the kind is that of its message.

    Args:
        said: The message.
    """

    kind: ClassVar[str] = ""
    said: Annotated[WorkerReport, Spread(read_passed_on, pack_passed_on)]

    def pack(self) -> Head:
        """The head of its frame."""
        who = {"rank": self.rank, "incarnation": self.incarnation}
        return {**who, **super().pack(), "kind": self.said.kind}


# --------------------------------------------------------------------- of the run


def _counts(value: Any) -> dict[str, int]:
    return {name: whole(count) for name, count in mapping(value).items()}


@final
class Warned(Report):
    """A warning for the user.

    Args:
        text: The text.
    """

    kind: ClassVar[str] = "warning"
    text: Text


@final
class RolledBack(Report):
    """Work since the last snapshot is not committed any more.

    Args:
        lineage: Lineage from now on.
        clock: Committed steps of the user's batch size.
        committed: Committed samples of each open epoch, by its number.
    """

    kind: ClassVar[str] = "rollback"
    lineage: Whole
    clock: Whole
    committed: Annotated[dict[str, int], _counts]


@final
class Exchanges(Report):
    """Exchanges took place; large sums of metrics of the last one follow.

    Args:
        records: Fields of the records, see `Record`.
    """

    kind: ClassVar[str] = "records"
    records: Annotated[list[list[Any]], partial(some, most=MOST_ALL)]


@final
class LeasesShown(Report):
    """Who trains which samples of the open epochs.

    Args:
        epochs: See `lease_report`.
    """

    kind: ClassVar[str] = "leases"
    epochs: Annotated[list[Any], some]


REPORTS: Mapping[str, Parser[Report]] = {
    **by_kind(
        Pong, Leads, StandbyCalled, StandbyReady, StandbyLeft, CallerRejected, Mismatch,
        Unordered, Broken, Joined, WorkerReady, WorkerLeft, Late, Warned, RolledBack,
        Exchanges, LeasesShown, EpochEnded, CenterShown, OptimizerState, WorkerSnapshot,
        RestartState,
    ),
    **dict.fromkeys(WORKER_REPORTS, WorkerTold),
}  # fmt: skip
"""By kind."""


def read_report(head: Head) -> Report:
    """Reads a server's report.

    Raises:
        BadFrame: No server of this version sends this.
    """
    return read(REPORTS, head, "the server")
