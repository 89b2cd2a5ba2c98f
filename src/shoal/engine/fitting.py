"""Trains one model as a plan says: the order in which everything is started.

Processes are started first, so that they import while the model is packed and
the data is written to memory they can map.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.backends.base import ComputeSpec
from shoal.data import ArraySource
from shoal.engine.bulk import Sizes
from shoal.engine.controller import Controller, Job
from shoal.engine.driver import Driver, Habits
from shoal.engine.inspection import inner_optimizer, learning_rate_of
from shoal.engine.member import Seat
from shoal.engine.metrics import MetricStates
from shoal.engine.opening import BACKENDS, OpenBackend, OpenMapped
from shoal.engine.recovery import RecoveryPolicy
from shoal.engine.sequencer import Rules
from shoal.engine.server import ServerSpec
from shoal.engine.travel import pack
from shoal.engine.worker import WorkerSpec
from shoal.launchers.shared import SharedBlob
from shoal.plan import Plan
from shoal.runs.base import Run
from shoal.vectors import Layout, exchanged_variables, statistic_variables

SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained.

    Args:
        model: The user's, built and compiled.
        source: Its data.
        custom_objects: As for `keras.saving.load_model`.
        factory: Makes the model anew on workers, None to send it.
    """

    model: Any
    source: ArraySource
    custom_objects: Mapping[str, Any] | None = None
    factory: Any = None


def train(plan: Plan, work: Work, run: Run, habits: Habits) -> Any:
    """Trains `work.model` on processes of this machine; returns the Keras history.

    Raises:
        WorkerFailed, WorkerLost, ClusterError: See `shoal.errors`.
        KeyboardInterrupt: After Ctrl-C; the model holds the center so far.
    """
    driver = Driver(work.model, plan, run, habits)
    blob = SharedBlob()
    controller = Controller(_job(plan, run, blob), driver)
    driver.fetch_center = controller.center
    try:
        controller.launch()
        _give(controller, plan, work, blob)
        driver.begin()
        controller.run()
        return driver.end(controller.optimizer_state)
    except KeyboardInterrupt:
        center = controller.center()
        if center is not None:
            driver.adopt(*center)
        raise
    finally:
        controller.close()
        blob.close()


def _job(plan: Plan, run: Run, blob: SharedBlob) -> Job:
    module = BACKENDS.get(plan.backend, "keras").partition(":")[0]
    return Job(
        workers=plan.workers,
        policy=RecoveryPolicy(
            max_restarts=plan.max_restarts, min_workers=plan.min_workers
        ),
        threads=plan.threads,
        first_epoch=plan.initial_epoch,
        epochs=plan.epochs,
        has_barrier=plan.epoch_barrier,
        preload=("shoal.engine.opening", module),
        log=run.log_path,
        shared=(blob.descriptor,),
    )


def rules(plan: Plan) -> Rules:
    """The sequencer's part of a plan."""
    order = plan.order()
    cycle = range(order.epochs_per_pass)
    return Rules(
        epoch_rows=tuple(order.rows_of(epoch) for epoch in cycle),
        first_epoch=plan.initial_epoch,
        epochs=plan.epochs,
        workers=plan.workers,
        batch=plan.gang_batch_size if plan.is_gang else plan.worker_batch_size,
        window=plan.strategy.period,
        is_rounds=not plan.strategy.is_asynchronous,
        is_gang=plan.is_gang,
        is_elastic="conserves" in plan.strategy.promises,
        has_barrier=plan.epoch_barrier,
    )


def _give(controller: Controller, plan: Plan, work: Work, blob: SharedBlob) -> None:
    """Writes the data, packs the model, and sends everyone their part."""
    model = work.model
    weights, statistics = exchanged_variables(model), statistic_variables(model)
    layout, beside = Layout.of(weights), Layout.of(statistics)
    sizes = Sizes(
        vector=layout.size,
        statistics=beside.size,
        metrics=MetricStates.of(model).size,
        digest=layout.digest + beside.digest,
    )
    secret = secrets.token_bytes(SECRET_BYTES)
    memory = blob.allocate(work.source.blob_size())
    work.source.write_blob(memory)
    memory.close()
    packed = pack(model, custom_objects=work.custom_objects, factory=work.factory)
    server = ServerSpec(
        secret=secret,
        strategy=plan.strategy,
        rules=rules(plan),
        sizes=sizes,
        vector=layout.gather(weights),
        statistics=beside.gather(statistics),
        learning_rate=learning_rate_of(model),
    )
    compute = ComputeSpec(
        window=plan.strategy.period,
        batch_size=plan.worker_batch_size,
        clock_batch=plan.batch_size,
        local_momentum=plan.strategy.local_momentum,
        mass="weights" if "mean_with_sample_weight" in plan.model.reductions else "rows",
        is_summed="sum" in plan.model.reductions,
    )
    open_backend = OpenBackend(name=plan.backend, model=packed)
    began = float(int(inner_optimizer(model).iterations.numpy()))

    def make(hint: int, token: str) -> WorkerSpec:
        seat = Seat(
            address=controller.address,
            secret=secret,
            sizes=sizes,
            hint=hint,
            token=token,
        )
        return WorkerSpec(
            seat=seat,
            strategy=plan.strategy,
            compute=compute,
            order=plan.order(),
            open_backend=open_backend,
            open_source=OpenMapped(descriptor=blob.descriptor),
            is_gang=plan.is_gang,
            clock_start=began,
        )

    controller.give(server, make)
