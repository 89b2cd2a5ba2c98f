"""What a cluster in one process trains, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from shoal.backends.base import Backend, ComputeSpec
from shoal.data.order import Order
from shoal.engine.coordination.instructions import Rules
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.server.records import EpochEnd, Record
from shoal.engine.worker.collective import CollectiveSpec, ServerCollectiveSpec
from shoal.engine.worker.nan_policy import WARN, NanPolicy
from shoal.engine.worker.reader import Retry, Rows
from shoal.engine.worker.spec import Watch
from shoal.strategies.base import Strategy
from shoal.testing.problems import LeastSquares
from shoal.vectors import Vector
from shoal.wire.frames import Head
from tests.support.linear import LinearBackend, LinearRows


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """The input of a run in one process.

    Args:
        strategy: How workers agree; a period of 0 is an epoch.
        source: Source of samples.
        order: Order of samples.
        open_backend: Factory of the backend, as in `WorkerSpec`.
        vector: Initial weights.
        statistics: Initial statistics.
        metrics: Numbers of metric state.
        state: Most bytes of a worker's state beside the vectors.
        workers: Threads that train.
        epochs: Number of epochs.
        batch_size: Rows of a step: of each worker, or of all together in all_reduce.
        worker_batch_size: Rows of a worker's full share of a step of gradients; 0 where
            a backend does not mind.
        has_barrier: An epoch waits for the one before.
        quorum: Workers of a round that are enough, 0 for all.
        wants_slot: Vectors through shared memory, else through the socket.
        codec: Codec of vectors that go through the socket.
        has_overlap: Windows are computed while others are exchanged.
        host: Address on which the server listens; connections to others than loopback
            are encrypted.
        has_tls: The server encrypts, wherever it listens.
        has_standby: Another server follows, and a next one when that one leads.
        servers: Number of servers that share the vector, each with a standby if
            `has_standby`.
        watch: Faults of `shoal.testing.faults`; workers that "leave" are replaced.
        late: Numbers of samples; one more worker joins after each.
        collective: How workers of all_reduce average among themselves, None for the
            server.
        alone_steps: See `Rules`.
        compute: Further fields of `ComputeSpec`.
        reaction: Policy for numbers that are not finite.
        retry: Policy for errors of the source.
    """

    strategy: Strategy
    source: Rows
    order: Order
    open_backend: Callable[[ComputeSpec, Any], Backend]
    vector: Vector
    statistics: Vector
    metrics: int
    state: int = 0
    workers: int = 1
    epochs: int = 1
    batch_size: int = 8
    worker_batch_size: int = 0
    has_barrier: bool = True
    quorum: int = 0
    wants_slot: bool = True
    codec: str = "float32"
    has_overlap: bool = False
    host: str = "127.0.0.1"
    has_tls: bool = False
    has_standby: bool = False
    servers: int = 1
    watch: Watch | None = None
    late: Sequence[int] = ()
    collective: CollectiveSpec = field(default_factory=ServerCollectiveSpec)
    alone_steps: int = 0
    compute: dict[str, Any] = field(default_factory=dict[str, Any])
    reaction: NanPolicy = WARN
    retry: Retry = field(default_factory=Retry)
    environment: Environment = SYSTEM

    @classmethod
    def linear(
        cls, problem: LeastSquares, strategy: Strategy, rate: float = 0.1, **others: Any
    ) -> Setup:
        """Returns least squares by SGD; samples keep the order of the rows."""
        return cls(
            strategy=strategy,
            source=LinearRows(problem),
            order=Order(rows=problem.rows, shuffle=False),
            open_backend=lambda spec, _: LinearBackend(problem.size, spec, rate),
            vector=np.zeros(problem.size, np.float32),
            statistics=np.zeros(1, np.float32),
            metrics=2,
            **others,
        )

    @property
    def exchanges_gradients(self) -> bool:
        """Whether gradients are exchanged."""
        return self.strategy.exchanges == "gradients"

    def rules(self) -> Rules:
        """Returns the rules for the sequencer."""
        order = self.order
        return Rules(
            epoch_rows=tuple(map(order.rows_of, range(order.epochs_per_pass))),
            first_epoch=0,
            epochs=self.epochs,
            workers=self.workers,
            batch=self.batch_size,
            window=self.strategy.period,
            is_rounds=not self.strategy.is_asynchronous,
            exchanges_gradients=self.exchanges_gradients,
            is_elastic=self.strategy.is_elastic,
            has_barrier=self.has_barrier,
            quorum=self.quorum,
            borders=order.borders if order.can_be_spread else None,
            has_groups=not isinstance(self.collective, ServerCollectiveSpec),
            group_s=self.collective.group_s,
            alone_steps=self.alone_steps,
        )


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run in one process.

    Args:
        epochs: Complete epochs, in order, each with the center.
        records: Reported exchanges.
        events: All other reports.
        optimizer_state: Optimizer state of one worker.
    """

    epochs: list[EpochEnd]
    records: list[Record]
    events: list[Head]
    optimizer_state: bytes

    @property
    def vector(self) -> Vector:
        """The center at the end."""
        return self.epochs[-1].vector

    def of_kind(self, kind: str) -> list[Head]:
        """Events of one kind."""
        return [event for event in self.events if event["kind"] == kind]
