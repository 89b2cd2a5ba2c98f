"""Reports of a server to the controller, in the order of their events.

Exchanges are gathered and sent together; other reports come after the exchanges before
them. What follows a report is packed and read here, for both ends.
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
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.server_to_controller import Exchanges
from shoal.engine.transport.messages.state_reports import (
    CenterShown,
    EpochEnded,
)
from shoal.strategies.base import Facts
from shoal.vectors import Sums, Vector


def pack_center(vector: Vector, statistics: Vector, sums: Sums | None) -> list[bytes]:
    """Returns the body of a report that shows the center."""
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
    """Reads the end of an epoch.

    Args:
        report: The report of it.
        body: Body of the frame.
        state: Optimizer state of one worker, None if there is none.
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


SMALL_METRICS = 16
"""Numbers of the metric states that are part of every record; the loss comes first."""


@final
class EpochTotals:
    """Sums and records of a run's exchanges.

    Args:
        size: Size of the metric states.
        losses: Places in them of losses times the rows that they were computed for.
    """

    def __init__(self, size: int, losses: Sequence[int] = ()) -> None:
        self._size, self._losses = size, list(losses)
        self._sums: dict[int, Sums] = {}
        self._saved: dict[int, Sums] = {}
        self._records: list[list[Any]] = []

    @property
    def has_records(self) -> bool:
        """Whether there are records."""
        return bool(self._records)

    def note(
        self,
        session: WorkerSession,
        at: float,
        version: int,
        staleness: int,
        share: float = 1.0,
    ) -> None:
        """Adds a worker's last push and its metric states.

        Args:
            session: Session of the worker.
            at: Seconds of the run.
            version: Version of the center after it.
            staleness: Staleness that the strategy was told.
            share: See `share_of_loss`.
        """
        push = session.push
        if push is None:
            raise RuntimeError("an event is handled of a worker that has not pushed")
        epoch = push.pieces[0].epoch
        sums = self._sums.setdefault(epoch, np.zeros(self._size))
        sums += weighed(session.buffers.metrics, self._losses, share)
        rows = sum(piece.rows for piece in push.pieces)
        self._records.append(
            [at, session.rank, epoch, rows, push.steps, version, staleness,
             *push.times, sums[:SMALL_METRICS].tolist()]
        )  # fmt: skip

    def take_records(self) -> tuple[list[list[Any]], bytes]:
        """Returns new records, and large metric states of their last epoch."""
        records, self._records = self._records, []
        if not records or self._size <= SMALL_METRICS:
            return records, b""
        return records, self._sums[records[-1][2]].tobytes()

    def close(self, epoch: int) -> Sums:
        """Returns the sums of a finished epoch, and drops them."""
        return self._sums.pop(epoch, np.zeros(self._size))

    def save(self) -> None:
        """Saves the current sums, for a rollback."""
        self._saved = {epoch: sums.copy() for epoch, sums in self._sums.items()}

    def kept(self, is_saved: bool) -> list[tuple[int, Sums]]:
        """Returns the sums of open epochs, the current or the saved ones."""
        return sorted((self._saved if is_saved else self._sums).items())

    def adopt(self, sums: dict[int, Sums]) -> None:
        """Continues from the sums of another server."""
        self._saved = sums
        self.restore()

    def restore(self) -> None:
        """Restores the saved sums."""
        self._sums = {epoch: sums.copy() for epoch, sums in self._saved.items()}


def weighed(metrics: Sums, losses: Sequence[int], share: float) -> Sums:
    """Sums of metric states, with losses scaled by a factor."""
    if share == 1.0 or not losses:
        return metrics
    found = metrics.copy()
    found[list(losses)] *= share
    return found


