"""A worker: leases data, takes local steps, exchanges, until there is no more."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from shoal.backends.base import Backend, Clock, ComputeSpec
from shoal.data.order import Order
from shoal.data.read_ahead import ReadAhead
from shoal.data.sources import Source
from shoal.engine.complaints import SURE, VOID
from shoal.engine.conversation import Fenced, Seat
from shoal.engine.finite import WARN, Reaction
from shoal.engine.guard import Guard, Harmed
from shoal.engine.lane import Lane, LaneSpec
from shoal.engine.ledger import Piece
from shoal.engine.left_out import LeftOut
from shoal.engine.member import Member
from shoal.engine.reading import Reader, Retry, Rows
from shoal.engine.slots import tag_of
from shoal.engine.spread import LONG, InPairs
from shoal.errors import DataError, PlanError, ShoalError
from shoal.launchers.cores import bind
from shoal.strategies.base import Strategy
from shoal.vectors import Vector

if TYPE_CHECKING:
    from shoal.clusters.use import UseSampler

SAMPLE_ROWS = 4
MOST_TEXT = 1 << 16  # characters of an error that travel


class Moment(NamedTuple):
    """Where a worker is: its steps are taken, and not told to anybody yet."""

    rank: int
    incarnation: int
    step: int


class Window(NamedTuple):
    """Steps that were taken between two exchanges.

    Args:
        pieces: Whose samples are done.
        taught: Those of them that something was learnt from.
        steps: That were taken.
        turned: The first whose loss was not finite, of the worker's own; None for none.
    """

    pieces: list[Piece]
    taught: list[Piece]
    steps: int
    turned: int | None


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
    lane: LaneSpec | None = None
    has_overlap: bool = False
    clean_up: Callable[[], None] | None = None


def work(spec: WorkerSpec) -> None:
    """Runs one worker to the end of the run.

    A failure of user code is reported to the controller with its traceback; a
    server that is gone ends the worker quietly, the controller knows why.
    """
    try:
        member = Member(spec.seat, spec.strategy, is_early=spec.has_overlap)
    except (OSError, ShoalError) as error:
        # The controller does not know it yet: only the end of the process tells.
        sys.exit(f"this worker could not join the run: {error}")
    worker = None
    try:
        worker = Worker(spec, member)
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


class Worker:
    """One worker's loop.

    Args:
        spec: What to do.
        member: Its seat at the server.
    """

    def __init__(self, spec: WorkerSpec, member: Member) -> None:
        self._spec, self._member = spec, member
        self.steps = 0
        compute = replace(spec.compute, rank_seed=member.rank)
        self._source = source = spec.open_source()
        if isinstance(source, ReadAhead):
            source.on_wait = lambda: member.tell("reading")
        self._reader = Reader(source, spec.order, spec.retry, member.tell)
        sample = self._reader.first(np.arange(SAMPLE_ROWS) % spec.order.rows)
        self._backend = spec.open_backend(compute, sample)
        self._check_layout()
        self._compute = compute
        size = member.local.size
        self._lane = None if spec.lane is None else Lane(spec.lane, size)
        self._pairs: InPairs | None = None
        self._compiled: set[int] = set()
        self._paced: set[int] = set()
        self._rate: float | None = None
        self._ahead = 0  # steps that were pushed, and not answered yet
        # The server's machine is looked at by the process that follows the run.
        self._far_host = member.far_host
        self._use = _sampler(spec.seat.secret) if self._far_host else None
        self._backend.load(member.local, member.statistics)
        self._guard = Guard(
            spec.reaction,
            member,
            self._backend,
            self._reader,
            loss_at=compute.loss_at,
            batch_size=compute.batch_size,
        )

    def close(self) -> None:
        """Ends what reads ahead and what looks around, and leaves the group."""
        if self._use is not None:
            self._use.close()
        if self._lane is not None:
            self._lane.close()
        if self._pairs is not None:
            self._pairs.close()
        if isinstance(self._source, Source):
            self._source.close()

    def _check_layout(self) -> None:
        """The model as it was opened here must have the driver's vectors."""
        backend, sizes = self._backend, self._spec.seat.sizes
        found = backend.layout.size, backend.statistics_layout.size
        wanted = sizes.vector, sizes.statistics
        if (*found, backend.metrics_size) != (*wanted, sizes.metrics):
            raise PlanError(
                f"the model opened on a worker has {found[0]:,} weights, {found[1]:,} "
                f"statistics and {backend.metrics_size:,} metric states, where the "
                f"driver's has {wanted[0]:,}, {wanted[1]:,} and {sizes.metrics:,}. "
                "Both were expected to be the same. See that the callable, or what "
                "layers build from, gives the same model each time."
            )

    def run(self) -> None:
        """Compiles, then works until the server says that the run is done."""
        self._warm_up()
        bind(self._spec.cores)
        member = self._member
        if len(self._spec.cores) > 1:  # and no other worker's
            self._pairs = InPairs(LONG)
            member.spread = self._pairs
        blob = member.ready()
        self._start_over(blob or self._spec.optimizer or member.optimizer)
        turn = self._gang_step if self._spec.is_gang else self._window
        with contextlib.suppress(Harmed):
            while not member.progress.is_done:
                if member.progress.wants_snapshot:
                    self._publish()
                elif member.progress.pieces:
                    turn()
                else:
                    self._wait()
                self._tell_use()
        self._catch_up()
        while not member.progress.is_done:  # of no more use, but for its weights
            if member.progress.wants_snapshot:
                self._publish()
            else:
                member.need()

    def _warm_up(self) -> None:
        compute, order = self._compute, self._spec.order
        rows = compute.batch_size * (1 if self._spec.is_gang else compute.window)
        count = min(rows, order.rows_of(0))
        if count > compute.batch_size:
            count -= count % compute.batch_size
        data = self._reader.first(np.arange(count))
        self._compiled = {min(count, compute.batch_size)}
        self._backend.warm_up(data, is_gradient=self._spec.is_gang)

    def _expect(self, rows: int) -> None:
        """Says so when a step of so many rows has to be compiled first."""
        if rows not in self._compiled:
            self._compiled.add(rows)
            self._member.tell("compiling")

    def _pacing(self, rows: int) -> AbstractContextManager[None]:
        """Around steps of so many rows: nobody knows how long the first take."""
        if rows in self._paced:
            return contextlib.nullcontext()
        self._paced.add(rows)
        return self._member.busy()

    def _start_over(self, blob: bytes) -> None:
        self._backend.load(self._member.local, self._member.statistics)
        if blob:
            self._backend.restore(blob)

    def _wait(self) -> None:
        """No data: the epoch drains, or callbacks run, or others take a gang's step."""
        if self._member.has_early:
            self._catch_up()
            return
        member, clock = self._member, self._clock()
        began = time.perf_counter()
        head, blob = member.need()
        member.times.wait_s += time.perf_counter() - began
        if head["kind"] == "merged":
            # The clock is that of before the step, as for those that pushed to it.
            self._backend.set_statistics(member.statistics)
            self._backend.skip()
            self._apply(member.bulk.reply, clock, None, SURE)
        elif head.get("body") in ("center", "snapshot"):
            self._start_over(blob)

    def _tell_use(self) -> None:
        """Says what this machine is busy with, now and then."""
        found = None if self._use is None else self._use.look()
        if found is not None:
            self._member.tell("node_used", node=self._far_host, **found.to_json())

    def _publish(self) -> None:
        backend = self._backend
        if not self._spec.is_gang:
            self._member.publish_optimizer(backend.snapshot())
            return
        vector, statistics = backend.read()
        self._member.publish(vector, statistics, backend.snapshot())

    def _clock(self) -> Clock:
        """The run clock now, as the last answer told it."""
        progress = self._member.progress
        pace = 1.0 if self._spec.is_gang else float(progress.workers)
        start = self._spec.clock_start + progress.clock + self._ahead * pace
        if progress.learning_rate is not None and progress.learning_rate != self._rate:
            self._rate = progress.learning_rate
            self._backend.set_learning_rate(self._rate)
        return Clock(start=start, pace=pace)

    # ------------------------------------------------------------- one turn

    def _window(self) -> None:
        """Up to `window` local steps, then one exchange."""
        member, backend = self._member, self._backend
        self._guard.begin_window()
        done = self._compute_window()
        span = self.steps - done.steps + 1, self.steps
        taught = done.taught
        if self._guard.is_harmed(taught or done.pieces, span, done.turned):
            taught = []
        vector, statistics = backend.read()
        self._look()
        if member.has_early:
            if not self._catch_up():
                return
            if member.progress.wants_snapshot:
                self._publish()
            vector, statistics = member.local, member.statistics
        learnt = sum(piece.rows for piece in taught)
        is_going_on = bool(member.progress.pieces) and not member.progress.is_done
        if self._spec.has_overlap and is_going_on:
            self._ahead = done.steps
            member.push_early(vector, statistics, done.pieces, done.steps, learnt)
            return
        member.push_weights(vector, statistics, done.pieces, done.steps, learnt)
        backend.load(member.local, member.statistics)

    def _compute_window(self) -> Window:
        """Takes the steps of a window."""
        member, backend, times = self._member, self._backend, self._member.times
        clock, size, steps = self._clock(), self._compute.batch_size, 0
        pieces, taught = list[Piece](), list[Piece]()
        turned: int | None = None
        member.metrics[:] = 0.0
        while steps < self._compute.window and member.progress.pieces:
            most = self._compute.window - steps
            batches = next_batches(member.progress.pieces, size, most, pieces)
            if not batches:
                break
            rows = sum(p.rows for p in batches)
            count = max(1, rows // size)
            start = clock.start + steps * clock.pace
            if not self._is_void(batches):
                self._expect(min(rows, size))
                began = time.perf_counter()
                data = self._reader.pieces(batches)
                read = time.perf_counter()
                with self._pacing(rows):
                    found = backend.run(data, count, replace(clock, start=start))
                    backend.take_metrics(member.metrics, add=True)
                if turned is None and found is not None:
                    turned = self.steps + found + 1
                times.data_s += read - began
                times.compute_s += time.perf_counter() - read
                taught += batches
            pieces += batches
            steps += count
            self.steps += count
            if rows % size:
                break  # the short batch ends the window, as it ends the epoch
        return Window(pieces, taught, steps, turned)

    def _catch_up(self) -> bool:
        """Takes the answer that was not waited for, if there is one.

        Returns:
            False where what was computed since is void.
        """
        member, backend = self._member, self._backend
        if not member.has_early:
            return True
        self._ahead = 0
        is_good = member.catch_up(*backend.read())
        backend.load(member.local, member.statistics)
        return is_good

    def _is_void(self, pieces: Sequence[Piece]) -> bool:
        """Whether some of the samples are not to be trained on again."""
        left_out = self._spec.left_out
        return left_out.touches(pieces, lambda: self._reader.indices(pieces))

    def _gang_step(self) -> None:
        """One gradient, averaged over all workers, applied by each."""
        member, backend, times = self._member, self._backend, self._member.times
        clock = self._clock()
        piece = member.progress.pieces.popleft()
        if self._is_void([piece]):
            self._pass(piece, clock)
            return
        self._expect(piece.rows)
        began = time.perf_counter()
        data = self._reader.pieces([piece])
        read = time.perf_counter()
        gradient = member.bulk.message
        with self._pacing(piece.rows):
            mass = backend.gradient(data, piece.gang, gradient)
            backend.take_metrics(member.metrics, add=False)
        statistics = backend.statistics()
        times.data_s += read - began
        times.compute_s += time.perf_counter() - read
        self.steps += 1
        doubt = self._guard.doubt(gradient, statistics)
        if doubt:
            statistics = self._guard.cleaned(statistics)
        self._look()
        told = doubt if self._guard.is_shared else SURE
        mean = self._mean_of_group(gradient, mass)
        mean = member.push_gradient(statistics, [piece], mass, told, mean)
        backend.set_statistics(member.statistics)
        self._apply(mean, clock, piece, doubt)

    def _mean_of_group(self, gradient: Vector, mass: float) -> Vector | None:
        """What the workers found among themselves, None where they did not."""
        member, group = self._member, self._member.progress.group
        if self._lane is None or group is None:
            return None
        began, lineage = time.perf_counter(), member.progress.lineage
        mean = self._lane.mean(group, lineage, member.rank, gradient, mass)
        member.times.exchange_s += time.perf_counter() - began
        return mean

    def _pass(self, piece: Piece, clock: Clock) -> None:
        """A step of the gang whose samples are left out, by all of it."""
        member = self._member
        member.bulk.message[:] = member.metrics[:] = 0.0
        self.steps += 1
        self._backend.skip()
        statistics = self._backend.statistics()
        mean = member.push_gradient(statistics, [piece], 0.0, VOID)
        self._backend.set_statistics(member.statistics)
        self._apply(mean, clock, piece, VOID)

    def _apply(
        self, mean: Vector, clock: Clock, piece: Piece | None, doubt: int
    ) -> None:
        """The gang's step, as it came or with care."""
        if doubt or self._member.progress.doubt:
            self._guard.apply(mean, clock, piece, self.steps, doubt)
        else:
            self._backend.apply(mean, clock)

    def _look(self) -> None:
        """Lets a test end this worker when its leases are worked on, not committed."""
        if self._spec.watch is not None:
            member = self._member
            self._spec.watch(Moment(member.rank, member.incarnation, self.steps))


def _sampler(secret: bytes) -> UseSampler:
    """What looks at this machine, in one of the run's workers here."""
    # Most workers do without it, and without what it would import.
    using: Any = import_module("shoal.clusters.use")
    return using.UseSampler(f"use-{tag_of(secret)}")


def next_batches(
    pieces: deque[Piece], size: int, most: int, before: Sequence[Piece]
) -> list[Piece]:
    """Takes whole batches, or one short batch, of one epoch from the leases.

    Args:
        pieces: The leases; what is taken leaves them.
        size: Rows of a batch.
        most: Batches to take at most.
        before: What the window has taken already; it stays within an epoch.
    """
    epoch = before[0].epoch if before else pieces[0].epoch
    total = 0
    for piece in pieces:
        if piece.epoch != epoch:
            break
        total += piece.rows
    wanted = min(most * size, total - total % size) or total
    taken: list[Piece] = []
    while wanted and pieces and pieces[0].epoch == epoch:
        piece = pieces.popleft()
        if piece.rows > wanted:
            rest = piece._replace(start=piece.start + wanted)
            piece = piece._replace(stop=rest.start)
            pieces.appendleft(rest)
        taken.append(piece)
        wanted -= piece.rows
    return taken
