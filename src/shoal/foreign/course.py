"""Decides how a job continues when one of its processes has ended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from shoal.foreign.job import JobProcess, ProcessGroup


@final
@dataclass(frozen=True, kw_only=True)
class Course:
    """The next step of a job.

    Args:
        failed: The process whose status ends the job, None for none.
        is_over: Whether the deciding processes have ended well.
        unneeded: Running processes that would never end: they serve the others.
    """

    failed: JobProcess | None = None
    is_over: bool = False
    unneeded: tuple[JobProcess, ...] = ()


def course(
    job: ProcessGroup, codes: Mapping[str, int], stopped: Collection[str]
) -> Course:
    """Decides from the processes that have ended.

    A job is over when all training processes have ended. With a chief and parameter
    servers the chief alone decides: its workers are servers too, which never end.

    Args:
        job: All processes of the job.
        codes: Exit status of ended processes, by name.
        stopped: Names of processes that were told to end: their status is ignored.
    """
    for process in job.processes:
        if codes.get(process.name, 0) and process.name not in stopped:
            return Course(failed=process)
    if any(each.name not in codes for each in deciding(job)):
        return Course()
    running = [each for each in job.processes if each.name not in codes]
    unneeded = tuple(each for each in running if each.part != "evaluator")
    return Course(is_over=True, unneeded=unneeded)


def deciding(job: ProcessGroup) -> list[JobProcess]:
    """Returns the processes whose end is the end of the job."""
    chief = job.doing("chief") if job.doing("ps") else []
    return chief or job.trainers


def farewell(
    job: ProcessGroup, ended: Sequence[JobProcess], silent: Collection[str]
) -> str:
    """Returns the message about processes ended with the job; "" for none.

    Args:
        job: All processes of the job.
        ended: Processes that were running, and are ended.
        silent: Names of processes without output: they may not have begun.

    Example:
        >>> from shoal.foreign.hosts import HERE
        >>> from shoal.foreign.job import Shape
        >>> job = ProcessGroup.of([HERE], Shape(per_node=2, ps=1, has_chief=True))
        >>> farewell(job, job.processes[1:], {"worker-0"})
        'the chief has ended, and with it the job; worker-0, ps-0 were ended. worker-0
        had written nothing: perhaps the chief does not wait for it'
    """
    if not ended:
        return ""
    names = ", ".join(each.name for each in ended)
    one = deciding(job)
    is_alone = len(one) == 1 and one[0].part == "chief"
    why = "the chief has ended" if is_alone else "all that train have ended"
    text = f"{why}, and with {'it' if is_alone else 'them'} the job; {names} " + (
        "was ended" if len(ended) == 1 else "were ended"
    )
    unheard = [each.name for each in ended if each.trains and each.name in silent]
    if unheard:
        it = "it" if len(unheard) == 1 else "them"
        text += (
            f". {', '.join(unheard)} had written nothing: perhaps the chief does not "
            f"wait for {it}"
        )
    return text
