"""How far a run is now: its workers, their last lines, what machines are busy with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.runs.catalogue import read_summary
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.runs.logs import last_lines
from shoal.runs.worker_status import (
    ProcessStatus,
    WorkerStatus,
    process_statuses,
    worker_statuses,
)


@final
@dataclass(frozen=True, kw_only=True)
class LiveStatus:
    """A run at one moment.

    Args:
        id: Of the run.
        status: "running", or how it ended.
        workers: Of each rank.
        lines: Rank -> the last lines that its worker wrote.
        processes: Others of a run that goes on: servers, standbys, spares.
        use: What machines are busy with, as `RunSummary.use`.
    """

    id: str
    status: str
    workers: Sequence[WorkerStatus]
    lines: Mapping[int, Sequence[str]]
    processes: Sequence[ProcessStatus]
    use: Sequence[Mapping[str, Any]]


def read_status(folder: Folder, lines: int = 5) -> LiveStatus:
    """Reads how far a run is.

    Args:
        folder: The run folder.
        lines: Of each worker's output.

    Raises:
        DataError: The run is damaged.
    """
    summary = read_summary(folder)
    events = list(read_events(folder))
    workers = worker_statuses(events, is_lost=summary.status == "lost")
    return LiveStatus(
        id=summary.id,
        status=summary.status,
        workers=workers,
        lines={one.rank: last_lines(folder, one.rank, lines) for one in workers},
        processes=process_statuses(events) if summary.status == "running" else [],
        use=summary.use,
    )
