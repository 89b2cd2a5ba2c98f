"""How a job goes on when one of its processes has ended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import final

from shoal.foreign.job import Job, Process


@final
@dataclass(frozen=True, kw_only=True)
class Course:
    """What is to be done now.

    Args:
        failed: The process whose status ends the job, None for none.
        is_over: Those that the job is over with have ended well.
        unneeded: Running processes that would run for ever: they serve the others.
    """

    failed: Process | None = None
    is_over: bool = False
    unneeded: tuple[Process, ...] = ()


def course(job: Job, codes: Mapping[str, int], stopped: Collection[str]) -> Course:
    """Decides from the processes that have ended.

    A job is over when all that train have ended. Where there are a chief and parameter
    servers, the chief alone decides: its workers are servers too, which never end.

    Args:
        job: All processes.
        codes: Exit status of those that have ended, by name.
        stopped: Names of those that were told to end: their status says nothing.
    """
    for process in job.processes:
        if codes.get(process.name, 0) and process.name not in stopped:
            return Course(failed=process)
    chief = job.doing("chief") if job.doing("ps") else []
    if any(each.name not in codes for each in chief or job.trainers):
        return Course()
    running = [each for each in job.processes if each.name not in codes]
    unneeded = tuple(each for each in running if each.part != "evaluator")
    return Course(is_over=True, unneeded=unneeded)
