"""Stops a run that was asked to stop through its folder, as Ctrl-C does."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from shoal.interruption import check
from shoal.runs.base import Run
from shoal.runs.control import StopWatch
from shoal.runs.store import StoredRun


@contextmanager
def stoppable(run: Run) -> Generator[Callable[[], None]]:
    """Gives a function that raises once somebody asked to stop the run.

    Args:
        run: Record of the run; one without a folder cannot be asked.

    Yields:
        To be called often. It raises KeyboardInterrupt, also after Ctrl-C; and
        CheckpointError once another process writes the run.
    """
    if not isinstance(run, StoredRun):
        yield check
        return
    watch = StopWatch(run.folder)

    def look() -> None:
        check()
        run.check()
        request = watch.poll()
        if request is not None:
            run.event("stop_asked", by=request.by, asked=request.time)
            raise KeyboardInterrupt

    try:
        yield look
    finally:
        watch.close()
