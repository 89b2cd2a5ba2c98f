"""What a server tells the controller of, in the order in which it happened.

Exchanges are gathered and sent together; other reports come after the exchanges before
them. Frames are packed and read here, for both ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from shoal.engine.server.center import Center
from shoal.engine.server.effects import Effect, TellController
from shoal.engine.server.records import EpochEnd, Record
from shoal.engine.server.session import WorkerSession
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.listener import Peer
from shoal.engine.transport.messages.server_to_controller import (
    CenterShown,
    EpochEnded,
    Exchanges,
    Report,
    numbered,
)
from shoal.strategies.base import Facts
from shoal.vectors import Sums, Vector


def pack_center(vector: Vector, statistics: Vector, sums: Sums | None) -> list[bytes]:
    """The body of a report that shows the center."""
    found = [vector.tobytes(), statistics.tobytes()]
    return found if sums is None else [*found, sums.tobytes()]


def read_center(
    report: EpochEnded | CenterShown, body: memoryview
) -> tuple[Vector, Vector, Sums]:
    """Center, statistics and sums of metrics; the sums are empty where none came."""
    at = 4 * report.size
    end = at + 4 * report.statistics
    vector = np.frombuffer(body[:at], np.float32)
    statistics = np.frombuffer(body[at:end], np.float32)
    # Copied: they need not start where float64 may.
    return vector, statistics, np.frombuffer(bytes(body[end:]), np.float64)


def read_records(
    report: Exchanges, body: memoryview
) -> tuple[list[Record], dict[int, Sums]]:
    """Exchanges, and sums of metrics after the last of them where they are large."""
    records = [Record(*record) for record in report.records]
    sums = np.frombuffer(body, np.float64)
    return records, {records[-1].epoch: sums} if sums.size else {}


def read_epoch(
    report: EpochEnded, body: memoryview, state: bytes | None = None
) -> EpochEnd:
    """The end of an epoch.

    Args:
        report: That tells of it.
        body: Of the frame.
        state: Of one worker's optimizer, None where there is none.
    """
    vector, statistics, metrics = read_center(report, body)
    return EpochEnd(
        epoch=report.epoch,
        rows=report.rows,
        metrics=metrics,
        vector=vector,
        statistics=statistics,
        optimizer_state=state,
        changes=report.state.changed,
    )


SMALL_METRICS = 16  # numbers of metric state that ride with every record


@final
class EpochTotals:
    """Keeps the books of a run.

    Args:
        size: Numbers of metric state.
        losses: Places among them of losses times the rows they were computed for.
    """

    def __init__(self, size: int, losses: Sequence[int] = ()) -> None:
        self._size, self._losses = size, list(losses)
        self._sums: dict[int, Sums] = {}
        self._saved: dict[int, Sums] = {}
        self._records: list[list[Any]] = []

    @property
    def has_records(self) -> bool:
        """Whether `take_records` would give some."""
        return bool(self._records)

    def note(
        self,
        session: WorkerSession,
        at: float,
        version: int,
        staleness: int,
        share: float = 1.0,
    ) -> None:
        """Enters a worker's last push and its metric states.

        Args:
            session: The worker's.
            at: Seconds of the run.
            version: Of the center, after it.
            staleness: As the strategy was told.
            share: See `share_of_loss`.
        """
        push = session.push
        if push is None:
            raise RuntimeError("a message is entered of which no word came")
        epoch = push.pieces[0].epoch
        sums = self._sums.setdefault(epoch, np.zeros(self._size))
        sums += weighed(session.buffers.metrics, self._losses, share)
        rows = sum(piece.rows for piece in push.pieces)
        small = sums.tolist() if sums.size <= SMALL_METRICS else None
        self._records.append(
            [at, session.rank, epoch, rows,
             push.steps, version, staleness, *push.times, small]
        )  # fmt: skip

    def take_records(self) -> tuple[list[list[Any]], bytes]:
        """Returns what is new, and large metric states of its last epoch."""
        records, self._records = self._records, []
        if not records or self._size <= SMALL_METRICS:
            return records, b""
        return records, self._sums[records[-1][2]].tobytes()

    def close(self, epoch: int) -> Sums:
        """Returns the sums of an epoch that is over."""
        return self._sums.pop(epoch, np.zeros(self._size))

    def save(self) -> None:
        """Keeps the sums of now, to go back to."""
        self._saved = {epoch: sums.copy() for epoch, sums in self._sums.items()}

    def kept(self, is_saved: bool) -> list[tuple[int, Sums]]:
        """Returns the sums of open epochs, as they are or as they were kept."""
        return sorted((self._saved if is_saved else self._sums).items())

    def adopt(self, sums: dict[int, Sums]) -> None:
        """Goes on from the sums of another server."""
        self._saved = sums
        self.restore()

    def restore(self) -> None:
        """Goes back to the sums that were kept."""
        self._sums = {epoch: sums.copy() for epoch, sums in self._saved.items()}


def weighed(metrics: Sums, losses: Sequence[int], share: float) -> Sums:
    """Sums of metric states of which losses weigh by more than their rows."""
    if share == 1.0 or not losses:
        return metrics
    found = metrics.copy()
    found[list(losses)] *= share
    return found


def share_of_loss(rank: int, facts: Mapping[int, Facts]) -> float:
    """By what a worker's loss weighs more in a step than its rows say.

    Workers count a loss by rows. One that is divided by something else, such as what
    masks leave, has its part of a step by that.

    Args:
        rank: Of the worker.
        facts: Of all messages of the step.

    Example:
        >>> facts = {0: Facts(samples=9, rows=2), 1: Facts(samples=3, rows=4)}
        >>> share_of_loss(0, facts), share_of_loss(1, facts)
        (2.25, 0.375)
    """
    if all(f.rows is None for f in facts.values()):
        return 1.0
    rows = {r: f.samples if f.rows is None else f.rows for r, f in facts.items()}
    mass = sum(f.samples for f in facts.values())
    if not rows[rank] or not mass:
        return 1.0
    return facts[rank].samples / mass * sum(rows.values()) / rows[rank]


@final
class ReportBuffer:
    """Gathers and numbers what the controller is told.

    Args:
        sizes: Of the vectors.
        effects: Where reports are added.
        losses: See `EpochTotals`.
    """

    def __init__(
        self, sizes: Sizes, effects: list[Effect], losses: Sequence[int] = ()
    ) -> None:
        self._effects = effects
        self.epoch_totals = EpochTotals(sizes.metrics, losses)
        self._told, self._has_worked = 0, False

    def freeze(self) -> tuple[Any, ...]:
        """Everything that may change, as one value; pickle it before it does."""
        return self.epoch_totals, self._told, self._has_worked

    def thaw(self, frozen: tuple[Any, ...]) -> None:
        """The inverse of `freeze`."""
        self.epoch_totals, self._told, self._has_worked = frozen

    @property
    def has_records(self) -> bool:
        """Whether there are exchanges that the controller was not told of."""
        return self.epoch_totals.has_records

    def note(
        self,
        sessions: Mapping[int, WorkerSession],
        found: dict[int, Facts],
        at: float,
        version: int,
    ) -> None:
        """Enters what was applied together, and tells of the first at once.

        Args:
            sessions: Whose pushes it were, by rank.
            found: What the strategy was told, by rank.
            at: Seconds of the run.
            version: Of the center, after it.
        """
        for rank, facts in found.items():
            share = share_of_loss(rank, found)
            self.epoch_totals.note(sessions[rank], at, version, facts.staleness, share)
        if not self._has_worked:
            self._has_worked = True
            self.flush()

    def tell(self, report: Report, *body: bytes) -> None:
        """Tells of something, after everything that happened before."""
        self.flush()
        self._report(report, *body)

    def flush(self) -> None:
        """Tells of exchanges since the last time."""
        records, sums = self.epoch_totals.take_records()
        if records:
            self._report(Exchanges(records=records), sums)

    def show(self, report: EpochEnded | CenterShown, center: Center) -> None:
        """Tells what the center is; at the end of an epoch its sums of metrics follow.

        Args:
            report: Why it is told.
            center: As it is now.
        """
        self.flush()  # its last records tell of sums that go now
        is_end = isinstance(report, EpochEnded)
        sums = self.epoch_totals.close(report.epoch) if is_end else None
        self._report(report, *pack_center(center.vector, center.statistics, sums))

    def _report(self, report: Report, *body: bytes) -> None:
        self._told += 1
        told = numbered(report, self._told)
        self._effects.append(TellController(told, body))


Send = Callable[..., None]


@final
class ReportChannel:
    """Keeps reports until there is a controller; a standby's are kept until one heard.

    Attributes:
        controller: Whom to tell, None while nobody is there.
    """

    def __init__(self) -> None:
        self.controller: Peer | None = None
        self._kept: deque[tuple[Report, tuple[bytes, ...]]] = deque()

    def say(self, send: Send, report: Report, *body: bytes) -> None:
        """Tells the controller now, or as soon as there is one.

        Args:
            send: Takes a peer, a message and a body.
            report: What to tell.
            body: That follows it.
        """
        if self.controller is None:
            self.keep(report, *body)
        else:
            send(self.controller, report, *body)

    def keep(self, report: Report, *body: bytes) -> None:
        """Tells whichever controller comes, unless it has heard of it elsewhere."""
        self._kept.append((report, body))

    def forget(self, heard: int) -> None:
        """The controller has heard reports up to this number."""
        while self._kept and (self._kept[0][0].number or 0) <= heard:
            self._kept.popleft()

    def attach(self, send: Send, controller: Peer, heard: int) -> None:
        """Tells a controller from now on, and first what it has not heard."""
        self.controller = controller
        self.forget(heard)
        kept, self._kept = self._kept, deque()
        for report, body in kept:
            send(controller, report, *body)
