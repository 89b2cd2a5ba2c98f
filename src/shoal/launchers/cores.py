"""The cores of this process, and each worker's share of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

TASKS = Path("/proc/self/task")
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PJRT_NPROC",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
"""Variables from which numeric libraries read their number of threads."""


def allowed_cores() -> tuple[int, ...]:
    """Returns numbers of the cores this process may run on, empty if unknown."""
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


def count_cores() -> int:
    """Counts the cores this process may run on, at least 1."""
    return len(allowed_cores()) or os.cpu_count() or 1


def shares_of_cores(
    workers: int, threads: int, cores: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Cuts the cores into one share a worker, or returns no shares.

    Workers that wait for each other at every step must not share a core: left to
    the scheduler, one step in ten takes twice its time. That is true only of a run
    that has the whole machine; a smaller one is better left to the scheduler.

    Args:
        workers: Processes of the run.
        threads: Compute threads of each worker.
        cores: Cores to cut, default None means all that this process may run on.

    Returns:
        A tuple of cores for each worker; empty tuples without shares.

    Example:
        >>> shares_of_cores(2, 2, cores=[0, 1, 4, 5])
        [(0, 1), (4, 5)]
        >>> shares_of_cores(2, 1, cores=[0, 1, 4, 5])
        [(), ()]
    """
    if cores is None:
        cores = allowed_cores()
    if workers * threads != len(cores):
        return [()] * workers
    return [tuple(cores[n * threads : (n + 1) * threads]) for n in range(workers)]


def thread_variables(threads: int) -> dict[str, str]:
    """Returns variables that numeric libraries read when they are loaded.

    Example:
        >>> thread_variables(2)["OMP_NUM_THREADS"]
        '2'
    """
    return dict.fromkeys(THREADS, str(threads))


def bind(cores: Sequence[int]) -> None:
    """Binds all threads of this process, present and future, to some cores.

    There they are batch threads: a thread that wakes up does not preempt the one that
    woke it. Otherwise a server that answers several workers would be interrupted after
    its first answer, which wakes a worker on its own core.

    Args:
        cores: Numbers of the cores; if there are none, or the system has no affinity,
            nothing is done.
    """
    if not cores or not TASKS.is_dir():
        return
    for task in TASKS.iterdir():
        # The thread has ended, or the cores are gone.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), cores)
            if os.sched_getscheduler(int(task.name)) == os.SCHED_OTHER:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
