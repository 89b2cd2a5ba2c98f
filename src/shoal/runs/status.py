"""Live status of a run: its workers, their last lines, the load of the machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.runs.catalogue import read_summary
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.runs.logs import tail
from shoal.runs.worker_status import (
    ProcessStatus,
    WorkerStatus,
    process_statuses,
    worker_statuses,
)


@final
@dataclass(frozen=True, kw_only=True)
class LiveStatus:
    """The status of a run at one moment.

    Args:
        id: Id of the run.
        status: "running", or the way it ended.
        workers: State of each rank.
        lines: Rank -> the last lines of its worker's output.
        processes: Other processes of a running run: servers, standbys, spares.
        use: Load of the machines, as `RunSummary.use`.
        heard_s: As `RunSummary.heard_s`.
    """

    id: str
    status: str
    workers: Sequence[WorkerStatus]
    lines: Mapping[int, Sequence[str]]
    processes: Sequence[ProcessStatus]
    use: Sequence[Mapping[str, Any]]
    heard_s: float | None = None


def read_status(folder: Folder, lines: int = 5) -> LiveStatus:
    """Reads the live status of a run.

    Args:
        folder: The run folder.
        lines: Number of lines of each worker's output.

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
        lines={one.rank: tail(folder, one.rank, lines) for one in workers},
        processes=process_statuses(events) if summary.status == "running" else [],
        use=summary.use,
        heard_s=summary.heard_s,
    )
