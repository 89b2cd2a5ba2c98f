"""Reactions to a lost process. Pure: no clock, no processes, no log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

FIRST_DELAY_S = 0.0
LATER_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
SETTLED_S = 10.0  # a process that worked for so long is not lost because of its place
MOST_DOUBLINGS = 16


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """The limits a user set.

    Args:
        max_restarts: Replacements of all workers together in one run.
        min_workers: Fewest workers with which the run continues; below, it stops.
    """

    max_restarts: int = 3
    min_workers: int = 1


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What was observed.

    Args:
        name: Name of the process, such as "worker-2".
        reason: Why it ended.
        living: Number of workers that are left.
        failures: Earlier processes in the same place that were lost in a row, each
            before it had worked for long.
    """

    name: str
    reason: str
    living: int
    failures: int = 0


@dataclass(frozen=True)
class Restart:
    """Start a replacement after a while."""

    after_s: float


@dataclass(frozen=True)
class Shrink:
    """Continue with the workers that are left."""

    workers: int


@dataclass(frozen=True)
class Abort:
    """Stop the run."""

    reason: str


Decision: TypeAlias = Restart | Shrink | Abort


def decide(loss: Loss, policy: RestartPolicy, restarts: int) -> Decision:
    """Chooses the reaction to a lost worker.

    Args:
        loss: What was observed.
        policy: The limits the user set.
        restarts: Replacements already spent in this run, 0 at the first loss.

    Returns:
        `Restart` within the limit, `Shrink` while enough workers are left, or `Abort`.

    Example:
        >>> gone = Loss(name="worker-1", reason="killed by SIGKILL", living=1)
        >>> decide(gone, RestartPolicy(max_restarts=1), restarts=0)
        Restart(after_s=0.0)
        >>> again = Loss(name="worker-1", reason="left", living=1, failures=3)
        >>> decide(again, RestartPolicy(max_restarts=9), restarts=3)
        Restart(after_s=4.0)
        >>> decide(gone, RestartPolicy(max_restarts=1), restarts=1)
        Shrink(workers=1)
        >>> decide(gone, RestartPolicy(max_restarts=1, min_workers=2), restarts=1)
        Abort(reason='worker-1 killed by SIGKILL; 1 of 1 restarts used')
    """
    if restarts < policy.max_restarts:
        later = later_delay_s(loss.failures)
        return Restart(FIRST_DELAY_S if loss.failures == 0 else later)
    if loss.living >= max(1, policy.min_workers):
        return Shrink(loss.living)
    spent = f"{restarts} of {policy.max_restarts} restarts used"
    return Abort(f"{loss.name} {loss.reason}; {spent}")


def later_delay_s(failures: int) -> float:
    """Seconds to wait before a process is started again, after so many failures.

    Example:
        >>> later_delay_s(1), later_delay_s(3), later_delay_s(99)
        (1.0, 4.0, 30.0)
    """
    doublings = min(failures, MOST_DOUBLINGS) - 1
    return min(LONGEST_DELAY_S, LATER_DELAY_S * 2.0**doublings)
