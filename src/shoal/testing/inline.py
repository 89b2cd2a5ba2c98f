"""A cluster in one process: a real server and real workers, each in a thread.

Sockets, slots, frames, leases and strategies are those of a run; processes, Keras
and the run folder are not there. A worker that ends early is replaced, as in a run.
This file decides what a test of the engine can set up in a line.

    outcome = train(Setup.linear(LeastSquares.seeded(), AEASGD(), workers=3))
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from shoal.backends.base import Backend, ComputeSpec
from shoal.data.order import Order, steps
from shoal.engine.bulk import Sizes
from shoal.engine.finite import WARN, Reaction, error_of
from shoal.engine.greeting import worker_secret
from shoal.engine.member import Seat
from shoal.engine.observer import EpochEnd, Record
from shoal.engine.reading import Retry
from shoal.engine.reports import read_epoch, read_records
from shoal.engine.sequencer import Rules
from shoal.engine.server import Server, ServerSpec
from shoal.engine.tls import make_identity
from shoal.engine.wire import Head, Link
from shoal.engine.worker import Rows, Watch, WorkerSpec, work
from shoal.errors import ClusterError, WorkerFailed
from shoal.strategies.base import Strategy
from shoal.testing.linear import LinearBackend, LinearRows
from shoal.testing.problems import LeastSquares
from shoal.vectors import Vector

PATIENCE_S = 30.0  # for a message; a run that says nothing for longer is stuck


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is trained, and how.

    Args:
        strategy: How workers agree; a period of 0 is an epoch.
        source: Of samples.
        order: Of samples.
        open_backend: As in `WorkerSpec`.
        vector: Initial weights.
        statistics: Initial statistics.
        metrics: Numbers of metric state.
        workers: Threads that train.
        epochs: Passes.
        batch_size: Rows of a step: of each worker, or of a gang.
        worker_batch_size: Rows of a worker's full share of a gang's step; 0 where
            a backend does not mind.
        has_barrier: An epoch waits for the one before.
        quorum: Workers of a round that are enough, 0 for all.
        wants_slot: Vectors through shared memory, else through the socket.
        has_tls: The server encrypts, as between hosts.
        watch: `shoal.testing.faults`; workers that "leave" are replaced.
        late: Samples after which one more worker joins, for each.
        compute: Further fields of `ComputeSpec`.
        reaction: To numbers that are not finite.
        retry: What follows when the source raises.
    """

    strategy: Strategy
    source: Rows
    order: Order
    open_backend: Callable[[ComputeSpec, Any], Backend]
    vector: Vector
    statistics: Vector
    metrics: int
    workers: int = 1
    epochs: int = 1
    batch_size: int = 8
    worker_batch_size: int = 0
    has_barrier: bool = True
    quorum: int = 0
    wants_slot: bool = True
    has_tls: bool = False
    watch: Watch | None = None
    late: Sequence[int] = ()
    compute: dict[str, Any] = field(default_factory=dict[str, Any])
    reaction: Reaction = WARN
    retry: Retry = field(default_factory=Retry)

    @classmethod
    def linear(
        cls, problem: LeastSquares, strategy: Strategy, rate: float = 0.1, **others: Any
    ) -> Setup:
        """Least squares by SGD; samples in the order of the problem's rows."""
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
    def is_gang(self) -> bool:
        """Whether gradients are exchanged."""
        return self.strategy.exchanges == "gradients"

    def rules(self) -> Rules:
        """The sequencer's part."""
        order = self.order
        return Rules(
            epoch_rows=tuple(map(order.rows_of, range(order.epochs_per_pass))),
            first_epoch=0,
            epochs=self.epochs,
            workers=self.workers,
            batch=self.batch_size,
            window=self.strategy.period,
            is_rounds=not self.strategy.is_asynchronous,
            is_gang=self.is_gang,
            is_elastic="conserves" in self.strategy.promises,
            has_barrier=self.has_barrier,
            quorum=self.quorum,
        )


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it.

    Args:
        epochs: Complete ones, in order, each with the center.
        records: Every exchange the server told of.
        events: Everything else it said.
        optimizer_state: Of one worker.
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


def train(setup: Setup) -> Outcome:
    """Trains to the end.

    Raises:
        WorkerFailed: Code on a worker raised; its traceback is in the message.
        NotFinite: Numbers on a worker are not finite, and `reaction` is to stop.
        ExchangeTimeout: Nothing happened for a long time: the run is stuck.
    """
    period = setup.strategy.period
    if period == 0:
        share = setup.batch_size * setup.workers
        period = steps(setup.order.rows_of(0), share)
    setup = replace(setup, strategy=replace(setup.strategy, period=period))
    with Cluster(setup) as cluster:
        return cluster.run()


