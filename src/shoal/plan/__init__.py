"""From arguments to a frozen, printable `Plan`. Pure: reads no model, data or clock.

This file decides everything before anything starts: how many workers, how
many rows a step has, and the warnings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, final

from shoal.data.order import shares, steps
from shoal.facts import DataFacts, MachineFacts, ModelFacts, Monitor
from shoal.plan.cautions import (
    few_steps_warnings,
    gradient_warnings,
    metric_warnings,
    moving_average_warnings,
    optimizer_warnings,
    overshoot_warnings,
    state_warnings,
)
from shoal.plan.choosing import choose, situation_of
from shoal.plan.collective import choose_collective
from shoal.plan.decisions import Decisions
from shoal.plan.exchanging import check_codec, check_overlap, check_servers
from shoal.plan.explaining import count, explained
from shoal.plan.gpus import Place, gpu_warnings, places, places_of_cluster
from shoal.plan.machine_cautions import (
    crowd_warnings,
    idle_gpu_warnings,
    overhead_warnings,
    room_warnings,
    slot_warnings,
)
from shoal.plan.monitor import choose_monitor
from shoal.plan.pace import alone_steps, fastest, is_chosen
from shoal.plan.quorum import check_quorum, choose_quorum
from shoal.plan.rates import choose_rate
from shoal.plan.refusals import (
    refuse,
    refuse_fixed_batch,
    refuse_late,
    refuse_overhead,
    refuse_threads,
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
from shoal.plan.validation import is_validated, read_freq
from shoal.plan.variables import EnvironmentVariables, environment
from shoal.strategies.auto import Auto

__all__ = [
    "BATCH_SIZE",
    "DataFacts",
    "EnvironmentVariables",
    "MachineFacts",
    "ModelFacts",
    "Monitor",
    "Place",
    "Plan",
    "Request",
    "environment",
    "resolve",
]


NOT_SHOWN = ("known_clusters", "has_callbacks", "validation_freq")
"""Fields of a request that `plan.json` does not contain."""


@final
@dataclass(frozen=True, kw_only=True)
class Plan(Decisions):
    """Everything that is decided before anything starts, with its presentations.

    `request` has the options of the call; the other fields are decided from them:
    see `Decisions`.

    Example:
        >>> import keras, numpy as np, shoal
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> plan = shoal.plan(model, np.zeros((640, 1)), np.zeros(640), workers=2)
        >>> plan.workers, plan.worker_batch_size, plan.to_json()["strategy"]["name"]
        (2, 16, 'all_reduce')
    """

    def explain(self) -> str:
        """Returns the plan in lines for people."""
        return explained(self)

    def __str__(self) -> str:
        """Returns `explain()`, which `print` shows."""
        return self.explain()

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """Writes the plan for a notebook; see `IPython.lib.pretty`."""
        printer.text("Plan(...)" if is_cycle else self.explain())

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as plain data; the strategy as its name and fields.

        Each option has its resolved value if there is one, else the requested one.
        """
        own = asdict(self)
        asked = own.pop("request")
        for name in NOT_SHOWN:
            del asked[name]
        plain = {**asked, **own}
        plain["strategy"] = {"name": self.strategy.name, **plain["strategy"]}
        plain["warnings"] = list(self.warnings)
        if self.data.chunking is not None:  # there may be very many chunks
            plain["data"]["chunking"]["rows"] = len(self.data.chunking.rows)
        derived = ("seed", "backend", "data_rows", "device", "samples_expected")
        return {**plain, **{name: getattr(self, name) for name in derived}}


