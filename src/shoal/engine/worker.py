"""A worker: leases data, takes local steps, exchanges, until there is no more."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from shoal.backends.base import Backend, ComputeSpec
from shoal.data.order import Order
from shoal.engine.conversation import Fenced, Seat
from shoal.engine.finite import WARN, Reaction
from shoal.engine.gang import Gang
from shoal.engine.lane import LaneSpec
from shoal.engine.left_out import LeftOut
from shoal.engine.loop import Moment
from shoal.engine.member import Member
from shoal.engine.reading import Retry, Rows
from shoal.engine.shared_lane import SharedLaneSpec
from shoal.engine.windows import Windows
from shoal.errors import DataError, ShoalError
from shoal.launchers.titles import title
from shoal.strategies.base import Strategy

__all__ = ["WATCH", "Moment", "Watch", "WorkerSpec", "work"]

MOST_TEXT = (
    1 << 15
)  # characters of an error that travel: a head of JSON holds 12 bytes each

Watch: TypeAlias = Callable[[Moment], None]
WATCH: ContextVar[Watch | None] = ContextVar("shoal_watch", default=None)
"""What workers that are started in this context call; see `shoal.testing.faults`."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker process is given.

    Args:
        seat: Where to join.
        strategy: How workers agree.
        compute: How to run the model; `rank_seed` is set from the rank.
        order: Of the samples of every epoch.
        open_backend: Makes the backend from a few rows, once the rank is known.
        open_source: Opens the data.
        is_gang: Exchange gradients every step.
        clock_start: Where the optimizer began, in steps of the user's batch size.
        cores: The only ones it may run on from its first step; empty for any. To
            compile, a worker may use them all: the others wait for its programs.
        watch: Called before each push; None outside of tests.
        reaction: To numbers that are not finite.
        left_out: Samples that are not to be trained on again.
        optimizer: State of the worker that had the place, empty for none.
        retry: What follows when the source raises.
        lane: How workers of a gang average among themselves, None for the server.
        has_overlap: The next window is computed while the last one is exchanged; not
            by gangs.
        clean_up: Called at the end of a process that will be given another part.
        run: Id of the run, empty for one that has none.
    """

    seat: Seat
    strategy: Strategy
    compute: ComputeSpec
    order: Order
    open_backend: Callable[[ComputeSpec, Any], Backend]
    open_source: Callable[[], Rows]
    is_gang: bool
    clock_start: float = 0.0
    cores: tuple[int, ...] = ()
    watch: Watch | None = None
    reaction: Reaction = WARN
    left_out: LeftOut = field(default_factory=LeftOut)
    optimizer: bytes = b""
    retry: Retry = field(default_factory=Retry)
    lane: LaneSpec | SharedLaneSpec | None = None
    has_overlap: bool = False
    clean_up: Callable[[], None] | None = None
    run: str = ""


def work(spec: WorkerSpec) -> None:
    """Runs one worker to the end of the run.

    A failure of user code is reported to the controller with its traceback; a
    server that is gone ends the worker quietly, the controller knows why.
    """
    title(f"worker-{spec.seat.hint}", spec.run)
    try:
        member = Member(spec.seat, spec.strategy, is_early=spec.has_overlap)
    except (OSError, ShoalError) as error:
        # The controller does not know it yet: only the end of the process tells.
        sys.exit(f"this worker could not join the run: {error}")
    title(f"worker-{member.rank}", spec.run)
    worker = None
    try:
        worker = (Gang if spec.is_gang else Windows)(spec, member)
        worker.run()
    except (ConnectionError, Fenced):
        return
    except Exception as error:
        text = traceback.format_exc()
        print(text, flush=True)  # noqa: T201 - this is the worker's log
        with contextlib.suppress(OSError, ShoalError):
            member.fail(
                traceback=text[-MOST_TEXT:],
                error=f"{type(error).__name__}: {error}"[:MOST_TEXT],
                step=0 if worker is None else worker.steps,
                is_data=isinstance(error, DataError),
            )
    finally:
        member.leave()
        if worker is not None:
            worker.close()
        if spec.clean_up is not None:
            worker = None
            spec.clean_up()
