"""One follower a run, shared by all who watch it; it sleeps when nobody does.

A follower reads what is new, folds it, and keeps what charts need.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from shoal.errors import ShoalError
from shoal.launchers.cores import count_cores
from shoal.runs.events import Event, exchange_columns, without_events
from shoal.runs.folder import Folder
from shoal.runs.following import Follow
from shoal.runs.leases import EpochLeases, LeaseFold
from shoal.runs.log_times import LogTimes
from shoal.runs.summary import SPENT, Fold, RunSummary, WriterState
from shoal.runs.worker_status import WorkerFold, WorkerStatus
from shoal.runs.writer import look_at_writer
from shoal.ui.budget import Budget
from shoal.ui.charts import Numbers
from shoal.ui.epoch_axis import EpochAxis
from shoal.ui.exchanges import Exchanges, TimeSpent
from shoal.ui.moments import Checkpoint, Moment, told
from shoal.ui.run_files import RunFiles
from shoal.ui.speeds import LEAST_SPAN_S, has_speed

LEAST_S = 0.1
"""Polls of a run are at least so far apart, however many watch it."""
HEARD_S = 5.0
"""Seconds since the poll before within which a new event is a sign of life."""
MOST_MARKS, MOST_USUAL = 500, 50
"""Moments that are kept: unusual ones, and such as checkpoints."""
MOST_LISTED = 20
"""Checkpoints that are listed with their sizes."""
MOST_FOLLOWERS = 24
"""Runs whose numbers stay in memory."""
_SPEED_S = 10.0


@final
class RunView:
    """What is known of one run.

    Args:
        folder: The run folder.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, folder: Folder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder, self.files = folder, RunFiles(folder, clock)
        self.lock = threading.RLock()
        # Of the clock, so that it is not one that a server before this one has told.
        self.version = int(1000 * time.time())
        self.damage = ""
        self.budget = Budget(clock, count_cores())
        self.exchanges = Exchanges()
        self.spent = TimeSpent(parts=len(SPENT))
        """Seconds of compute, data, wait and exchange of each worker."""
        self.epochs: list[dict[str, Any]] = []
        self.epochs_version = 0
        """A number that grows with each change of the epochs."""
        self._first_epoch = 0
        self._moments: deque[Moment] = deque(maxlen=MOST_MARKS)
        self._usual: deque[Moment] = deque(maxlen=MOST_USUAL)
        self._checkpoints: deque[Checkpoint] = deque(maxlen=MOST_LISTED)
        self._clock = clock
        self._began = self._polled = float("-inf")
        """When the last poll began, and when it had ended."""
        self._follow = Follow(folder)
        self._fold, self._workers = Fold(url=folder.url), WorkerFold()
        self._leases, self.log_times = LeaseFold(), LogTimes()
        self._total = 0
        self._writer_state = WriterState(may_live=True)
        self._summary: tuple[int, RunSummary] | None = None

    @property
    def is_removed(self) -> bool:
        """Whether the run had events, and has none any more."""
        return self._follow.is_removed

    @property
    def is_empty(self) -> bool:
        """Whether no event was read so far."""
        return self._fold.is_empty

    def advance(self, told: float = float("-inf")) -> int:
        """Reads what is new, unless that was done a moment ago.

        Args:
            told: When a change was told, by the clock: a poll that began before has
                perhaps not seen it.

        Returns:
            A number that grows with each change.
        """
        with self.lock, self.budget.spending():
            now = self._clock()
            if now - self._polled < LEAST_S and told <= self._began:
                return self.version
            self._began = now
            was = self.is_removed, self.damage, self._writer_state.may_live
            changed = self._read()
            writer = self._fold.writer
            if writer is not None and not self._fold.has_ended:
                # One that has just written to this machine's disk is there.
                is_heard = changed and now - self._polled < HEARD_S
                if is_heard and self.folder.is_local:
                    self._writer_state = WriterState(may_live=True)
                else:
                    self._writer_state = look_at_writer(self.folder, writer)
            self._polled = self._clock()
            may_live = self._writer_state.may_live
            if changed or was != (self.is_removed, self.damage, may_live):
                self.version += 1
            return self.version

    @property
    def moments(self) -> list[Moment]:
        """What happened, oldest first; only the last checkpoints."""
        with self.lock:
            return sorted([*self._moments, *self._usual], key=lambda one: one.time)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The last checkpoints that were written, the newest first."""
        with self.lock:
            return list(self._checkpoints)

    def summary(self) -> RunSummary:
        """Returns the summary so far."""
        with self.lock:
            if self._summary is None or self._summary[0] != self.version:
                found = self._fold.summary(lambda _: self._writer_state)
                damage = self.damage
                if self.is_empty and not damage:  # as in the list
                    damage = str(without_events(self.folder))
                update = {"id": self.folder.name, "damage": damage}
                if damage:
                    update["status"] = "damaged"
                self._summary = self.version, found.model_copy(update=update)
            return self._summary[1]

    def workers(self) -> list[WorkerStatus]:
        """Returns the state of each worker."""
        with self.lock:
            return self._workers.statuses(is_lost=self.summary().status == "lost")

    def leases(self) -> list[EpochLeases]:
        """Returns who trains which samples of the open epochs."""
        with self.lock:
            return self._leases.epochs(is_over=self.summary().status != "running")

    def epoch_axis(self) -> EpochAxis:
        """Returns the places of samples on the axis of epochs."""
        with self.lock:
            rows, first = self.summary().rows, self._first_epoch
            return EpochAxis(self.epochs, rows=rows, first=first)

    def speed(self) -> float | None:
        """Returns samples a second in the last seconds of exchanges; None without."""
        with self.lock:
            times = self.exchanges.t.values
            samples = self.exchanges.samples.values
            if not has_speed(self.exchanges):
                return None
            since = np.searchsorted(times, times[-1] - _SPEED_S, side="right") - 1
            first = max(0, int(since))
            span = float(times[-1] - times[first])
            done = float(samples[-1] - samples[first])
            return done / span if span >= LEAST_SPAN_S else None

    def _read(self) -> bool:
        has_changed = False
        try:
            while events := self._follow.poll():
                has_changed = True
                for event in events:
                    self._add(event)
        except ShoalError as error:
            self.damage = str(error)
        except OSError as error:  # a storage that is away for a moment
            self.damage = f"the run cannot be read: {error}"
        return has_changed

    def _add(self, event: Event) -> None:
        self._fold.add(event)
        self._workers.add(event)
        self._leases.add(event)
        self.log_times.add(event)
        kind = event.get("kind")
        if kind == "exchanges":
            self._add_exchanges(event)
        elif kind == "epoch_ended":
            self._add_epoch(event)
        elif kind == "epoch_scored":
            self.epochs_version += 1
            for epoch in self.epochs:
                if epoch["epoch"] == event.get("epoch"):
                    scored = event.get("metrics") or {}  # a page may read the others
                    epoch["metrics"] = {**epoch["metrics"], **scored}
        elif kind == "checkpoint_written":
            self._checkpoints.appendleft(Checkpoint.of(event))
        elif kind == "run_started":
            self._first_epoch = int(event.get("initial_epoch") or 0)
        text = told(event)
        if text:
            moment = Moment(
                kind=str(kind),
                t=float(event.get("t", 0.0)),
                time=float(event.get("time", 0.0)),
                samples=self._total,
                text=text,
            )
            (self._usual if moment.is_usual else self._moments).append(moment)
        if kind == "rollback":
            counts: Mapping[Any, int] = event.get("committed") or {}
            self._total = sum(counts.values())

    def _add_exchanges(self, event: Event) -> None:
        found, columns = self.exchanges, exchange_columns(event)
        none: list[Any] = [None] * len(event.get("rows") or ())

        def column(name: str, unknown: float = 0.0) -> Numbers:
            given = np.array(columns.get(name, none), dtype=np.float64)
            given[np.isnan(given)] = unknown
            return given

        event_t = float(event.get("t") or 0.0)
        times = column("t", event_t)
        began = float(event.get("time") or 0.0) - event_t  # by the clock of the day
        rows, ranks = column("samples"), column("rank", -1.0)
        found.add(
            t=times,
            time=times + began,
            samples=self._total + np.cumsum(rows),
            rows=rows,
            loss=column("loss", math.nan),
            rank=ranks,
            staleness=np.clip(column("staleness"), 0, 2**31 - 1),
        )
        self._total += int(rows.sum())
        self.spent.add(ranks, [column(name) for name in SPENT])

    def _add_epoch(self, event: Event) -> None:
        self.epochs_version += 1
        self.epochs.append(
            {
                "epoch": int(event.get("epoch", len(self.epochs))),
                "t": float(event.get("t", 0.0)),
                "time": float(event.get("time", 0.0)),
                "samples": self._total,
                "metrics": dict(event.get("metrics") or {}),
                "learning_rate": event.get("learning_rate"),
            }
        )


@final
class Views:
    """The views of the runs that are watched, and of those that were, a few.

    Args:
        most: Views that are kept.
    """

    def __init__(self, most: int = MOST_FOLLOWERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._views: OrderedDict[str, RunView] = OrderedDict()

    def of(self, folder: Folder) -> RunView:
        """Returns the view of a run."""
        with self._lock:
            view = self._views.get(folder.url)
            if view is None or view.is_removed:
                view = self._views[folder.url] = RunView(folder)
            self._views.move_to_end(folder.url)
            while len(self._views) > self._most:
                self._views.popitem(last=False)
            return view
