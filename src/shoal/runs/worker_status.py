"""The state of each worker of a run, folded from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from shoal.runs.events import exchange_columns
from shoal.runs.reasons import failed_rank, split_reason

_NOTED = ("epoch", "steps", "samples", "t", "loss")

BESIDE = "localhost"
"""Node name of workers that run beside the process that writes."""


@final
@dataclass(kw_only=True)
class WorkerStatus:
    """The state of one worker, from its run's events.

    Args:
        rank: Rank of the worker.
        state: "working"; "left" or "failed" with the reason; "done" with a run that
            finished; "stopped" with one that ended early; or "lost" with the process
            that supervised it.
        reason: Reason why it left or failed, empty if it did not.
        reason_before: Reason why the last process of this rank that was replaced left,
            empty if none was.
        node: Machine of the worker.
        pid: Id of its process there.
        processes: Number of processes that had this rank, one after the other.
        epoch: Last epoch it worked on, from 1; 0 before the first.
        steps: Committed steps.
        samples: Committed samples.
        loss: Loss of its last exchange, None without one.
        seconds: Run time at its last exchange.
    """

    rank: int
    state: str = "working"
    reason: str = ""
    reason_before: str = ""
    node: str = ""
    pid: int = 0
    processes: int = 0
    epoch: int = 0
    steps: int = 0
    samples: int = 0
    loss: float | None = None
    seconds: float = 0.0


def worker_statuses(
    events: Iterable[Mapping[str, Any]], *, is_lost: bool = False
) -> list[WorkerStatus]:
    """Returns the state of each worker, by rank.

    Args:
        events: Events of a run, oldest first.
        is_lost: Whether the process that wrote them ended without a final event.

    Example:
        >>> [found] = worker_statuses([{"kind": "worker_started", "rank": 0, "pid": 7}])
        >>> found.state, found.pid
        ('working', 7)
    """
    fold = WorkerFold()
    for event in events:
        fold.add(event)
    return fold.statuses(is_lost=is_lost)


@final
class WorkerFold:
    """Adds events one by one and keeps the state of each worker.

    Example:
        >>> fold = WorkerFold()
        >>> fold.add({"kind": "worker_started", "rank": 0, "pid": 7})
        >>> [one.state for one in fold.statuses(is_lost=True)]
        ['lost']
    """

    def __init__(self) -> None:
        self._found: dict[int, WorkerStatus] = {}
        self._host = ""

    def statuses(self, *, is_lost: bool = False) -> list[WorkerStatus]:
        """Returns the state of each worker so far, by rank.

        Args:
            is_lost: Whether the process that wrote the events ended without a final
                event.
        """
        found = [replace(self._found[rank]) for rank in sorted(self._found)]
        if is_lost:
            _end(found, "lost")
        return found

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds the next event."""
        kind = event.get("kind")
        self._host = str(event.get("host") or self._host)
        if kind == "worker_started":
            worker = self._of(event["rank"])
            worker.processes += 1
            worker.reason_before = worker.reason or worker.reason_before
            worker.state, worker.reason = "working", ""
            node = str(event.get("node") or BESIDE)
            worker.node = self._host or node if node == BESIDE else node
            worker.pid = event.get("pid", 0)
        elif kind in ("worker_left", "worker_lost") and "rank" in event:
            worker = self._of(event["rank"])
            worker.state, worker.reason = "left", str(event.get("reason", ""))
        elif kind == "exchanges":
            self._add_exchanges(event)
        elif kind == "run_finished":
            self._finish(event)

    def _finish(self, event: Mapping[str, Any]) -> None:
        status = event.get("status", "finished")
        report: Mapping[str, Any] = event.get("report") or {}
        reason = str(report.get("reason", ""))
        rank = failed_rank(reason) if status == "failed" else None
        worker = None if rank is None else self._found.get(rank)
        if worker is not None and worker.state == "working":
            message, _ = split_reason(reason)
            worker.state, worker.reason = "failed", " ".join(message.split())
        _end(self._found.values(), "done" if status == "finished" else "stopped")

    def _add_exchanges(self, event: Mapping[str, Any]) -> None:
        columns = exchange_columns(event)
        ranks = columns.get("rank", ())
        none = [None] * len(ranks)
        rows = zip(ranks, *(columns.get(name, none) for name in _NOTED), strict=False)
        for rank, epoch, steps, samples, t, loss in rows:
            if rank is None:
                continue
            worker = self._found.get(rank) or self._of(rank)
            worker.epoch = int(epoch or 0) + 1
            worker.steps += int(steps or 0)
            worker.samples += int(samples or 0)
            worker.seconds = float(t or 0.0)
            if loss is not None:
                worker.loss = float(loss)

    def _of(self, rank: Any) -> WorkerStatus:
        return self._found.setdefault(int(rank), WorkerStatus(rank=int(rank)))


@final
@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """A process of a run other than a worker.

    Args:
        name: Name of its role, such as "server", "standby", "evaluator" or "spare".
        pid: Id of the process, 0 if unknown.
        node: Machine of the process.
    """

    name: str
    pid: int
    node: str


def process_statuses(events: Iterable[Mapping[str, Any]]) -> list[ProcessStatus]:
    """Returns the processes besides the workers, by name, as far as known.

    Runs of versions that did not record them have none.

    Args:
        events: Events of a run, oldest first.

    Example:
        >>> process_statuses([{"kind": "process_started", "name": "server", "pid": 7}])
        [ProcessStatus(name='server', pid=7, node='')]
    """
    host, found, spares = "", dict[str, ProcessStatus](), dict[int, ProcessStatus]()
    for event in events:
        kind, name = event.get("kind"), str(event.get("name", ""))
        host = str(event.get("host") or host)
        if kind == "process_started":
            helper = ProcessStatus(name=name, pid=int(event.get("pid") or 0), node=host)
            if name == "spare":
                spares[helper.pid] = helper
            else:
                found[name] = helper
        elif kind == "process_ended":
            found.pop(name, None)
        elif kind == "worker_started":  # a spare process has become a worker
            spares.pop(int(event.get("pid") or 0), None)
        elif kind in ("run_started", "run_resumed"):
            found, spares = {}, {}
    return [*(found[name] for name in sorted(found)), *spares.values()]


def _end(workers: Iterable[WorkerStatus], state: str) -> None:
    for worker in workers:
        if worker.state == "working":
            worker.state = state
