"""From arguments to a frozen, printable `Plan`. Pure: reads no model, data or clock.

This file decides what will happen before anything starts: how many workers, how
many rows a step takes, and what the user is warned of.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

from shoal.data.order import Order, Shuffle, shares, steps
from shoal.facts import DataFacts, MachineFacts, ModelFacts, Monitor
from shoal.plan.cautions import (
    crowd_warnings,
    gang_warnings,
    metric_warnings,
    optimizer_warnings,
    room_warnings,
    state_warnings,
)
from shoal.plan.collective import choose_collective
from shoal.plan.exchanging import choose_codec, choose_overlap, choose_servers
from shoal.plan.explaining import count, explained
from shoal.plan.gpus import Place, gpu_warnings, places, places_of_cluster
from shoal.plan.monitor import choose_monitor
from shoal.plan.quorum import check_quorum, choose_quorum
from shoal.plan.refusals import (
    is_repeatable,
    refuse,
    refuse_fixed_batch,
    refuse_late,
    refuse_uncompiled,
)
from shoal.plan.request import (
    BATCH_SIZE,
    Request,
    check,
    default_batch,
    models_of,
    useful_workers,
)
from shoal.plan.validation import is_validated
from shoal.plan.variables import Environment, environment
from shoal.strategies.base import Strategy

__all__ = [
    "BATCH_SIZE",
    "DataFacts",
    "Environment",
    "MachineFacts",
    "ModelFacts",
    "Monitor",
    "Place",
    "Plan",
    "Request",
    "environment",
    "resolve",
]


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is decided before anything starts.

    Args:
        strategy: Resolved: `period` is a positive number of steps.
        workers: Training processes aimed at; `min_workers` the least to go on with.
        threads: Compute threads of each worker.
        rows: Samples of one epoch, after `steps_per_epoch` is applied. Where that
            does not divide a pass over the data, later epochs may have fewer:
            `order().rows_of(epoch)`.
        data_rows: Samples in the data.
        batch_size: Samples of one step as the user means it, and one tick of the run
            clock.
        worker_batch_size: Rows of one optimizer step on one worker (for
            `all_reduce` the largest share of `gang_batch_size`).
        gang_batch_size: Rows all workers together consume in one step.
        exchanges_per_epoch: Of one worker, estimated.
        models: Models that are trained: 1, but for independent workers.
        seed: Of shuffling.
        monitor: Metric by which the best model is kept.
        warnings: One line each.
        on_nan: "stop", "skip" or "rollback" where numbers turn NaN or infinite; None
            warns and goes on.
        quorum: Workers of a round that are enough when the others are late, 0 for all.
        validation: "async" where a process of its own validates while others train.
        places: The GPU of each worker; none where they compute on the CPU.
        collective: Who averages gradients: "server", or the workers among themselves:
            "shared" in memory of their machine, "native" by their backend.
        codec: Numbers of a vector between hosts: "float32", "bfloat16" or "int8".
        overlap: Workers compute the next window while the last one is exchanged.
        servers: That share the weights.
        growth: More workers that join when the cluster has room for them.
    """

    strategy: Strategy
    backend: str
    cluster: str
    workers: int
    min_workers: int
    threads: int
    epochs: int
    initial_epoch: int
    rows: int
    data_rows: int
    batch_size: int
    worker_batch_size: int
    gang_batch_size: int
    exchanges_per_epoch: float
    shuffle: Shuffle
    seed: int
    deterministic: bool
    epoch_barrier: bool
    max_restarts: int
    model: ModelFacts
    data: DataFacts
    steps_per_epoch: int | None = None
    models: int = 1
    machine: MachineFacts = field(default_factory=lambda: MachineFacts(cores=1))
    monitor: Monitor = field(default_factory=Monitor)
    warnings: tuple[str, ...] = ()
    on_nan: str | None = None
    standby: int = 0
    spares: int = 0
    quorum: int = 0
    validation: str = "blocking"
    places: tuple[Place, ...] = ()
    collective: str = "server"
    codec: str = "float32"
    overlap: bool = False
    servers: int = 1
    growth: int = 0

    @property
    def most_workers(self) -> int:
        """Workers that may train at the same time."""
        return self.workers + self.growth

    @property
    def device(self) -> str:
        """What workers compute on: "gpu" or "cpu"."""
        return "gpu" if self.places else "cpu"

    @property
    def exchanges_gradients(self) -> bool:
        """Whether all workers take each step together."""
        return self.strategy.exchanges == "gradients"

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run with the same seed can give the same weights."""
        return is_repeatable(
            self.strategy, self.workers, epoch_barrier=self.epoch_barrier
        )

    @property
    def message_bytes(self) -> int:
        """Bytes of one message: weights or gradients, and statistics beside them."""
        return 4 * (self.model.parameters + self.model.statistics)

    @property
    def samples_expected(self) -> int:
        """Samples the whole run commits."""
        order = self.order()
        epochs = range(self.initial_epoch, self.epochs)
        return self.models * sum(order.rows_of(epoch) for epoch in epochs)

    def order(self) -> Order:
        """Returns the order of samples that every process follows."""
        return Order(
            rows=self.data_rows,
            seed=self.seed,
            shuffle=self.shuffle,
            batch_size=self.batch_size,
            steps_per_epoch=self.steps_per_epoch,
            first_epoch=self.initial_epoch,
            chunking=None
            if self.data.chunking is None
            else replace(self.data.chunking, has_lanes=self.exchanges_gradients),
        )

    def explain(self) -> str:
        """Returns what will happen, in lines a person reads."""
        return explained(self)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as plain data; the strategy as its name and fields."""
        plain = asdict(self)
        plain["strategy"] = {"name": self.strategy.name, **plain["strategy"]}
        plain["warnings"] = list(self.warnings)
        if self.data.chunking is not None:  # of which there may be very many
            plain["data"]["chunking"]["rows"] = len(self.data.chunking.rows)
        own = {"device": self.device, "samples_expected": self.samples_expected}
        return {**plain, **own}


