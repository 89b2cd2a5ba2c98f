"""The loop of every worker: it opens model and data, and takes turns until the end.

The turns are in `weight_loop.py` for strategies that exchange weights, in
`gradient_loop.py` for those that exchange gradients.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.backends.base import Clock
from shoal.data.chunks import kind_of
from shoal.data.sources import Source
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.changes import (
    STATISTICS,
    Changes,
    stamped,
    unstamped,
    write,
)
from shoal.engine.transport.messages.server_to_worker import Merged
from shoal.engine.transport.messages.worker_reports import NodeUsed
from shoal.engine.transport.messages.worker_to_server import Compiling, ReadingData
from shoal.engine.transport.shared_memory import tag_of
from shoal.engine.worker.client import ServerClient
from shoal.engine.worker.nan_guard import NanGuard, NonFinite
from shoal.engine.worker.reader import SampleReader
from shoal.engine.worker.spec import Moment, WorkerSpec
from shoal.errors import PlanError
from shoal.launchers.cores import bind

if TYPE_CHECKING:
    from shoal.clusters.use import UseSampler


class _Program(NamedTuple):
    """A compiled program: rows, kind of the data, and what is computed."""

    rows: int
    kind: Any
    is_gradient: bool


class Loop(ABC):
    """One worker's loop.

    Args:
        spec: Spec of the worker.
        client: Client of the server.

    Attributes:
        steps: Number of steps that it has taken.
    """

    exchanges_gradients = False

    def __init__(self, spec: WorkerSpec, client: ServerClient) -> None:
        self._spec, self._client = spec, client
        self._environment = client.environment
        self.steps = 0
        compute = replace(spec.compute, rank_seed=client.rank)
        self._source = source = spec.open_source(lambda: client.tell(ReadingData()))
        self._reader = SampleReader(
            source, spec.order, spec.retry, client.tell, client.environment.sleep
        )
        sample = self._reader.first(
            np.arange(spec.compute.sample_rows) % spec.order.sample_rows
        )
        self._backend = spec.open_backend(compute, sample)
        self._check_layout()
        self._compute = compute
        self._compiled: set[_Program] = set()
        self._paced: set[_Program] = set()
        self._rate: float | None = None
        self._changes = Changes()
        self._changed = 0  # serial number of the newest applied change
        self._ahead = 0  # steps that were pushed and not answered yet
        # The controller's process samples the server's machine.
        self._far_host = client.far_host
        self._use = _sampler(spec.server_address.secret) if self._far_host else None
        self._backend.load(client.local, client.statistics)
        self._nan_guard = NanGuard(
            spec.reaction,
            client,
            self._backend,
            self._reader,
            loss_at=compute.loss_at,
            batch_size=compute.batch_size,
        )

    def close(self) -> None:
        """Ends reading ahead and sampling."""
        if self._use is not None:
            self._use.close()
        if isinstance(self._source, Source):
            self._source.close()

    def _check_layout(self) -> None:
        """Checks that the model opened here has the driver's vectors."""
        backend, sizes = self._backend, self._spec.server_address.sizes
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
        """Compiles, then works until the server ends the run."""
        self._warm_up()
        # Only now: others wait for its programs, so compiling may take all cores.
        bind(self._spec.cores)
        client = self._client
        clock = self._clock()
        answer, blob = client.ready()
        self._start_over(blob or self._spec.optimizer or client.optimizer)
        with contextlib.suppress(NonFinite):
            if isinstance(answer, Merged):  # it had no rows in its first step
                self._merged(clock)
            while not client.progress.is_done:
                if client.progress.wants_snapshot:
                    self._take_changes()
                    self._publish()
                elif client.progress.pieces:
                    self._turn()
                elif client.has_early:
                    self._catch_up()
                else:
                    self._wait()
                self._tell_use()
        if client.has_early:
            self._catch_up()
        while not client.progress.is_done:  # only its weights are needed now
            if client.progress.wants_snapshot:
                self._publish()
            else:
                client.need()

    @abstractmethod
    def _turn(self) -> None:
        """Computes on some of the leased data, and exchanges."""

    def _catch_up(self) -> bool:
        """Takes the answer to an early push, if there is one.

        Returns:
            False if the steps since then are void.
        """
        return True

    @abstractmethod
    def _publish(self) -> None:
        """Sends the state that the server asked this worker for."""

    def _merged(self, clock: Clock) -> None:
        """Takes a step in which this worker had no rows.

        Args:
            clock: Run clock before the step, as for workers that pushed to it.
        """
        raise RuntimeError("a step of another worker, without gradient exchange")

    def _take_steps(self, batches: list[Piece], clock: Clock) -> int | None:
        """Takes the steps of some batches; returns the first whose loss is not finite.

        It is one call, or one for each shape if shapes change from batch to batch.
        """
        times, size, steps = self._client.times, self._compute.batch_size, 0
        turned: int | None = None
        began = self._environment.clock()
        runs = self._reader.runs(batches, size)
        times.data_s += self._environment.clock() - began
        began = self._environment.clock()
        for part, data in runs:
            rows = sum(piece.rows for piece in part)
            count = max(1, rows // size)
            self._expect(min(rows, size), data, is_gradient=False)
            at = replace(clock, start=clock.start + steps * clock.pace)
            with self._pacing(rows, data, is_gradient=False):
                found = self._backend.run(data, count, at)
                self._backend.take_metrics(self._client.metrics, add=True)
            if turned is None and found is not None:
                turned = steps + found
            steps += count
        times.compute_s += self._environment.clock() - began
        return turned

    # ------------------------------------------------------------- compiling

    def _warm_up(self) -> None:
        compute, order = self._compute, self._spec.order
        is_gradient = self._begins_with_gradients
        rows = compute.batch_size * (1 if is_gradient else compute.window)
        count = min(rows, order.rows_of(order.first_epoch))
        if count > compute.batch_size:
            count -= count % compute.batch_size
        # Rows beyond one batch repeat the shape of the first batch.
        data = self._reader.first(np.arange(count) % order.sample_rows)
        size = min(count, compute.batch_size)
        self._compiled = {_Program(size, kind_of(data), is_gradient)}
        self._backend.warm_up(data, is_gradient=is_gradient)

    @property
    def _begins_with_gradients(self) -> bool:
        """Whether the first program computes a gradient, not a window of steps."""
        return self.exchanges_gradients

    def _expect(self, rows: int, data: Any, *, is_gradient: bool) -> None:
        """Tells the server if a step of this size has to be compiled first."""
        key = _Program(rows, kind_of(data), is_gradient)
        if key not in self._compiled:
            self._compiled.add(key)
            self._client.tell(Compiling())

    def _pacing(
        self, rows: int, data: Any, *, is_gradient: bool
    ) -> AbstractContextManager[None]:
        """Reports progress during first steps of a size: their duration is unknown."""
        key = _Program(rows, kind_of(data), is_gradient)
        if key in self._paced:
            return contextlib.nullcontext()
        self._paced.add(key)
        return self._client.busy()

    def _start_over(self, blob: bytes) -> None:
        self._backend.load(self._client.local, self._client.statistics)
        if not blob:
            return
        state, serial = unstamped(blob)
        self._backend.restore(state)
        self._rate = None  # the state may have another rate than was told since
        # The state may be older or newer than changes of callbacks.
        client = self._client
        fresh, client.changes = client.changes, client.changes.only(STATISTICS)
        self._changes.absorb(fresh.without(STATISTICS))
        self._changed = max(serial, self._changes.serial)
        write(self._backend, self._changes.since(serial))

    def _snapshot(self) -> bytes:
        """Returns the optimizer's state, with the number of its newest change."""
        return stamped(self._backend.snapshot(), self._changed)

    def _take_changes(self) -> None:
        """Applies changes of callbacks before the next step."""
        client = self._client
        fresh, client.changes = client.changes, Changes()
        if not fresh:
            return
        self._changes.absorb(fresh.without(STATISTICS))
        self._changed = max(self._changed, fresh.serial)
        write(self._backend, fresh)
        if fresh.only(STATISTICS):
            fresh.write_statistics(client.statistics)
            self._backend.set_statistics(client.statistics)

    # --------------------------------------------------------------- waiting

    def _wait(self) -> None:
        """Waits for data: an epoch drains, callbacks run, or others take a step."""
        client, clock = self._client, self._clock()
        began = self._environment.clock()
        answer, blob = client.need()
        client.times.wait_s += self._environment.clock() - began
        if isinstance(answer, Merged):
            self._merged(clock)
        elif answer.is_center:
            self._start_over(blob)

    def _tell_use(self) -> None:
        """Reports this machine's use from time to time."""
        found = None if self._use is None else self._use.look()
        if found is not None:
            self._client.tell(NodeUsed(node=self._far_host, use=found))

    def _clock(self) -> Clock:
        """Returns the run clock of the last answer."""
        progress = self._client.progress
        pace = 1.0 if self.exchanges_gradients else float(progress.workers)
        start = self._spec.clock_start + progress.clock + self._ahead * pace
        if progress.learning_rate is not None and progress.learning_rate != self._rate:
            self._rate = progress.learning_rate
            self._backend.set_learning_rate(self._rate)
        self._take_changes()
        return Clock(start=start, pace=pace)

    # ----------------------------------------------------------- for turns

    def _is_void(self, pieces: Sequence[Piece]) -> bool:
        """Whether some of the samples are left out."""
        left_out = self._spec.left_out
        return left_out.touches(pieces, lambda: self._reader.indices(pieces))

    def _look(self) -> None:
        """Lets a test end this worker while its leases are computed, not committed."""
        if self._spec.watch is not None:
            client = self._client
            self._spec.watch(Moment(client.rank, client.incarnation, self.steps))


def _sampler(secret: bytes) -> UseSampler:
    """Returns the sampler of this machine's use, for one of the workers here."""
    # Most workers do without it, and without its imports.
    using: Any = import_module("shoal.clusters.use")
    return using.UseSampler(f"use-{tag_of(secret)}")
