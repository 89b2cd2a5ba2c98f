"""A whole cluster in one thread: for experiments with many workers on few cores.

Sequencer, center, strategy and compiled programs are those of a real run; only
processes and sockets are not there. All workers share one set of programs and
take turns in it, each with a state of its own, so that sixteen workers cost no
more compute than one. This file decides when imagined workers are busy and when
their messages arrive. Time is a number in here, never a clock.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.backends.base import Backend, Clock
from shoal.engine.center import Center, pull_into, push_into
from shoal.engine.driver import Driver, Habits
from shoal.engine.fitting import Work, compute_spec, rules
from shoal.engine.inspection import inner_optimizer
from shoal.engine.ledger import Piece
from shoal.engine.observer import EpochEnd, Observer, Record
from shoal.engine.opening import OpenBackend
from shoal.engine.sequencer import (
    Answer,
    Apply,
    EpochDone,
    Instruction,
    Merge,
    Push,
    Sequencer,
)
from shoal.engine.travel import pack
from shoal.engine.worker import SAMPLE_ROWS, next_batches
from shoal.plan import Plan
from shoal.runs.base import Run
from shoal.strategies.base import Facts
from shoal.vectors import Layout, Vector, exchanged_variables, statistic_variables

Doubles = npt.NDArray[np.float64]
Speeds = Callable[[int], float]

JITTER = 0.1  # a window takes up to this share more or less than its steps say


def equal_speeds(rank: int) -> float:
    """Every worker takes one unit of time for a step."""
    del rank
    return 1.0


@final
@dataclass(kw_only=True, eq=False)
class _Worker:
    """One imagined worker: its vectors, its leases, and the window it is busy with."""

    rank: int
    incarnation: int
    local: Vector
    anchor: Vector
    statistics: Vector
    metrics: Doubles
    message: Vector
    message_statistics: Vector
    reply: Vector
    state: tuple[Any, ...] = ()
    leases: deque[Piece] = field(default_factory=deque[Piece])
    window: list[list[Piece]] = field(default_factory=list[list[Piece]])
    clock: float = 0.0
    rate: float | None = None
    sequence: int = 0

    @property
    def pieces(self) -> list[Piece]:
        """What the next push covers."""
        return [piece for batches in self.window for piece in batches]


def train(
    plan: Plan, work: Work, run: Run, habits: Habits, speeds: Speeds = equal_speeds
) -> Any:
    """Trains as `fitting.train` does, with all workers in this thread.

    With rounds, the outcome is that of a run on processes to float tolerance; with
    messages applied on arrival, it is one of the possible outcomes, and the plan's
    seed repeats it.

    Args:
        plan: Of the run.
        work: Model and data.
        run: Where it is recorded.
        habits: Of `fit`.
        speeds: Rank -> time of one step, 1 for all by default.

    Returns:
        The Keras history; the trained weights are in `work.model`.
    """
    driver = Driver(work.model, plan, run, habits)
    cluster = InlineCluster(plan, work, driver, speeds)
    driver.fetch_center = cluster.copy_center
    driver.begin()
    cluster.run()
    return driver.end(cluster.optimizer_state())


class InlineCluster:
    """Server and workers of one run, in one thread.

    Args:
        plan: Of the run.
        work: Model and data; the model is packed and opened again, as for a process.
        observer: Whom to tell, as a controller would.
        speeds: Rank -> time of one step.
    """

    def __init__(
        self,
        plan: Plan,
        work: Work,
        observer: Observer,
        speeds: Speeds = equal_speeds,
    ) -> None:
        model = work.model
        weights, beside = exchanged_variables(model), statistic_variables(model)
        self._plan, self._source, self._observer = plan, work.source, observer
        self._speeds, self._order = speeds, plan.order()
        self._random = np.random.default_rng([plan.seed, plan.workers])
        self._spec = compute_spec(plan)
        self._backend = self._open(work)
        self._began_at = float(int(inner_optimizer(model).iterations.numpy()))
        self._rate = observer.learning_rate
        self.center = Center(
            plan.strategy,
            Layout.of(weights).gather(weights),
            Layout.of(beside).gather(beside),
        )
        self._sequencer = Sequencer(rules(plan))
        self._workers = [self._join(rank) for rank in range(plan.workers)]
        self._due: list[tuple[float, int]] = []
        self._asking: deque[int] = deque()
        self._records: list[Record] = []
        self._metrics: dict[int, Doubles] = {}
        self._ended: list[int] = []
        self._now, self._began = 0.0, time.monotonic()

    def _open(self, work: Work) -> Backend:
        """A copy of the model, so that nothing but the center reaches the user's."""
        packed = pack(
            work.model, custom_objects=work.custom_objects, factory=work.factory
        )
        sample = self._source.take(np.arange(SAMPLE_ROWS) % self._order.rows)
        return OpenBackend(name=self._plan.backend, model=packed)(self._spec, sample)

    def _join(self, rank: int) -> _Worker:
        center = self.center
        member = self._sequencer.join(rank)
        return _Worker(
            rank=rank,
            incarnation=member.incarnation,
            local=self._plan.strategy.adopt(center.vector),
            anchor=center.vector.copy(),
            statistics=center.statistics.copy(),
            metrics=np.zeros(self._backend.metrics_size),
            message=np.empty_like(center.vector),
            message_statistics=np.empty_like(center.statistics),
            reply=np.empty_like(center.vector),
            # A gang moves as one: its workers differ in nothing but their rows.
            state=() if self._plan.is_gang else self._backend.fork(rank),
        )

    def copy_center(self) -> tuple[Vector, Vector]:
        """Weights and statistics as they are; a backend may keep views of them."""
        return self.center.vector.copy(), self.center.statistics.copy()

    # -------------------------------------------------------------- the run

    def run(self) -> None:
        """Trains every epoch, or until the observer wants it to stop."""
        plan, sequencer = self._plan, self._sequencer
        if plan.initial_epoch >= plan.epochs:
            return
        self._backend.load(self.center.vector.copy(), self.center.statistics)
        self._observer.on_epoch_begin(plan.initial_epoch)
        for worker in self._workers:
            self._carry_out(sequencer.ready(worker.rank, worker.incarnation))
        self._carry_out(sequencer.proceed(plan.initial_epoch))
        upcoming = plan.initial_epoch
        while upcoming < plan.epochs and not self._observer.wants_stop:
            self._turn()
            while upcoming in self._ended and not self._observer.wants_stop:
                self._end_epoch(upcoming)
                upcoming += 1

    def _turn(self) -> None:
        """The next thing that happens anywhere."""
        if self._asking:
            worker = self._workers[self._asking.popleft()]
            self._carry_out(self._sequencer.need(worker.rank, worker.incarnation))
            return
        # An empty heap would mean samples that nobody holds and nobody gets.
        self._now, rank = heapq.heappop(self._due)
        worker = self._workers[rank]
        steps, samples = (self._gradient if self._plan.is_gang else self._compute)(
            worker
        )
        worker.sequence += 1
        push = Push(
            rank=rank,
            incarnation=worker.incarnation,
            lineage=self._sequencer.lineage,
            sequence=worker.sequence,
            pieces=tuple(worker.pieces),
            steps=steps,
            samples=samples,
        )
        self._carry_out(self._sequencer.push(push))

    def _end_epoch(self, epoch: int) -> None:
        """What the controller does when an epoch's last sample is committed."""
        self._observer.on_records(self._records, {})
        self._records = []
        vector, statistics = self.copy_center()
        self._observer.on_epoch(
            EpochEnd(
                epoch=epoch,
                rows=self._sequencer.ledger.committed(epoch),
                metrics=self._metrics.pop(epoch),
                vector=vector,
                statistics=statistics,
            )
        )
        if epoch + 1 < self._plan.epochs and not self._observer.wants_stop:
            self._observer.on_epoch_begin(epoch + 1)
            self._rate = self._observer.learning_rate
            if self._plan.epoch_barrier:
                self._carry_out(self._sequencer.proceed(epoch + 1))

    def optimizer_state(self) -> bytes:
        """The optimizer state of the lowest rank, as a real run ends with."""
        if not self._plan.is_gang:
            self._backend.swap(self._workers[0].state)
        return self._backend.snapshot()

    # ------------------------------------------------------------- computing

    def _begin(self, worker: _Worker) -> None:
        """Takes a window of the worker's leases, or asks for some."""
        worker.window = self._take_window(worker)
        if not worker.window:
            self._asking.append(worker.rank)
            return
        worker.clock = float(self._sequencer.clock)
        size = self._spec.batch_size
        steps = sum(-(-piece.rows // size) for piece in worker.pieces)
        jitter = self._random.uniform(1 - JITTER, 1 + JITTER)
        busy = steps * self._speeds(worker.rank) * jitter
        heapq.heappush(self._due, (self._now + busy, worker.rank))

    def _take_window(self, worker: _Worker) -> list[list[Piece]]:
        """Up to `window` steps, as calls of the program; see `Worker._window`."""
        if self._plan.is_gang:
            return [[worker.leases.popleft()]] if worker.leases else []
        size, steps = self._spec.batch_size, 0
        window: list[list[Piece]] = []
        while steps < self._spec.window and worker.leases:
            before = window[0] if window else []
            most = self._spec.window - steps
            batches = next_batches(worker.leases, size, most, before)
            if not batches:
                break
            window.append(batches)
            rows = sum(piece.rows for piece in batches)
            steps += max(1, rows // size)
            if rows % size:
                break
        return window

    def _rows(self, pieces: list[Piece]) -> Any:
        parts = [self._order.indices(p.epoch, p.start, p.stop) for p in pieces]
        return self._source.take(np.concatenate(parts))

    def _compute(self, worker: _Worker) -> tuple[int, float]:
        """Local steps of one worker; returns (steps, samples)."""
        backend, size, steps = self._backend, self._spec.batch_size, 0
        before = backend.swap(worker.state)
        backend.load(worker.local, worker.statistics)
        if self._rate is not None and self._rate != worker.rate:
            worker.rate = self._rate
            backend.set_learning_rate(self._rate)
        clock = Clock(
            start=self._began_at + worker.clock, pace=float(len(self._workers))
        )
        for batches in worker.window:
            count = max(1, sum(p.rows for p in batches) // size)
            start = clock.start + steps * clock.pace
            backend.run(self._rows(batches), count, replace(clock, start=start))
            backend.take_metrics(worker.metrics, add=steps > 0)
            steps += count
        vector, statistics = backend.read()
        worker.local = vector
        push_into(self._plan.strategy, worker.message, vector, worker.anchor, steps)
        worker.message_statistics[:] = statistics
        worker.state = backend.swap(before)
        return steps, float(sum(p.rows for p in worker.pieces))

    def _gradient(self, worker: _Worker) -> tuple[int, float]:
        """One worker's part of a step of the gang; returns (1, mass)."""
        backend, pieces = self._backend, worker.pieces
        backend.set_statistics(self.center.statistics)
        gradient, mass = backend.gradient(self._rows(pieces), pieces[0].gang)
        backend.take_metrics(worker.metrics, add=False)
        worker.message[:] = gradient
        worker.message_statistics[:] = backend.statistics()
        return 1, mass

    # ----------------------------------------------------------- the server

    def _carry_out(self, instructions: list[Instruction]) -> None:
        """What the server does with the sequencer's instructions."""
        for instruction in instructions:
            match instruction:
                case Apply(rank, facts):
                    worker = self._workers[rank]
                    self.center.apply(
                        rank,
                        worker.message,
                        worker.message_statistics,
                        facts,
                        worker.reply,
                    )
                    self._record(worker, facts)
                case Merge(facts):
                    self._merge(facts)
                case Answer():
                    self._answer(instruction)
                case EpochDone(epoch):
                    self._ended.append(epoch)
                case _:
                    raise AssertionError(f"no worker is ever lost: {instruction}")

    def _merge(self, facts: dict[int, Facts]) -> None:
        workers = {rank: self._workers[rank] for rank in facts}

        def write(rank: int, part: slice, values: Vector) -> None:
            for worker in workers.values() if rank < 0 else [workers[rank]]:
                worker.reply[part] = values

        self.center.merge(
            {rank: worker.message for rank, worker in workers.items()},
            {rank: worker.message_statistics for rank, worker in workers.items()},
            facts,
            write,
        )
        for rank, worker in workers.items():
            self._record(worker, facts[rank])
        if self._plan.is_gang:
            self._apply_mean(next(iter(workers.values())).reply)

    def _apply_mean(self, mean: Vector) -> None:
        """The gang's step, which the next gradient or snapshot will need."""
        if self._rate is not None:
            self._backend.set_learning_rate(self._rate)
        # The clock has counted this step already; a real worker reads it before.
        self._backend.apply(
            mean, Clock(start=self._began_at + self._sequencer.clock - 1)
        )

    def _answer(self, answer: Answer) -> None:
        worker, center = self._workers[answer.rank], self.center
        worker.leases.extend(answer.pieces)
        if answer.kind == "publish" or self._sequencer.asked(worker.rank):
            self._publish(worker)
            if answer.kind == "publish":
                self._asking.append(worker.rank)
                return
        if answer.body == "reply" and not self._plan.is_gang:
            out = (np.empty_like(worker.local), np.empty_like(worker.anchor))
            strategy = self._plan.strategy
            pull_into(strategy, out, worker.local, worker.anchor, worker.reply)
            worker.local, worker.anchor = out
        elif answer.body == "center":
            worker.local = self._plan.strategy.adopt(center.vector)
            worker.anchor = center.vector.copy()
        if answer.body != "none":
            worker.statistics = center.statistics.copy()
        self._begin(worker)

    def _publish(self, worker: _Worker) -> None:
        """The gang's weights become the center, as a worker's snapshot would."""
        vector, _ = self._backend.read()
        self.center.vector[:] = vector
        self._carry_out(self._sequencer.published(worker.rank, worker.incarnation))

    def _record(self, worker: _Worker, facts: Facts) -> None:
        pieces = worker.pieces
        epoch = pieces[0].epoch
        sums = self._metrics.setdefault(epoch, np.zeros(self._backend.metrics_size))
        sums += worker.metrics
        self._records.append(
            Record(
                t=time.monotonic() - self._began,
                rank=worker.rank,
                epoch=epoch,
                samples=sum(piece.rows for piece in pieces),
                steps=facts.steps,
                version=self._sequencer.version,
                staleness=facts.staleness,
                compute_s=0.0,
                data_s=0.0,
                exchange_s=0.0,
            )
        )