def resolve(
    request: Request, model: ModelFacts, data: DataFacts, machine: MachineFacts
) -> Plan:
    """Decides everything about a run from plain values, or refuses.

    Raises:
        ConfigError: One argument is wrong in itself.
        PlanError: The arguments cannot work together.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> model = ModelFacts(name="m", parameters=9, statistics=0, optimizer="SGD")
        >>> data = DataFacts(rows=6400, size_bytes=64000)
        >>> machine = MachineFacts(cores=2)
        >>> plan = resolve(Request(strategy=AEASGD()), model, data, machine)
        >>> plan.workers, plan.threads, plan.worker_batch_size, plan.exchanges_per_epoch
        (2, 1, 32, 10.0)
    """
    request = request.with_plain_numbers()
    least, most = check(request, data, machine)
    check_quorum(request.quorum)
    strategy, rows_all = request.strategy, data.rows
    batch = request.batch_size or data.batch_size
    batch = batch or default_batch(rows_all, request.steps_per_epoch)
    rows = min(rows_all, (request.steps_per_epoch or rows_all) * batch)
    exchanges_gradients = strategy.exchanges == "gradients"
    workers = min(most, useful_workers(strategy, rows, batch))
    refuse(request, model, workers)
    refuse_uncompiled(strategy, model, machine)
    refuse_late(request, data)
    gang = min(batch, rows) if exchanges_gradients else workers * batch
    steps_each = steps(rows, batch if strategy.is_independent else gang)
    strategy = replace(strategy, period=strategy.period or steps_each)
    exchanges = steps_each / strategy.period
    where = places(machine.gpus, workers) if request.cluster == "local" else (
        places_of_cluster(machine.gpus_each, workers)
    )  # fmt: skip
    plan = Plan(
        strategy=strategy,
        backend=model.backend,
        cluster=request.cluster,
        workers=workers,
        min_workers=min(least, workers),
        threads=request.threads or machine.threads_of(workers),
        epochs=request.epochs,
        initial_epoch=request.initial_epoch,
        rows=rows,
        data_rows=rows_all,
        batch_size=batch,
        worker_batch_size=shares(batch, workers)[0] if exchanges_gradients else batch,
        gang_batch_size=batch if exchanges_gradients else gang,
        exchanges_per_epoch=exchanges,
        shuffle=request.shuffle,
        seed=request.seed,
        deterministic=request.deterministic,
        epoch_barrier=request.epoch_barrier,
        max_restarts=request.max_restarts,
        on_nan=request.on_nan,
        standby=request.standby,
        spares=request.spares,
        quorum=choose_quorum(request, workers, asked=most),
        model=model,
        data=data,
        steps_per_epoch=request.steps_per_epoch,
        validation=request.validation,
        models=models_of(strategy, workers),
        machine=machine,
        places=where,
        collective=choose_collective(request, model, workers, where),
        codec=choose_codec(request),
        overlap=choose_overlap(request),
        servers=choose_servers(request, model),
        monitor=choose_monitor(
            request.monitor,
            model.metrics,
            has_validation=data.validation_rows > 0
            and is_validated(
                request.validation_freq, range(request.initial_epoch, request.epochs)
            ),
            may_be_new=request.has_callbacks,
            unmergeable=model.unmergeable_metrics,
        ),
    )
    refuse_fixed_batch(
        model,
        plan.order(),
        range(plan.initial_epoch, plan.epochs),
        range(plan.min_workers, plan.most_workers + 1)
        if exchanges_gradients
        else range(1, 2),
    )
    return replace(plan, warnings=tuple(_warnings(plan, asked=most)))


