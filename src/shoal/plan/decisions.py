"""The decisions about a run: the fields of a plan, and values derived from them.

This file decides what a plan contains: the request, and besides it
only what had to be decided.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from shoal.data.order import Order
from shoal.facts import DataFacts, MachineFacts, ModelFacts, Monitor
from shoal.plan.gpus import Place
from shoal.plan.refusals import is_repeatable
from shoal.plan.request import Request
from shoal.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class Decisions(ABC):
    """Everything that is decided before anything starts; `Plan` is its only subclass.

    Args:
        request: The request. An option is read from here unless one of the
            fields below has its resolved value.
        strategy: Resolved: `period` is a positive number of steps.
        choice: Why this strategy was chosen, with `strategy="auto"`; "" without.
        workers: Planned training processes; `min_workers` is the minimum to continue.
        threads: Compute threads of each worker.
        rows: Samples of one epoch, after `steps_per_epoch` is applied. Where that
            does not divide a pass over the data, later epochs may have fewer:
            `order().rows_of(epoch)`.
        batch_size: Samples of one step as the user means it, and one tick of the run
            clock.
        worker_batch_size: Rows of one optimizer step on one worker (for
            `all_reduce` the largest share of `global_batch_size`).
        global_batch_size: Rows of one step of all workers together.
        exchanges_per_epoch: Exchanges of one worker, estimated.
        model: Facts about the model.
        data: Facts about the data.
        models: Number of models that are trained: 1, except for independent workers.
        machine: Facts about the machines.
        monitor: Metric by which the best model is kept.
        warnings: Warnings, one line each.
        quorum: Workers that suffice for a round when the others are late, 0 for all.
        places: The GPU of each worker; empty if they compute on the CPU.
        collective: Where gradients are averaged: "server", or by the workers
            themselves: "shared" in memory of their machine, "native" by their backend.
        growth: Number of further workers that join when the cluster has room.
        rate_factor: Factor of the workers' learning rate.
        rate_epochs: Epochs over which it grows from 1 to that.
        alone_steps: Under gradient exchange, steps that the only worker takes before
            it reports them, while it has no partner; 0 if each step is exchanged.
    """

    request: Request
    strategy: Strategy
    workers: int
    min_workers: int
    threads: int
    rows: int
    batch_size: int
    worker_batch_size: int
    global_batch_size: int
    exchanges_per_epoch: float
    model: ModelFacts
    data: DataFacts
    models: int = 1
    machine: MachineFacts = field(default_factory=lambda: MachineFacts(cores=1))
    monitor: Monitor = field(default_factory=Monitor)
    warnings: tuple[str, ...] = ()
    quorum: int = 0
    places: tuple[Place, ...] = ()
    collective: str = "server"
    growth: int = 0
    rate_factor: float = 1.0
    rate_epochs: int = 0
    alone_steps: int = 0
    choice: str = ""

    @abstractmethod
    def explain(self) -> str:
        """Returns the plan in lines for people."""

    @property
    def seed(self) -> int:
        """Returns the seed of the order of samples: 0 if none was drawn."""
        return self.request.seed or 0

    @property
    def epoch_range(self) -> range:
        """Returns the epochs to train, 0 for the first."""
        return range(self.request.initial_epoch, self.request.epochs)

    @property
    def backend(self) -> str:
        """Returns the name of the Keras backend."""
        return self.model.backend

    @property
    def data_rows(self) -> int:
        """Returns the samples in the data."""
        return self.data.rows

    @property
    def most_workers(self) -> int:
        """Returns how many workers may train at the same time."""
        return self.workers + self.growth

    @property
    def device(self) -> str:
        """Returns the device of the workers: "gpu" or "cpu"."""
        return "gpu" if self.places else "cpu"

    @property
    def exchanges_gradients(self) -> bool:
        """Whether all workers take each step together."""
        return self.strategy.exchanges == "gradients"

    @property
    def estimates_averages(self) -> bool:
        """Whether moving averages of layers are estimated anew for the center.

        They are if its weights are not those of a worker. It takes rows that can be
        read a second time, and in any order.
        """
        strategy, chunking = self.strategy, self.data.chunking
        are_exchanged = strategy.exchanges == "weights" and not strategy.is_independent
        is_plain = self.most_workers == 1 and "plain" in strategy.promises
        can_read = chunking is None or (
            chunking.mixing == "rows" and not chunking.are_batches
        )
        model = self.model
        can = can_read and model.has_moving_averages and model.can_estimate_averages
        return are_exchanged and not is_plain and can

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run with the same seed can give the same weights."""
        return is_repeatable(
            self.strategy, self.workers, epoch_barrier=self.request.epoch_barrier
        )

    @property
    def message_bytes(self) -> int:
        """Returns the bytes of one message: weights or gradients, and statistics."""
        return 4 * (self.model.parameters + self.model.statistics)

    @property
    def samples_expected(self) -> int:
        """Returns the samples that the whole run commits."""
        order = self.order()
        return self.models * sum(order.rows_of(epoch) for epoch in self.epoch_range)

    def order(self) -> Order:
        """Returns the order of samples that every process follows."""
        return Order(
            rows=self.data_rows,
            seed=self.seed,
            shuffle=self.request.shuffle,
            batch_size=self.batch_size,
            steps_per_epoch=self.request.steps_per_epoch,
            first_epoch=self.request.initial_epoch,
            chunking=None
            if self.data.chunking is None
            else replace(self.data.chunking, has_lanes=self.exchanges_gradients),
        )
