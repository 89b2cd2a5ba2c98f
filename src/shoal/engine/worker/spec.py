"""What a worker process is given."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from shoal.backends.base import Backend, ComputeSpec
from shoal.data.order import Order
from shoal.engine.coordination.skipped import Skipped
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.worker.collective import CollectiveSpec, ServerCollectiveSpec
from shoal.engine.worker.nan_policy import WARN, NanPolicy
from shoal.engine.worker.reader import Retry, Rows
from shoal.strategies.base import Strategy


class Moment(NamedTuple):
    """Where a worker is: its steps are taken, and not told to anybody yet."""

    rank: int
    incarnation: int
    step: int


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
        open_source: Opens the data; it is given what to call now and then while data
            that is needed has not come.
        exchanges_gradients: Exchange gradients every step.
        clock_start: Where the optimizer began, in steps of the user's batch size.
        cores: The only ones it may run on from its first step; empty for any. To
            compile, a worker may use them all: the others wait for its programs.
        watch: Called before each push; None outside of tests.
        reaction: To numbers that are not finite.
        left_out: Samples that are not to be trained on again.
        optimizer: State of the worker that had the place, empty for none.
        retry: What follows when the source raises.
        collective: Who makes the mean of gradients, and how.
        has_overlap: The next window is computed while the last one is exchanged; not
            by gangs.
        clean_up: Called at the end of a process that will be given another part.
        run: Id of the run, empty for one that has none.
    """

    seat: ServerAddress
    strategy: Strategy
    compute: ComputeSpec
    order: Order
    open_backend: Callable[[ComputeSpec, Any], Backend]
    open_source: Callable[[Callable[[], None]], Rows]
    exchanges_gradients: bool
    clock_start: float = 0.0
    cores: tuple[int, ...] = ()
    watch: Watch | None = None
    reaction: NanPolicy = WARN
    left_out: Skipped = field(default_factory=Skipped)
    optimizer: bytes = b""
    retry: Retry = field(default_factory=Retry)
    collective: CollectiveSpec = field(default_factory=ServerCollectiveSpec)
    has_overlap: bool = False
    clean_up: Callable[[], None] | None = None
    run: str = ""