def _warnings(plan: Plan, asked: int) -> list[str]:
    """What works, but perhaps not as the user hopes."""
    found: list[str] = []
    small = plan.rows < asked * plan.batch_size if not plan.exchanges_gradients else (
        min(plan.rows, plan.batch_size) < asked
    )  # fmt: skip
    if small and not plan.strategy.is_independent:
        found.append(
            f"{count(plan.rows, 'sample')} an epoch are too few for "
            f"{count(asked, 'worker')} at batch_size={plan.batch_size}; "
            f"{count(plan.workers, 'worker')} will run."
        )
    if plan.initial_epoch >= plan.epochs:
        found.append(
            f"epochs={plan.epochs} with initial_epoch={plan.initial_epoch} leaves "
            "nothing to train."
        )
    if not plan.data.is_exactly_once:
        found.append(
            f"{plan.data.kind} cannot be read by position: after a loss samples may "
            "be trained on twice."
        )
    found += plan.data.notes
    is_mapped = plan.data.chunking is None
    if is_mapped and 0 < plan.machine.memory_bytes < plan.data.size_bytes:
        found.append(
            f"the data takes {plan.data.size_bytes / 1e9:,.1f} GB and "
            f"{plan.machine.memory_bytes / 1e9:,.1f} GB of memory are free."
        )
    if plan.cluster == "local" and not plan.strategy.is_independent:
        found += crowd_warnings(plan.workers, plan.machine)
    found += room_warnings(plan.workers, plan.threads, plan.machine)
    found += gpu_warnings(plan.machine.gpus, plan.places)
    found += metric_warnings(plan.model)
    found += state_warnings(plan.model, plan.workers)
    found += optimizer_warnings(plan.model)
    if plan.exchanges_gradients and plan.workers > 1:
        found += gang_warnings(plan.model, plan.strategy.name)
    return found + plan.strategy.warnings(
        workers=plan.workers, exchanges_per_epoch=plan.exchanges_per_epoch
    )
