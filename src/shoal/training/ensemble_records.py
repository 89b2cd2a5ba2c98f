"""The records of an ensemble's members, combined in one run.

This file decides which records of a member the run keeps: its exchanges and its end of
each epoch under its number, and a common epoch when all members have ended it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from shoal.plan import Plan
from shoal.runs.base import Run, Which
from shoal.runs.events import Event
from shoal.training.progress import ProgressDisplay


@final
class EnsembleRecords:
    """Combines the records of members in one run. Safe to use from several threads.

    Args:
        run: The common run.
        plan: Plan of the whole.
        verbose: Verbosity, as in Keras.
    """

    def __init__(self, run: Run, plan: Plan, verbose: int | str) -> None:
        self.run, self.stop = run, threading.Event()
        self._plan = plan
        self._progress = ProgressDisplay(plan, verbose)
        self._lock = threading.Lock()
        self._epochs: dict[int, dict[int, Event]] = {}

    def epoch_ended(self, member: int, event: Event) -> None:
        """Keeps a member's epoch; the last member's completes it for the run."""
        with self._lock:
            epoch = int(event["epoch"])
            ended = self._epochs.setdefault(epoch, {})
            ended[member] = event
            self.run.event("member_epoch_ended", member=member, **event)
            if len(ended) == self._plan.models:
                self._complete(epoch)

    def heed(self) -> None:
        """Raises in a member's thread when it should stop.

        Raises:
            KeyboardInterrupt: The member should stop.
        """
        if self.stop.is_set():
            raise KeyboardInterrupt

    def close(self) -> None:
        """Completes the epochs that some members did not reach."""
        with self._lock:
            for epoch in sorted(self._epochs):
                self._complete(epoch)
            self._progress.close()

    def _complete(self, epoch: int) -> None:
        events = self._epochs.pop(epoch)
        metrics = [dict(events[member]["metrics"]) for member in sorted(events)]
        names = [n for n in metrics[0] if all(n in found for found in metrics)]
        context = {n: float(np.mean([found[n] for found in metrics])) for n in names}
        samples = sum(int(event["samples"]) for event in events.values())
        self.run.event(
            "epoch_ended",
            epoch=epoch,
            metrics=context,
            samples=samples,
            members=metrics,
        )
        self._progress.epoch_begin(epoch)
        self._progress.epoch_end(samples, context)


@final
class MemberRun(Run):
    """One member's records, passed on to the common run.

    Args:
        member_records: The records of all members.
        member: Number of this one.
    """

    def __init__(self, member_records: EnsembleRecords, member: int) -> None:
        run = member_records.run
        super().__init__(run_id=run.id, name=run.name, url=run.url, complain=None)
        self._member_records, self._member = member_records, member

    def exchanges(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Passes records on, and raises if the member should stop."""
        self._member_records.heed()
        member = self._member
        self._member_records.run.exchanges(
            [{**record, "rank": member} for record in records]
        )

    @property
    def seconds(self) -> float:
        """Seconds of the common run."""
        return self._member_records.run.seconds

    @property
    def lost_events(self) -> int:
        """Returns 0: the common run counts lost events."""
        return 0

    def log_path(self, rank: int) -> Path | None:
        """Returns the log of this member's one worker."""
        del rank
        return self._member_records.run.log_path(self._member)

    def save_model(self, model: Any, which: Which) -> str | None:
        """Saves nothing: the best of all members is saved at the end."""
        del model, which

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Writes nothing: there is one plan."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def _keep(self, line: bytes, event: Event) -> None:
        del line
        stamp = ("v", "kind", "time", "t", "member")
        fields = {name: value for name, value in event.items() if name not in stamp}
        if event["kind"] == "epoch_ended":
            self._member_records.epoch_ended(self._member, fields)
        elif event["kind"] not in ("run_started", "epoch_started"):
            # Its one worker has rank 0 here, and the member's number in the run.
            fields = {**fields, "rank": self._member, "member": self._member}
            self._member_records.run.event(event["kind"], **fields)
