"""Injected failures, at a rank and a step, for tests of recovery.

    from shoal.testing import faults

    with faults.kill(rank=1, step=40).kill(rank=0, step=90):
        shoal.fit(model, x, y, workers=2)

A fault happens after the worker's steps and before its push: the worst moment to die,
because its samples are trained and not committed. Under "ensemble" a rank is the number
of a member; `cluster="inline"` has no processes that could fail, and refuses. This file
decides the effect of each fault.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, TypeAlias, final

from shoal.engine.worker.spec import WATCH, Moment

Action: TypeAlias = Literal["kill", "stop", "leave", "fail"]


@final
@dataclass(frozen=True, kw_only=True)
class Fault:
    """One failure.

    Args:
        action: "kill" by SIGKILL, "stop" by SIGSTOP (it hangs), "leave" by losing
            the connection, "fail" by an error as of user code.
        rank: Rank of the worker.
        step: Number of the worker's own steps at which it fails, before it pushes them.
        incarnation: Process of the rank: 1 for the first, 2 for its replacement.
    """

    action: Action
    rank: int
    step: int
    incarnation: int = 1

    def is_due(self, moment: Moment) -> bool:
        """Whether a worker has reached the fault."""
        is_here = (moment.rank, moment.incarnation) == (self.rank, self.incarnation)
        return is_here and moment.step >= self.step

    def happen(self) -> None:
        """Executes the fault in this process, or in this thread's worker."""
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.action == "leave":
            raise ConnectionAbortedError("a test has cut this connection")
        else:
            raise RuntimeError("a test has failed this worker")


@final
@dataclass(frozen=True)
class Faults:
    """Faults for workers that are started within its `with` block. Chain, do not nest.

    Example:
        >>> both = kill(rank=1, step=40).leave(rank=0, step=90)
        >>> [(fault.action, fault.rank, fault.step) for fault in both.faults]
        [('kill', 1, 40), ('leave', 0, 90)]
    """

    faults: tuple[Fault, ...] = ()

    def kill(self, *, rank: int, step: int, incarnation: int = 1) -> Faults:
        """Adds: the process ends at once, by SIGKILL."""
        return self._and("kill", rank, step, incarnation)

    def stop(self, *, rank: int, step: int, incarnation: int = 1) -> Faults:
        """Adds: the process hangs, by SIGSTOP."""
        return self._and("stop", rank, step, incarnation)

    def leave(self, *, rank: int, step: int, incarnation: int = 1) -> Faults:
        """Adds: the worker loses its connection and ends; also for threads."""
        return self._and("leave", rank, step, incarnation)

    def fail(self, *, rank: int, step: int, incarnation: int = 1) -> Faults:
        """Adds: the user's code raises."""
        return self._and("fail", rank, step, incarnation)

    def _and(self, action: Action, rank: int, step: int, incarnation: int) -> Faults:
        fault = Fault(action=action, rank=rank, step=step, incarnation=incarnation)
        return replace(self, faults=(*self.faults, fault))

    def __call__(self, moment: Moment) -> None:
        """Executes due faults; workers call it with their position."""
        for fault in self.faults:
            if fault.is_due(moment):
                fault.happen()

    def __enter__(self) -> Faults:
        WATCH.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        WATCH.set(None)


def kill(*, rank: int, step: int, incarnation: int = 1) -> Faults:
    """Ends a worker by SIGKILL."""
    return Faults().kill(rank=rank, step=step, incarnation=incarnation)


def stop(*, rank: int, step: int, incarnation: int = 1) -> Faults:
    """Makes a worker hang, by SIGSTOP."""
    return Faults().stop(rank=rank, step=step, incarnation=incarnation)


def leave(*, rank: int, step: int, incarnation: int = 1) -> Faults:
    """Cuts a worker's connection; also for workers that are threads."""
    return Faults().leave(rank=rank, step=step, incarnation=incarnation)


def fail(*, rank: int, step: int, incarnation: int = 1) -> Faults:
    """Raises on a worker, as the user's code would."""
    return Faults().fail(rank=rank, step=step, incarnation=incarnation)
