"""The interface of a run's recorder: a few methods that never stop training."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from shoal.host.processes import Process, may_live
from shoal.runs.events import (
    RUN_CLOCK,
    VERSION,
    Event,
    decode,
    encode,
    pack_exchanges,
)
from shoal.runs.segments import Complaint
from shoal.runs.summary import Fold, RunSummary, Status, WriterState

Which: TypeAlias = Literal["best", "last"]


class Run(ABC):
    """A run and its records. `store` makes them: `start`, `create`, `open_run`.

    It is safe to use from several threads. Close it, or use it in a `with` statement.
    After its creation nothing raises: storage that fails costs records, not training.

    Args:
        run_id: Date, name and random letters.
        name: Name given by the user, or the model's name.
        url: The run folder, "" for none.
        complain: Called with one line when records of a kind begin to be lost; default
            None: the logger "shoal".

    Example:
        >>> from shoal.runs.store import NullRun
        >>> with NullRun(name="higgs") as run:
        ...     run.event("run_started", strategy="adag", workers=2)
        ...     run.finish("finished", {"startup_s": 1.5})
        >>> run.summary().status, run.report["startup_s"]
        ('finished', 1.5)
    """

    def __init__(
        self, *, run_id: str, name: str, url: str, complain: Complaint | None
    ) -> None:
        self.id = run_id
        self.name = name
        self.url = url
        # Reentrant: a complaint may be recorded as a warning of this run.
        self._lock = threading.RLock()
        self._fold = Fold(url=url)
        self._began = time.monotonic()
        self._is_finished = False
        self._complain = complain or logging.getLogger("shoal").warning

    def event(self, kind: str, /, **fields: Any) -> None:
        """Records an event, with wall time and seconds since the start.

        Args:
            kind: One word for the event, such as "worker_lost".
            **fields: Values of JSON or NumPy; others are recorded as text.
        """
        if kind in ("run_started", "run_resumed"):
            fields = {**self._writer(), **fields}
        with self._lock:
            line = encode({**fields, **self._stamp(kind)})
            for event in decode(line):  # as a reader of the line will see it
                self._fold.add(event)
                self._keep(line, event)

    @property
    def seconds(self) -> float:
        """Seconds of the run, as its events count them."""
        return time.monotonic() - self._began

    def exchanges(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Records many exchanges in one compact line.

        Args:
            records: Mappings with the names of `events.EXCHANGE_FIELDS`; `t` in seconds
                of the run.
        """
        if records:
            self.event("exchanges", clock=RUN_CLOCK, **pack_exchanges(records))

    def finish(self, status: Status, report: Mapping[str, Any] | None = None) -> None:
        """Records how the run ended; only the first call counts.

        Args:
            status: "finished", "failed" or "interrupted".
            report: Added to the summary's own facts, which it overrides.
        """
        with self._lock:
            if not self._is_finished:
                self._is_finished = True
                self.event("run_finished", status=status, report=dict(report or {}))

    def summary(self) -> RunSummary:
        """Returns the summary of the run, as far as this object recorded or read it."""
        with self._lock:
            found = self._fold.summary(self._look)
        return found.model_copy(update={"id": self.id, "name": self.name})

    @property
    def report(self) -> dict[str, Any]:
        """The report of `summary`: times, shares, best metric."""
        return self.summary().report

    @property
    @abstractmethod
    def lost_events(self) -> int:
        """Events that could not be kept."""

    @abstractmethod
    def log_path(self, rank: int) -> Path | None:
        """Returns the local file a worker's output goes to, None for nowhere."""

    @abstractmethod
    def save_model(self, model: Any, which: Which) -> str | None:
        """Saves a Keras model; returns its place, None if it could not be saved.

        It becomes `models/WHICH.keras`, or only its weights `models/WHICH.weights.h5`
        if no archive can hold the model.
        """

    @abstractmethod
    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Writes `plan.json`."""

    @abstractmethod
    def flush(self) -> None:
        """Passes all records so far to the storage."""

    @abstractmethod
    def close(self) -> None:
        """Flushes and releases the storage. Safe to repeat."""

    @abstractmethod
    def _keep(self, line: bytes, event: Event) -> None:
        """Stores one event; called with the lock held."""

    def _writer(self) -> dict[str, Any]:
        """Returns the identity of this process, the writer of the events."""
        return Process.here().fields

    def _look(self, writer: Process) -> WriterState:
        """Returns what is known of the process that wrote an unfinished run."""
        return WriterState(may_live(writer))

    def _stamp(self, kind: str) -> Event:
        """Returns the first fields of every event."""
        return {
            "v": VERSION, "kind": kind, "time": time.time(),
            "t": round(self.seconds, 6),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<run {self.id} in {self.url or 'memory'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