def resolve(
    request: Request, model: ModelFacts, data: DataFacts, machine: MachineFacts
) -> Plan:
    """Decides everything about a run from plain values, or refuses it.

    Raises:
        ConfigError: A single argument is wrong.
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
    rows_all = data.rows
    batch = request.batch_size or data.batch_size
    batch = batch or default_batch(rows_all, request.steps_per_epoch)
    rows = min(rows_all, (request.steps_per_epoch or rows_all) * batch)
    choice = ""
    if isinstance(request.strategy, Auto):
        chosen, choice = choose(
            situation_of(
                request.strategy, request, model, machine,
                workers=min(most, max(1, rows // batch)), rows=rows, batch=batch,
            )
        )  # fmt: skip
        request = replace(request, strategy=chosen)
    strategy = request.strategy
    exchanges_gradients = strategy.exchanges == "gradients"
    workers = min(most, useful_workers(strategy, rows, batch))
    if is_chosen(request, machine):
        most = workers = fastest(
            model.multiplications, model.parameters, min(batch, rows),
            most=workers, cores=machine.cores,
        )  # fmt: skip
    refuse(request, model, workers, machine)
    refuse_uncompiled(strategy, model, machine)
    refuse_late(request, data)
    refuse_threads(request, machine)
    refuse_overhead(request, machine)
    check_codec(request)
    check_overlap(request)
    check_servers(request, model)
    step = min(batch, rows) if exchanges_gradients else workers * batch
    steps_each = steps(rows, batch if strategy.is_independent else step)
    strategy = replace(strategy, period=strategy.period_within(steps_each, workers))
    alone = 0 if workers > 1 else alone_steps(
        request, model, data, machine, batch=batch, steps=steps_each
    )  # fmt: skip
    exchanges = steps_each / (alone or strategy.period)
    rate_factor, rate_epochs = choose_rate(
        request, workers, is_adaptive=model.is_adaptive
    )
    where = places(machine.gpus, workers) if request.cluster == "local" else (
        places_of_cluster(machine.gpus_each, workers)
    )  # fmt: skip
    plan = Plan(
        request=request,
        strategy=strategy,
        choice=choice,
        workers=workers,
        min_workers=min(least, workers),
        threads=request.threads or machine.threads_of(workers),
        rows=rows,
        batch_size=batch,
        worker_batch_size=shares(batch, workers)[0] if exchanges_gradients else batch,
        global_batch_size=batch if exchanges_gradients else step,
        exchanges_per_epoch=exchanges,
        rate_factor=rate_factor,
        rate_epochs=rate_epochs,
        alone_steps=alone,
        quorum=choose_quorum(request, workers, asked=most),
        model=model,
        data=data,
        models=models_of(strategy, workers),
        machine=machine,
        places=where,
        collective=choose_collective(request, model, workers, where),
        monitor=choose_monitor(
            request.monitor,
            model.metrics,
            has_validation=data.validation_rows > 0
            and is_validated(
                read_freq(request.validation_freq),
                range(request.initial_epoch, request.epochs),
            ),
            may_be_new=request.has_callbacks,
            unmergeable=model.unmergeable_metrics,
        ),
    )
    refuse_fixed_batch(
        model,
        plan.order(),
        plan.epoch_range,
        range(plan.min_workers, plan.most_workers + 1)
        if exchanges_gradients
        else range(1, 2),
    )
    return replace(plan, warnings=tuple(_warnings(plan, asked=most)))


def _warnings(plan: Plan, asked: int) -> list[str]:
    """Returns what works, but perhaps not as the user expects."""
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
    if not plan.epoch_range:
        asked_for = plan.request
        found.append(
            f"epochs={asked_for.epochs} with initial_epoch={asked_for.initial_epoch} "
            "leaves nothing to train."
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
    if plan.request.cluster == "local" and not plan.strategy.is_independent:
        found += crowd_warnings(plan.workers, plan.machine)
    found += room_warnings(plan.workers, plan.threads, plan.machine)
    found += slot_warnings(plan.workers, plan.machine, plan.request.has_callbacks)
    found += overhead_warnings(plan.machine)
    found += idle_gpu_warnings(plan.machine)
    found += gpu_warnings(plan.machine.gpus, plan.places)
    found += metric_warnings(plan.model)
    found += state_warnings(plan.model, plan.workers)
    found += optimizer_warnings(plan.model)
    found += overshoot_warnings(plan.strategy, plan.model, plan.workers)
    steps_each = plan.rows * len(plan.epoch_range) // plan.global_batch_size
    found += few_steps_warnings(plan.strategy, plan.workers, steps_each)
    found += moving_average_warnings(
        plan.strategy,
        plan.model,
        plan.workers,
        are_estimated=plan.estimates_averages,
    )
    if plan.exchanges_gradients and plan.workers > 1:
        found += gradient_warnings(plan.model, plan.strategy.name)
    return found + plan.strategy.warnings(
        workers=plan.workers, exchanges_per_epoch=plan.exchanges_per_epoch
    )
