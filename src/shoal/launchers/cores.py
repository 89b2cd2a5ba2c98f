"""Which cores each worker of this machine has to itself."""

from __future__ import annotations

import os
from collections.abc import Sequence


def shares_of_cores(
    workers: int, threads: int, cores: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Cuts the cores into one share a worker, or gives none.

    Workers that wait for each other at every step must not meet on one core: left to
    the scheduler, one step in ten takes twice its time. That is true only of a run
    that has the whole machine; a smaller one shares, and is best left alone.

    Args:
        workers: Processes of the run.
        threads: Compute threads of each.
        cores: Those to cut, default None means all this process may run on.

    Returns:
        A tuple of cores for each worker; empty tuples where there is no share.

    Example:
        >>> shares_of_cores(2, 2, cores=[0, 1, 4, 5])
        [(0, 1), (4, 5)]
        >>> shares_of_cores(2, 1, cores=[0, 1, 4, 5])
        [(), ()]
    """
    if cores is None:
        has_affinity = hasattr(os, "sched_getaffinity")
        cores = sorted(os.sched_getaffinity(0)) if has_affinity else ()
    if workers * threads != len(cores):
        return [()] * workers
    return [tuple(cores[n * threads : (n + 1) * threads]) for n in range(workers)]
