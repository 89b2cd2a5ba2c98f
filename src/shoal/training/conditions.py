"""Unequal workers, and workers that leave and join, on `cluster="inline"`. Pure.

This file decides how long the steps of a worker take and when a worker is there. Times
are in steps: 1 is what a step of a usual worker takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, TypeAlias, final

from shoal.errors import ConfigError

Action: TypeAlias = Literal["leave", "join"]


@final
@dataclass(frozen=True, order=True)
class Change:
    """A worker leaves, or another one takes its place.

    Args:
        at: When it happens, in steps since the beginning of the run.
        rank: Rank of the worker.
        action: "leave" or "join".
    """

    at: float
    rank: int
    action: Action


@final
@dataclass(frozen=True)
class Conditions:
    """What workers of `cluster="inline"` are like, for runs within its `with` block.

    Shows what a strategy is worth with unequal machines, without having them. What a
    worker that leaves has trained since its last exchange is lost and trained by
    others; one that joins begins with the center. Chain, do not nest.

    Args:
        times: (rank, time of a step) of workers that are not as fast as the others.
        changes: Workers that leave and join.

    Raises:
        ConfigError: A time is not positive; or a worker leaves twice without joining in
            between, or joins without having left.

    Example:
        >>> both = Conditions().slow(rank=0, times=5).leave(rank=1, step=40)
        >>> both.step_time(0), both.step_time(1), both.changes[0].action
        (5.0, 1.0, 'leave')
    """

    times: tuple[tuple[int, float], ...] = ()
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        for rank, time in self.times:
            if not time > 0:
                raise ConfigError(
                    f"a step of worker {rank} takes {time:g} times as long as usual. "
                    "Expected a number above 0. Pass times=5 for a slow worker."
                )
        away = set[int]()
        for change in sorted(self.changes):
            if (change.rank in away) == (change.action == "leave"):
                was = "has left" if change.rank in away else "is there"
                raise ConfigError(
                    f"worker {change.rank} is to {change.action} at step "
                    f"{change.at:g}, and {was}. Expected leave and join in turns, "
                    "leave first. Change the steps, or leave one of them out."
                )
            away ^= {change.rank}

    def slow(self, *, rank: int, times: float) -> Conditions:
        """Adds: each step of a worker takes this many times as long as usual."""
        return replace(self, times=(*self.times, (rank, float(times))))

    def leave(self, *, rank: int, step: float) -> Conditions:
        """Adds: a worker is lost, at this time in steps of a usual worker."""
        return self._and(Change(float(step), rank, "leave"))

    def join(self, *, rank: int, step: float) -> Conditions:
        """Adds: a new worker takes the place of one that has left."""
        return self._and(Change(float(step), rank, "join"))

    def _and(self, change: Change) -> Conditions:
        return replace(self, changes=tuple(sorted((*self.changes, change))))

    def step_time(self, rank: int) -> float:
        """Returns what a step of a worker takes; 1 is usual."""
        return dict(self.times).get(rank, 1.0)

    def check(self, workers: int) -> None:
        """Refuses workers that a run does not have, and times when nobody is there.

        Raises:
            ConfigError: One of these is the case.
        """
        ranks = [rank for rank, _ in self.times] + [c.rank for c in self.changes]
        if unknown := sorted({rank for rank in ranks if not 0 <= rank < workers}):
            raise ConfigError(
                f"conditions of worker {unknown[0]} in a run of {workers} workers. "
                f"Expected ranks from 0 to {workers - 1}. Change rank or workers."
            )
        if (at := _all_gone(self.changes, workers)) is not None:
            raise ConfigError(
                f"all {workers} workers have left at step {at:g}. Expected one that "
                "stays, or joins before. Change the steps, or add workers."
            )

    def __enter__(self) -> Conditions:
        CONDITIONS.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        CONDITIONS.set(Conditions())


def _all_gone(changes: Sequence[Change], workers: int) -> float | None:
    """Returns when the last worker leaves, None if one is always there."""
    there = workers
    for change in sorted(changes):
        there += 1 if change.action == "join" else -1
        if not there:
            return change.at
    return None


CONDITIONS: ContextVar[Conditions] = ContextVar(
    "shoal_conditions",
    default=Conditions(),  # noqa: B039 - it is frozen
)
"""Conditions of inline runs that begin in this context."""
