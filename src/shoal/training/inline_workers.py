"""Workers that run in turn on one set of compiled programs.

Each has vectors, leases and an optimizer of its own; the programs are compiled once
for all. This file decides what a worker computes in its turn; `inline.py` decides the
order of turns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.backends.base import Backend, Clock
from shoal.data import Source
from shoal.data.chunks import ChunkedSource, ShapesDiffer, Shelf
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.changes import Changes, write
from shoal.engine.transport.segments import pull_into, push_into
from shoal.engine.worker.factories import OpenBackend
from shoal.engine.worker.reader import uniform_runs
from shoal.engine.worker.weight_loop import next_batches
from shoal.plan import Plan
from shoal.training.start_run import compute_spec
from shoal.vectors import Vector

Doubles = npt.NDArray[np.float64]


@final
@dataclass(kw_only=True, eq=False)
class InlineWorker:
    """One of the workers: its vectors, its leases, and its present window.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation from the sequencer.
        local: Local weights.
        anchor: The center that it last adopted, None if the strategy needs none.
        statistics: Its last statistics.
        metrics: Sums of metric state of its last window.
        message: Its message; `message_statistics` belongs to it.
        reply: Buffer for its reply.
        state: Other state of its programs, private to the backend; under gradient
            exchange its local state alone.
    """

    rank: int
    incarnation: int
    local: Vector
    anchor: Vector | None
    statistics: Vector
    metrics: Doubles
    message: Vector
    message_statistics: Vector
    reply: Vector
    state: Any = ()
    leases: deque[Piece] = field(default_factory=deque[Piece])
    window: list[list[Piece]] = field(default_factory=list[list[Piece]])
    clock: float = 0.0
    rate: float | None = None
    changed: int = 0
    sequence: int = 0

    @property
    def pieces(self) -> list[Piece]:
        """Returns the pieces that the next push covers."""
        return [piece for batches in self.window for piece in batches]

    @property
    def rows(self) -> int:
        """Returns the samples of the window."""
        return sum(piece.rows for piece in self.pieces)


@final
class InlineWorkers:
    """The workers of a run, and the programs they share.

    Args:
        plan: Plan of the run.
        packed: The packed model, so that the user's own is not touched.
        source: Data source.
        clock_start: Step count of the optimizer at the start, in the user's batch size.
    """

    def __init__(
        self, plan: Plan, packed: bytes, source: Source, clock_start: float
    ) -> None:
        self._plan, self._source, self._began = plan, source, clock_start
        self._order, self._spec = plan.order(), compute_spec(plan, clock_start)
        sample = source.take(
            np.arange(self._spec.sample_rows) % self._order.sample_rows
        )
        open_backend = OpenBackend(name=plan.backend, model=packed)
        self._backend: Backend = open_backend(self._spec, sample)
        self._shelf = Shelf(source) if isinstance(source, ChunkedSource) else None
        self.inline_workers: list[InlineWorker] = []
        self.learning_rate: float | None = None
        self._changes = Changes()

    @property
    def metrics_size(self) -> int:
        """Returns the number of metric state values."""
        return self._backend.metrics_size

    def open_launcher(
        self, incarnation: int, center: Vector, statistics: Vector
    ) -> InlineWorker:
        """Adds the worker of the next rank, which adopts the center."""
        rank, strategy = len(self.inline_workers), self._plan.strategy
        if rank == 0:
            self._backend.load(center.copy(), statistics)
        worker = InlineWorker(
            rank=rank,
            incarnation=incarnation,
            local=strategy.adopt(center),
            anchor=center.copy() if strategy.needs_anchor else None,
            statistics=statistics.copy(),
            metrics=np.zeros(self.metrics_size),
            message=np.empty_like(center),
            message_statistics=np.empty_like(statistics),
            reply=np.empty_like(center),
            # Under gradient exchange workers differ only in rows and local state.
            state=self._backend.fork_local(rank)
            if self._plan.exchanges_gradients
            else self._backend.fork(rank),
        )
        self.inline_workers.append(worker)
        return worker

    def close(self, worker: InlineWorker) -> None:
        """Forgets what a lost worker had; its place is as for a new process."""
        worker.leases.clear()
        worker.window, worker.sequence = [], 0
        worker.rate, worker.changed = None, 0
        worker.state = self._backend.fork(worker.rank)

    def optimizer_state(self) -> bytes:
        """Returns the optimizer state of the lowest rank."""
        if self._plan.exchanges_gradients:
            self._backend.set_local(self.inline_workers[0].state)
            return self._backend.snapshot()
        before = self._backend.swap(self.inline_workers[0].state)
        state = self._backend.snapshot()
        self.inline_workers[0].state = self._backend.swap(before)
        return state

    def change(self, fresh: Changes) -> None:
        """Applies changes of callbacks; each worker has a state of its own."""
        self._changes.absorb(fresh)
        for worker in self.inline_workers:
            fresh.write_statistics(worker.statistics)
        if not self._plan.exchanges_gradients:
            return
        for worker in self.inline_workers:
            self._backend.set_local(worker.state)
            write(self._backend, fresh)
            worker.state = self._backend.local()

    # ------------------------------------------------------------- one turn

    def take_window(self, worker: InlineWorker, clock: int) -> int:
        """Takes leases for one exchange, at this run clock; returns their steps."""
        worker.clock = self._began + clock
        worker.window = self._window(worker)
        size = self._spec.batch_size
        return sum(max(1, sum(p.rows for p in w) // size) for w in worker.window)

    def _window(self, worker: InlineWorker) -> list[list[Piece]]:
        """Returns one list of pieces for each program call, as in a real worker."""
        if self._plan.exchanges_gradients:
            return [[worker.leases.popleft()]] if worker.leases else []
        size, left = self._spec.batch_size, self._spec.window
        window: list[list[Piece]] = []
        while left > 0 and worker.leases:
            before = window[0] if window else []
            starts = self._order.batch_starts(worker.leases[0].epoch)
            batches = next_batches(worker.leases, size, left, before, starts)
            if not batches:
                break
            window.append(batches)
            rows = sum(piece.rows for piece in batches)
            left -= max(1, rows // size)
            if rows % size and starts is None:
                break
        return window

    def work(self, worker: InlineWorker) -> tuple[int, float]:
        """Computes a worker's window and its message; returns (steps, samples)."""
        return (
            self._gradient(worker)
            if self._plan.exchanges_gradients
            else self._steps(worker)
        )

    def _rows(self, pieces: list[Piece]) -> Any:
        parts = [self._order.indices(p.epoch, p.start, p.stop) for p in pieces]
        rows = np.concatenate(parts)
        if self._shelf is not None:
            return self._shelf.take(rows, self._order.turn(pieces[0].epoch))
        return self._source.take(rows)

    def _runs(self, pieces: list[Piece]) -> list[tuple[list[Piece], Any]]:
        """Yields rows of pieces, of one shape at a time."""
        try:
            return [(pieces, self._rows(pieces))]
        except ShapesDiffer:
            return uniform_runs(self._rows, pieces, self._spec.batch_size)

    def _steps(self, worker: InlineWorker) -> tuple[int, float]:
        """Takes local steps of one worker."""
        backend, size, steps = self._backend, self._spec.batch_size, 0
        before = backend.swap(worker.state)
        backend.load(worker.local, worker.statistics)
        if self.learning_rate is not None and self.learning_rate != worker.rate:
            worker.rate = self.learning_rate
            backend.set_learning_rate(worker.rate)
        if worker.changed < self._changes.serial:
            write(backend, self._changes.after(worker.changed))
            worker.changed = self._changes.serial
        clock = Clock(start=worker.clock, pace=float(len(self.inline_workers)))
        anchor = worker.local if worker.anchor is None else worker.anchor
        runs = [run for batches in worker.window for run in self._runs(batches)]
        for part, data in runs:
            count = max(1, sum(p.rows for p in part) // size)
            start = clock.start + steps * clock.pace
            backend.run(data, count, replace(clock, start=start))
            backend.take_metrics(worker.metrics, add=steps > 0)
            steps += count
        worker.local, statistics = backend.read()
        strategy = self._plan.strategy
        push_into(strategy, worker.message, worker.local, anchor, steps)
        worker.message_statistics[:] = statistics
        worker.state = backend.swap(before)
        return steps, float(worker.rows)

    def _gradient(self, worker: InlineWorker) -> tuple[int, float]:
        """Computes one worker's part of a common step; its samples are a mass."""
        backend, pieces = self._backend, worker.pieces
        backend.set_local(worker.state)
        backend.set_statistics(worker.statistics)
        mass = backend.gradient(self._rows(pieces), pieces[0].step_rows, worker.message)
        backend.take_metrics(worker.metrics, add=False)
        worker.message_statistics[:] = backend.statistics()
        worker.state = backend.local()
        return 1, mass

    def skip(self, worker: InlineWorker) -> None:
        """Skips a common step of which a worker had no rows."""
        self._backend.set_local(worker.state)
        self._backend.skip()
        worker.state = self._backend.local()

    # -------------------------------------------------------------- answers

    def pull(self, worker: InlineWorker) -> None:
        """Applies the strategy's reply to a worker's message."""
        # New memory: the backend may still read its former argument.
        out, local = np.empty_like(worker.reply), worker.local
        anchor = local if worker.anchor is None else worker.anchor
        pull_into(self._plan.strategy, out, local, anchor, worker.reply)
        worker.local = out

    def adopt(self, worker: InlineWorker, center: Vector) -> None:
        """Starts over from the center."""
        worker.local = self._plan.strategy.adopt(center)
        if worker.anchor is not None:
            worker.anchor = center.copy()

    def apply(self, mean: Vector, statistics: Vector, clock: int) -> None:
        """Takes the common step; `clock` is the run clock before it."""
        if self.learning_rate is not None:
            self._backend.set_learning_rate(self.learning_rate)
        self._backend.set_statistics(statistics)
        self._backend.apply(mean, Clock(start=self._began + clock))

    def read(self) -> Vector:
        """Returns the common weights."""
        return self._backend.read()[0]