def _work(spec: WorkerSpec) -> None:
    """A worker that comes when the run is over ends its process, or here nothing."""
    with contextlib.suppress(SystemExit):
        work(spec)


@final
class Cluster:
    """Owns the threads of one run; use it as a context, so that they all end.

    Args:
        setup: What is trained.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self.secret = setup, secrets.token_bytes(32)
        self.sizes = Sizes(
            vector=setup.vector.size,
            statistics=setup.statistics.size,
            metrics=setup.metrics,
            digest="inline",
        )
        identity = make_identity() if setup.has_tls else None
        self.certificate = None if identity is None else identity.certificate
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address: tuple[str, int] = listener.getsockname()
        spec = ServerSpec(
            secret=self.secret,
            strategy=setup.strategy,
            rules=setup.rules(),
            sizes=self.sizes,
            vector=setup.vector,
            statistics=setup.statistics,
            identity=identity,
        )
        self.server = Server(spec, listener)
        self._threads = [threading.Thread(target=self.server.run, name="shoal-server")]
        self._threads[0].start()
        self._link = Link(self.address, self.secret, certificate=self.certificate)
        self.command("control")
        self._events: list[Head] = []
        self._records: list[Record] = []
        self._epochs: dict[int, EpochEnd] = {}
        self._late = sorted(setup.late, reverse=True)
        self._state: bytes | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> Outcome:
        """Trains to the end; see `train`."""
        for hint in range(self._setup.workers):
            self.start_worker(hint)
        self.command("proceed", epoch=0)
        while len(self._epochs) < self._setup.epochs:
            self._hear(is_over=False)
        self.command("state")
        while self._state is None:
            self._hear(is_over=True)
        return Outcome(
            epochs=[self._epochs[epoch] for epoch in sorted(self._epochs)],
            records=self._records,
            events=self._events,
            optimizer_state=self._state,
        )

    def command(self, kind: str, **fields: Any) -> None:
        """Tells the server something, as the controller would."""
        self._link.send({"kind": kind, **fields})

    def start_worker(self, hint: int = -1) -> None:
        """Starts one more worker."""
        setup = self._setup
        seat = Seat(
            address=self.address,
            secret=worker_secret(self.secret),
            sizes=self.sizes,
            hint=hint,
            token="",
            wants_slot=setup.wants_slot,
            certificate=self.certificate,
        )
        spec = WorkerSpec(
            seat=seat,
            strategy=setup.strategy,
            compute=ComputeSpec(
                window=setup.strategy.period,
                batch_size=setup.worker_batch_size or setup.batch_size,
                local_momentum=setup.strategy.local_momentum,
                **setup.compute,
            ),
            order=setup.order,
            open_backend=setup.open_backend,
            open_source=lambda: setup.source,
            is_gang=setup.is_gang,
            watch=setup.watch,
            reaction=setup.reaction,
            loss_at=(0,),
            retry=setup.retry,
        )
        thread = threading.Thread(
            target=_work, args=(spec,), name=f"shoal-worker-{hint}"
        )
        self._threads.append(thread)
        thread.start()

    def _hear(self, *, is_over: bool) -> None:
        """Takes one message of the server."""
        head, body = self._link.receive(timeout_s=PATIENCE_S)
        kind = head["kind"]
        if kind == "records":
            self._records += read_records(head, body)[0]
            done = sum(record.samples for record in self._records)
            while self._late and self._late[-1] <= done:
                self._late.pop()
                self.start_worker()
        elif kind == "epoch":
            self._end_epoch(head, body)
        elif kind == "optimizer":
            self._state = bytes(body)
        elif kind == "broken":
            raise ClusterError(head["reason"])
        elif kind == "failed":
            raise WorkerFailed(head["error"], traceback=head["traceback"])
        elif kind == "not_finite" and head["reaction"] == "stop":
            raise error_of(head)
        else:
            self._events.append(head)
            if kind == "left" and not is_over:
                self.start_worker(head["rank"])

    def _end_epoch(self, head: Head, body: memoryview) -> None:
        self._epochs[head["epoch"]] = read_epoch(head, body)
        upcoming = head["epoch"] + 1
        if upcoming < self._setup.epochs:
            self.command("proceed", epoch=upcoming)

    def close(self) -> None:
        """Ends every thread; safe to repeat."""
        self._link.close()  # a server without a controller ends, and workers with it
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._threads.clear()