def share_of_loss(rank: int, facts: Mapping[int, Facts]) -> float:
    """Factor by which a worker's loss weighs more in a step than its rows.

    Workers count a loss by rows. A loss that is divided by another sum, such as that of
    a mask, has its share of the step by that sum.

    Args:
        rank: Rank of the worker.
        facts: Facts of all messages of the step.

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
    """Buffers and numbers reports to the controller.

    Args:
        sizes: Sizes of the vectors.
        effects: List to which reports are added.
        losses: See `EpochTotals`.
    """

    def __init__(
        self, sizes: Sizes, effects: list[Effect], losses: Sequence[int] = ()
    ) -> None:
        self._effects = effects
        self.epoch_totals = EpochTotals(sizes.metrics, losses)
        self._told, self._has_worked = 0, False

    def freeze(self) -> tuple[Any, ...]:
        """Returns the mutable state; pickle it before it changes."""
        return self.epoch_totals, self._told, self._has_worked

    def thaw(self, frozen: tuple[Any, ...]) -> None:
        """The inverse of `freeze`."""
        self.epoch_totals, self._told, self._has_worked = frozen

    @property
    def has_records(self) -> bool:
        """Whether there are exchanges that were not reported."""
        return self.epoch_totals.has_records

    def note(
        self,
        sessions: Mapping[int, WorkerSession],
        found: dict[int, Facts],
        at: float,
        version: int,
    ) -> None:
        """Adds pushes that were applied together; reports a run's first ones at once.

        Args:
            sessions: Sessions by rank.
            found: Facts that the strategy was given, by rank.
            at: Seconds of the run.
            version: Version of the center after it.
        """
        for rank, facts in found.items():
            share = share_of_loss(rank, found)
            self.epoch_totals.note(sessions[rank], at, version, facts.staleness, share)
        if not self._has_worked:
            self._has_worked = True
            self.flush()

    def tell(self, report: Report, *body: bytes) -> None:
        """Reports after everything that happened before."""
        self.flush()
        self._report(report, *body)

    def flush(self) -> None:
        """Reports exchanges since the last time."""
        records, sums = self.epoch_totals.take_records()
        if records:
            self._report(Exchanges(records=records), sums)

    def show(self, report: EpochEnded | CenterShown, center: Center) -> None:
        """Reports the center; at the end of an epoch its sums of metrics follow.

        Args:
            report: The report.
            center: The center as it is now.
        """
        self.flush()  # its last records contain sums that are dropped now
        is_end = isinstance(report, EpochEnded)
        sums = self.epoch_totals.close(report.epoch) if is_end else None
        self._report(report, *pack_center(center.vector, center.statistics, sums))

    def _report(self, report: Report, *body: bytes) -> None:
        # The standby gives the same report the same number. So a controller can tell a
        # new leader which reports it has.
        self._told += 1
        told = report.replace(number=self._told)
        self._effects.append(TellController(told, body))


Send = Callable[..., None]


@final
class ReportChannel:
    """Keeps reports until there is a controller, and on a standby until it has them.

    Attributes:
        controller: The controller's connection, None while there is none.
    """

    def __init__(self) -> None:
        self.controller: Peer | None = None
        self._kept: deque[tuple[Report, tuple[bytes, ...]]] = deque()

    def say(self, send: Send, report: Report, *body: bytes) -> None:
        """Sends a report to the controller, now or as soon as there is one.

        Args:
            send: Function of a peer, a message and a body.
            report: The report.
            body: Bytes that follow it.
        """
        if self.controller is None:
            self.keep(report, *body)
        else:
            send(self.controller, report, *body)

    def keep(self, report: Report, *body: bytes) -> None:
        """Keeps a report for the next controller, unless it has it from elsewhere."""
        self._kept.append((report, body))

    def forget(self, heard: int) -> None:
        """Drops reports up to a number, which the controller has."""
        while self._kept and (self._kept[0][0].number or 0) <= heard:
            self._kept.popleft()

    def attach(self, send: Send, controller: Peer, heard: int) -> None:
        """Sends reports to a controller from now on, beginning with those it lacks."""
        self.controller = controller
        self.forget(heard)
        kept, self._kept = self._kept, deque()
        for report, body in kept:
            send(controller, report, *body)
