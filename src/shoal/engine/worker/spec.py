"""The spec of a worker process."""

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
    """A worker's position: its steps are taken, and not pushed yet."""

    rank: int
    incarnation: int
    step: int


Watch: TypeAlias = Callable[[Moment], None]


WATCH: ContextVar[Watch | None] = ContextVar("shoal_watch", default=None)
"""Called by workers that are started in this context; see `shoal.testing.faults`."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Input of a worker process.

    Args:
        server_address: Address and identity for joining.
        strategy: Strategy of the run.
        compute: Spec of computing; `rank_seed` is set from the rank.
        order: Order of the samples in every epoch.
        open_backend: Makes the backend from a few rows, once the rank is known.
        open_source: Opens the data; its argument is called regularly while needed data
            has not come.
        exchanges_gradients: Exchanges gradients every step.
        clock_start: Start of the optimizer, in steps of the user's batch size.
        cores: The only cores it may use from its first step on; empty for any. To
            compile, a worker may use them all: the others wait for its programs.
        watch: Called before each push; None outside of tests.
        reaction: Policy for numbers that are not finite.
        left_out: Samples that are not trained on again.
        optimizer: State of the worker that had the place, empty for none.
        retry: Attempts if the source raises.
        collective: The way to the mean of gradients.
        has_overlap: The next window is computed while the last one is exchanged; not
            under gradient exchange.
        clean_up: Called at the end of a process that gets other work later.
        run: Id of the run, empty if it has none.
        alone_steps: Under gradient exchange, steps between two pushes while it is the
            only worker; 0 if it exchanges each step.
    """

    server_address: ServerAddress
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
    alone_steps: int = 0
