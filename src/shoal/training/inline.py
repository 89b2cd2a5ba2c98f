"""A whole cluster in one thread: for experiments with many workers on few cores.

Sequencer, center, strategy and compiled programs are those of a real run; only
processes and sockets are absent. Sixteen workers cost no more compute than one.
This file decides when simulated workers are busy and when their messages arrive;
`conditions.py` says which are slow and which leave. Time is a number here, never a
clock.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt

from shoal.engine.controller.observer import EpochsInOrder, Observer
from shoal.engine.coordination.instructions import PushMetadata, Respond
from shoal.engine.coordination.interpreter import Interpreter
from shoal.engine.coordination.lease_report import LEASES_S, lease_report
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.server.center import Center
from shoal.engine.server.records import EpochEnd, Record, Rescue
from shoal.engine.server.reports import SMALL_METRICS, share_of_loss, weighed
from shoal.engine.transport.changes import Changes
from shoal.interruption import check
from shoal.models.inspection import step_variable
from shoal.models.lending import lending
from shoal.models.metrics import loss_totals
from shoal.plan import Plan
from shoal.runs.base import Run
from shoal.strategies.base import Facts
from shoal.training.conditions import CONDITIONS, Change, Conditions
from shoal.training.driver import Driver
from shoal.training.driver_options import DriverOptions
from shoal.training.inline_workers import InlineWorker, InlineWorkers
from shoal.training.start_run import TrainingResult, Work, begin, rescue, rules
from shoal.vectors import Layout, Vector, exchanged_variables, statistic_variables

JITTER = 0.1  # a window takes up to this share more or less than its steps say
FLUSH_S = 0.1


def train(
    plan: Plan,
    work: Work,
    run: Run,
    options: DriverOptions,
) -> TrainingResult:
    """Trains like `start_run.train`, with all workers in this thread.

    With rounds the outcome is that of a run on processes to float tolerance. With
    messages applied on arrival it is one of the possible outcomes, and the plan's
    seed repeats it.

    Args:
        plan: Plan of the run.
        work: Model and data.
        run: Record of the run.
        options: Options of `fit`.

    Raises:
        KeyboardInterrupt: After Ctrl-C; the model has the center so far.
    """
    driver = Driver(work.model, plan, run, options)
    plan = begin(driver, plan, work, run)
    with lending():
        work = work.as_training_begins(options)
        cluster = InlineCluster(plan, work, driver, CONDITIONS.get())
    driver.fetch_by(cluster.newest)
    try:
        with work.source.serving():
            cluster.run()
        return TrainingResult(history=driver.end(), first_step=driver.first_step)
    except KeyboardInterrupt:
        rescue(driver, cluster.rescue, is_told=options.verbose != 0)
        raise
    except BaseException:
        driver.abandon()
        raise


@final
class InlineCluster(Interpreter):
    """Server and workers of one run, in one thread.

    Args:
        plan: Plan of the run.
        work: Packed model and data.
        observer: Observer of the run, as of a controller.
        speeds: Rank -> time of one step.
    """

    def __init__(
        self,
        plan: Plan,
        work: Work,
        observer: Observer,
        conditions: Conditions,
    ) -> None:
        model = work.model
        weights, beside = exchanged_variables(model), statistic_variables(model)
        self._plan, self._observer = plan, observer
        self._conditions, self._changes_due = conditions, deque(conditions.changes)
        self._random = np.random.default_rng([plan.seed, plan.workers])
        began = float(int(step_variable(model).numpy()))
        self._losses = loss_totals(model)
        self._center = Center(
            plan.strategy,
            Layout.of(weights).gather(weights),
            Layout.of(beside).gather(beside),
        )
        self._sequencer = Sequencer(rules(plan))
        self._inline_workers = InlineWorkers(plan, work.packed, work.source, began)
        for rank in range(plan.workers):
            member = self._sequencer.join(rank)
            self._inline_workers.open_launcher(member.incarnation, *self.copy_center())
        self._due: list[tuple[float, int]] = []
        self._asking: deque[int] = deque()
        self._records: list[Record] = []
        self._metrics: dict[int, npt.NDArray[np.float64]] = {}
        self._ended: deque[int] = deque()
        self._epochs = EpochsInOrder(
            plan.request.initial_epoch, plan.request.epochs, observer, self._open
        )
        self._now, self._samples = 0.0, 0
        self._began = self._flushed = time.monotonic()
        self._leases_shown = self._began - LEASES_S
        self._is_halted = False
        self._changes = Changes()

    def copy_center(self) -> tuple[Vector, Vector]:
        """Returns copies of weights and statistics; backends may keep views of them."""
        return self._center.vector.copy(), self._center.statistics.copy()

    def newest(self) -> tuple[Vector, Vector]:
        """Returns the newest; under gradient exchange a worker publishes its own."""
        if self._plan.exchanges_gradients:
            self._center.vector[:] = self._inline_workers.read()
        return self.copy_center()

    def rescue(self) -> Rescue:
        """Returns the results at an interruption."""
        vector, statistics = self.newest()
        return Rescue(
            vector=vector,
            statistics=statistics,
            samples=self._samples,
            clock=self._sequencer.clock,
            optimizer_state=self._inline_workers.optimizer_state(),
        )

    # -------------------------------------------------------------- the run

    def run(self) -> None:
        """Trains every epoch, or until the observer wants it to stop."""
        plan = self._plan
        if plan.request.initial_epoch >= plan.request.epochs:
            return
        for worker in self._inline_workers.inline_workers:
            self._carry_out(self._sequencer.ready(worker.rank, worker.incarnation))
        self._open(plan.request.initial_epoch)
        while not self._epochs.are_over:
            self._observer.on_turn()
            check()
            self._turn()
            self._tell(is_forced=bool(self._ended) or self._observer.hears_steps)
            while self._ended and not self._epochs.are_over:
                self._report_epoch(self._ended.popleft())

    def _turn(self) -> None:
        """Runs the next event of any worker."""
        sequencer = self._sequencer
        if self._asking:
            worker = self._inline_workers.inline_workers[self._asking.popleft()]
            self._carry_out(sequencer.need(worker.rank, worker.incarnation))
            return
        if self._changes_due and (
            not self._due or self._changes_due[0].at <= self._due[0][0]
        ):
            self._change_workers(self._changes_due.popleft())
            return
        self._now, rank = heapq.heappop(self._due)
        worker = self._inline_workers.inline_workers[rank]
        steps, samples = self._inline_workers.work(worker)
        worker.sequence += 1
        push = PushMetadata(
            rank=rank,
            incarnation=worker.incarnation,
            lineage=sequencer.lineage,
            sequence=worker.sequence,
            pieces=tuple(worker.pieces),
            steps=steps,
            samples=samples,
            rows=float(worker.rows) if self._plan.exchanges_gradients else None,
        )
        self._carry_out(sequencer.push(push))

    def _change_workers(self, change: Change) -> None:
        """Loses a worker with what it has not pushed, or adds one in its place."""
        self._now = max(self._now, change.at)
        worker = self._inline_workers.inline_workers[change.rank]
        if change.action == "leave":
            self._due = [due for due in self._due if due[1] != worker.rank]
            heapq.heapify(self._due)
            self._asking = deque(rank for rank in self._asking if rank != worker.rank)
            self._inline_workers.close(worker)
            self._center.forget(worker.rank)
            self._carry_out(self._sequencer.leave(worker.rank, worker.incarnation))
            return
        worker.incarnation = self._sequencer.join(worker.rank).incarnation
        vector, worker.statistics = self.copy_center()
        self._inline_workers.adopt(worker, vector)
        self._carry_out(self._sequencer.ready(worker.rank, worker.incarnation))

    def _begin(self, worker: InlineWorker) -> None:
        """Starts a worker on a window of its leases, or requests leases."""
        steps = self._inline_workers.take_window(worker, self._sequencer.clock)
        if not steps:
            self._asking.append(worker.rank)
            return
        jitter = self._random.uniform(1 - JITTER, 1 + JITTER)
        busy = steps * self._conditions.step_time(worker.rank) * jitter
        heapq.heappush(self._due, (self._now + busy, worker.rank))

    # -------------------------------------------------------- the controller

    def _open(self, epoch: int) -> None:
        self._observer.on_epoch_begin(epoch)
        self._take_settings()
        self._carry_out(self._sequencer.proceed(epoch))

    def _take_settings(self) -> None:
        """Applies changes of callbacks: the learning rate, and model variables."""
        self._inline_workers.learning_rate = self._observer.learning_rate
        fresh = self._changes.absorb(self._observer.changes)
        if fresh:
            fresh.write_statistics(self._center.statistics)
            self._inline_workers.change(fresh)

    def _tell(self, *, is_forced: bool) -> None:
        """Reports exchanges, regularly as a server does."""
        now = time.monotonic()
        if not self._records or not (is_forced or now - self._flushed >= FLUSH_S):
            return
        records, self._records = self._records, []
        self._flushed = now
        sums = {epoch: sums.copy() for epoch, sums in self._metrics.items()}
        self._observer.on_records(records, sums)
        self._show_leases(now)
        self._take_settings()
        if self._observer.wants_stop and not self._is_halted:
            self._is_halted = True
            self._carry_out(self._sequencer.halt())

    def _show_leases(self, now: float) -> None:
        """Tells readers of the run who trains which samples, as a server does."""
        if now - self._leases_shown < LEASES_S:
            return
        epochs = lease_report(self._sequencer.ledger)
        if epochs:
            self._leases_shown = now
            self._observer.on_event("leases", epochs=epochs)

    def _report_epoch(self, epoch: int) -> None:
        """Does the controller's work when an epoch's last sample is committed."""
        vector, statistics = self.copy_center()
        end = EpochEnd(
            epoch=epoch,
            rows=self._sequencer.ledger.committed(epoch),
            metrics=self._metrics.pop(
                epoch, np.zeros(self._inline_workers.metrics_size)
            ),
            vector=vector,
            statistics=statistics,
            optimizer_state=self._inline_workers.optimizer_state(),
            changes=self._changes.serial,
        )
        self._epochs.ended(end)

    # ------------------------------------------------------------ the server

    def _apply(self, rank: int, facts: Facts) -> None:
        worker = self._inline_workers.inline_workers[rank]
        self._center.apply(
            rank, worker.message, worker.message_statistics, facts, worker.reply
        )
        self._record(worker, facts)

    def _end_epoch(self, epoch: int) -> None:
        self._ended.append(epoch)

    def _refuse(self, rank: int, incarnation: int, reason: str) -> NoReturn:
        raise AssertionError(f"no worker is ever lost: {rank}, {incarnation}: {reason}")

    def _roll_back(self, lineage: int) -> NoReturn:
        raise AssertionError(f"no worker is ever lost: lineage {lineage}")

    def _ungroup(self) -> NoReturn:
        raise AssertionError("workers of one process form no groups")

    def _merge(
        self, facts: dict[int, Facts], replied_to: Sequence[int], *, is_grouped: bool
    ) -> None:
        del replied_to, is_grouped  # all workers share the reply
        inline_workers = {
            rank: self._inline_workers.inline_workers[rank] for rank in facts
        }

        def write(rank: int, part: slice, values: Vector) -> None:
            for worker in (
                inline_workers.values() if rank < 0 else [inline_workers[rank]]
            ):
                worker.reply[part] = values

        self._center.merge(
            {rank: worker.message for rank, worker in inline_workers.items()},
            {
                rank: worker.message_statistics
                for rank, worker in inline_workers.items()
            },
            facts,
            write,
        )
        for rank, worker in inline_workers.items():
            share = (
                share_of_loss(rank, facts) if self._plan.exchanges_gradients else 1.0
            )
            self._record(worker, facts[rank], share)
        if self._plan.exchanges_gradients:
            for worker in self._inline_workers.inline_workers:
                if worker.rank not in facts:
                    self._inline_workers.skip(worker)
            # The clock has counted this step; a real worker reads it before.
            before = self._sequencer.clock - 1
            mean = next(iter(inline_workers.values())).reply
            self._inline_workers.apply(mean, self._center.statistics, before)

    def _respond(self, answer: Respond) -> None:
        worker, center = self._inline_workers.inline_workers[answer.rank], self._center
        worker.leases.extend(answer.pieces)
        if answer.body != "none":
            worker.statistics = center.statistics.copy()
        if answer.body == "reply" and not self._plan.exchanges_gradients:
            self._inline_workers.pull(worker)
        elif answer.body == "center":
            self._inline_workers.adopt(worker, center.vector)
        if answer.kind == "publish" or answer.wants_snapshot:
            self._publish(worker)
        self._begin(worker)

    def _publish(self, worker: InlineWorker) -> None:
        """Makes the workers' weights the center, as a worker's snapshot would."""
        self._center.vector[:] = self._inline_workers.read()
        self._carry_out(self._sequencer.published(worker.rank, worker.incarnation))

    def _record(self, worker: InlineWorker, facts: Facts, share: float = 1.0) -> None:
        """Adds a push to the epoch's sums and to the observer's records."""
        epoch, rows = worker.pieces[0].epoch, worker.rows
        sums = self._metrics.setdefault(
            epoch, np.zeros(self._inline_workers.metrics_size)
        )
        sums += weighed(worker.metrics, self._losses, share)
        self._samples += rows
        record: dict[str, Any] = {
            "t": time.monotonic() - self._began, "rank": worker.rank, "epoch": epoch,
            "samples": rows, "steps": facts.steps, "version": self._sequencer.version,
            "staleness": facts.staleness,
            "sums": sums[:SMALL_METRICS].tolist(),
        }  # fmt: skip
        self._records.append(
            Record(**record, compute_s=0.0, data_s=0.0, wait_s=0.0, exchange_s=0.0)
        )
