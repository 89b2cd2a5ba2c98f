"""Trains one model by a plan: the order in which processes are started.

Processes import what they need while the data is written to memory they can map.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shoal.backends.base import ComputeSpec, Mass, RateScaling
from shoal.backends.fixed import most_bytes, size_bytes
from shoal.data import Source
from shoal.data.chunks import first_rows
from shoal.engine.controller.controller import Controller
from shoal.engine.controller.process_pool import ProcessPool
from shoal.engine.controller.spec import ControllerSpec
from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.restart_policy import RestartPolicy
from shoal.engine.server.records import Rescue
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.changes import Changes
from shoal.engine.transport.client_connection import Addresses, ServerAddress
from shoal.engine.transport.shared_memory import tag_of
from shoal.engine.worker.collective import CollectiveSpec, ServerCollectiveSpec
from shoal.engine.worker.factories import (
    CleanUp,
    OpenBackend,
    OpenGroup,
)
from shoal.engine.worker.nan_policy import reaction_to
from shoal.engine.worker.native_allreduce import NativeAllReduceSpec
from shoal.engine.worker.shared_memory_allreduce import SharedMemoryAllReduceSpec
from shoal.engine.worker.spec import WATCH, WorkerSpec
from shoal.errors import NotFinite
from shoal.facts import SAMPLE_ROWS
from shoal.forks import Origin
from shoal.interruption import check, interruptible, undisturbed
from shoal.launchers.cores import shares_of_cores
from shoal.launchers.shared import SharedBlob
from shoal.models.fixed_batch import sample_rows
from shoal.models.inspection import learning_rate_of, step_variable
from shoal.models.metrics import MetricStates, loss_totals
from shoal.models.travel import pack
from shoal.optimizers import optimizer_variables
from shoal.plan import Plan
from shoal.plan.collective import library_of
from shoal.runs.base import Run
from shoal.runs.event_fields import MOST_COUNT
from shoal.strategies import spell
from shoal.terminal import say
from shoal.training.allocation import worker_environment_for
from shoal.training.driver import Driver
from shoal.training.driver_options import DriverOptions
from shoal.training.evaluator import Evaluator
from shoal.training.moving_averages import MovingAverages
from shoal.training.resume_state import ResumeState
from shoal.training.shared_rows import opening, write_data
from shoal.vectors import (
    Layout,
    exchanged_variables,
    local_variables,
    statistic_variables,
)
from shoal.wire.handshake import worker_secret
from shoal.wire.tls import identity_for

SECRET_BYTES = 32
SALVAGE_S = 2.0  # limit for the server's state
STEP_SALVAGE_S = 10.0  # limit for weights that a worker has to send


@dataclass(frozen=True, kw_only=True)
class Work:
    """The model and data of a run.

    Args:
        model: The user's model, built and compiled.
        source: Source of its data.
        custom_objects: Custom objects, as for `keras.saving.load_model`.
        factory: Makes the model on workers, None to send it.
        packed: The model from `pack`.
        shared: Memory that contains the data already, None to write it.
        sample: A few of its rows; None to read them when they are needed.
    """

    model: Any
    source: Source
    custom_objects: Mapping[str, Any] | None = None
    factory: Callable[[], Any] | None = None
    packed: bytes = b""
    shared: SharedBlob | None = None
    sample: Any = None

    def with_packed(self) -> Work:
        """Returns this with the present model packed; unchanged bytes are kept.

        Raises:
            PlanError: A part of it cannot be sent.
        """
        custom, factory = self.custom_objects, self.factory
        sample = self.sample
        if sample is None:
            sample = first_rows(self.source, sample_rows(self.model))
        packed = pack(
            self.model,
            custom_objects=custom,
            factory=factory,
            sample=sample,
            before=self.packed,
        )
        return replace(self, packed=packed)

    def as_training_begins(self, options: DriverOptions) -> Work:
        """Returns this with the model packed as callbacks left it.

        Raises:
            PlanError: A part of it cannot travel.
        """
        if self.packed and (not options.callbacks or options.resume_state is not None):
            return self
        with interruptible():  # a callback may have loaded other weights
            return self.with_packed()


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Result of training.

    Args:
        history: Keras' own history.
        first_step: Monotonic seconds when the first step had been taken, None without
            one.
    """

    history: Any
    first_step: float | None


def train(
    plan: Plan,
    work: Work,
    run: Run,
    options: DriverOptions,
    pool: ProcessPool | None = None,
) -> TrainingResult:
    """Trains `work.model` on processes of this machine, or on those of a pool.

    Args:
        plan: Plan of the run.
        work: Model and data.
        run: Record of the run.
        options: Options of `fit`.
        pool: Started processes, which the caller ends; None
            starts new ones.

    Raises:
        WorkerFailed, WorkerLost, NotFinite, ClusterError: See `shoal.errors`.
        KeyboardInterrupt: After Ctrl-C; the model has the center so far.
    """
    driver = Driver(work.model, plan, run, options)
    plan = begin(driver, plan, work, run, options.resume_state)
    work = work.as_training_begins(options)
    worker_environment = worker_environment_for(plan)
    own = pool is None
    pool = pool or ProcessPool(worker_environment, work.shared)
    controller = Controller(_job(plan, run, options), driver, pool)
    driver.fetch_by(controller.center)
    origin = Origin()
    try:
        driver.validation.evaluator = evaluator_of(plan, work, options, run)
        pool.run = run.id if run.url else ""
        pool.change_environment(worker_environment)
        pool.echo(driver.echo if options.echo else None)
        if work.shared is None:
            write_data(work.source, pool.blob)
        pool.share()
        check()
        _give(controller, plan, work, pool, options.resume_state, driver.changes)
        driver.rehearse()
        check()
        with work.source.serving():
            controller.run()
        return TrainingResult(history=driver.end(), first_step=driver.first_step)
    except KeyboardInterrupt:
        if not origin.is_forked:
            rescue(driver, controller.rescue, is_told=options.verbose != 0)
        raise
    except NotFinite:
        try:
            timeout_s = STEP_SALVAGE_S if plan.exchanges_gradients else SALVAGE_S
            driver.salvage(controller.rescue(timeout_s))
        finally:
            driver.abandon()
        raise
    except BaseException:
        driver.abandon()
        raise
    finally:
        with undisturbed():
            driver.validation.close()
            controller.close()
            if own:
                pool.close()


def evaluator_of(
    plan: Plan, work: Work, options: DriverOptions, run: Run
) -> Evaluator | None:
    """Returns the validation process; None if training waits for validations."""
    if options.late is None:
        return None
    return Evaluator(
        packed=work.packed,
        validation=options.late,
        backend=plan.backend,
        threads=plan.threads,
        heed=options.on_turn,
        run=run,
    )


def rescue(driver: Driver, ask: Callable[[], Rescue | None], *, is_told: bool) -> None:
    """Handles Ctrl-C: saves the results so far, and reports them.

    Args:
        driver: Driver of the run.
        ask: Returns the present center; the wait for it ends at another Ctrl-C.
        is_told: Whether to print a line.
    """
    try:
        found = None
        # At a second press the present results are used.
        with suppress(KeyboardInterrupt):
            found = ask()
        with undisturbed():
            text = driver.interrupt(found)
            if is_told:
                say(text, err=True)
    finally:
        driver.abandon()


def announce(plan: Plan, run: Run) -> None:
    """Records the beginning of a run, and its plan."""
    order, first = plan.order(), plan.request.initial_epoch
    last = min(plan.request.epochs, first + order.epochs_per_pass)
    run.event(
        "run_started",
        strategy=plan.strategy.name,
        setting=spell(plan.request.strategy),
        seed=plan.seed if plan.seed <= MOST_COUNT else None,
        workers=plan.workers,
        rows=plan.rows,
        epochs=plan.request.epochs,
        initial_epoch=plan.request.initial_epoch,
        # Those of one model; after a pass over the data they repeat.
        epoch_rows=[order.rows_of(epoch) for epoch in range(first, last)],
        models=plan.models,
        samples_expected=plan.samples_expected,
        monitor=plan.monitor.name,
        is_higher_better=plan.monitor.is_higher_better,
    )


def begin(
    driver: Driver,
    plan: Plan,
    work: Work,
    run: Run,
    resume_state: ResumeState | None = None,
) -> Plan:
    """Begins training for callbacks; one of them may restore a later epoch.

    A resumed run ignores that: its own state is newer.
    """
    work.model._initial_epoch = None
    if plan.estimates_averages:
        driver.averages = MovingAverages(
            work.model, work.source, plan.worker_batch_size
        )
    driver.begin()
    if driver.counts_steps and "plain" in plan.strategy.promises:
        # Hooks are called once an exchange; here an exchange changes no weight.
        every = int(getattr(work.model, "steps_per_execution", 1) or 1)
        if not plan.exchanges_gradients:
            plan = replace(plan, strategy=replace(plan.strategy, period=every))
        elif plan.alone_steps:
            plan = replace(plan, alone_steps=every)
        driver.follow(plan)
    if resume_state is not None:
        return plan
    epoch = work.model._initial_epoch
    if not epoch or epoch == plan.request.initial_epoch:
        return plan
    request = replace(plan.request, initial_epoch=int(epoch))
    plan = replace(plan, request=request)
    driver.follow(plan)
    announce(plan, run)
    return plan


def _job(plan: Plan, run: Run, options: DriverOptions) -> ControllerSpec:
    resume_state = options.resume_state
    return ControllerSpec(
        workers=plan.workers,
        policy=RestartPolicy(
            max_restarts=plan.request.max_restarts, min_workers=plan.min_workers
        ),
        first_epoch=plan.request.initial_epoch
        if resume_state is None
        else resume_state.diary.epoch,
        epochs=plan.request.epochs,
        log=run.log_path,
        often=options.often,
        has_standby=plan.request.standby > 0,
        spares=plan.request.spares,
        servers=plan.request.servers,
        growth=plan.growth,
    )


def rules(plan: Plan) -> Rules:
    """Returns the sequencer's part of a plan."""
    order = plan.order()
    cycle = range(min(order.epochs_per_pass, max(1, plan.request.epochs)))
    return Rules(
        epoch_rows=tuple(order.rows_of(epoch) for epoch in cycle),
        first_epoch=plan.request.initial_epoch,
        epochs=plan.request.epochs,
        workers=plan.workers,
        batch=plan.global_batch_size
        if plan.exchanges_gradients
        else plan.worker_batch_size,
        window=plan.strategy.period,
        is_rounds=not plan.strategy.is_asynchronous,
        exchanges_gradients=plan.exchanges_gradients,
        is_elastic=plan.strategy.is_elastic,
        has_barrier=plan.request.epoch_barrier,
        quorum=plan.quorum,
        borders=order.borders if order.can_be_spread else None,
        starts=order.batch_starts if order.has_batches else None,
        share=plan.model.fixed_batch if plan.exchanges_gradients else 0,
        has_groups=plan.collective != "server",
        group_s=NativeAllReduceSpec.group_s if plan.collective == "native" else 0.0,
        alone_steps=plan.alone_steps,
    )


def compute_spec(plan: Plan, began: float) -> ComputeSpec:
    """Returns the backend's part of a plan.

    Args:
        plan: Plan of the run.
        began: Step count of the optimizer at the start, in the user's batch size.
    """
    model = plan.model
    is_weighted = "mean_with_sample_weight" in model.reductions
    masses: tuple[tuple[Mass, Mass], ...]
    masses = ("rows", "weights"), ("entries", "entry weights")
    is_masked = model.masks == 1 and not model.has_own_loss
    is_masked = is_masked and "sum" not in model.reductions
    return ComputeSpec(
        window=plan.alone_steps or plan.strategy.period,
        batch_size=plan.worker_batch_size,
        local_momentum=plan.strategy.local_momentum,
        mass=masses[is_masked][is_weighted],
        is_summed="sum" in model.reductions,
        summed=model.summed,
        applied=model.applied,
        sample_rows=model.fixed_batch or SAMPLE_ROWS,
        logs=plan.model.step_logs,
        is_alone=plan.most_workers == 1,
        has_one_thread=plan.threads == 1,
        scaling=_scaling(plan, began),
        has_nan_policy=plan.request.on_nan is not None,
    )


def _scaling(plan: Plan, began: float) -> RateScaling | None:
    factor, epochs = plan.rate_factor, plan.rate_epochs
    if factor == 1:
        return None
    steps_per_epoch = math.ceil(plan.rows / plan.batch_size)
    return RateScaling(factor=factor, steps=epochs * steps_per_epoch, began=began)


def most_state(model: Any) -> int:
    """Returns the most bytes of a worker's state besides the vectors."""
    slots = sum(size_bytes(variable) for variable in optimizer_variables(model))
    return slots + most_bytes(local_variables(model))


def _memory_share(plan: Plan, hint: int) -> float:
    """Returns the share of a GPU's memory for a worker."""
    return plan.places[hint % len(plan.places)].share if plan.places else 1.0


def _collective(plan: Plan, pool: ProcessPool, tag: str) -> CollectiveSpec:
    """Returns where and how gradients are averaged."""
    if plan.collective == "server":
        return ServerCollectiveSpec()
    if plan.collective == "shared":
        return SharedMemoryAllReduceSpec(folder=pool.make_folder(), tag=tag)
    return NativeAllReduceSpec(
        open_group=OpenGroup(name=plan.backend),
        folder=pool.make_folder(),
        library=library_of(plan.backend, plan.places),
    )


def _shards(plan: Plan, pool: ProcessPool) -> tuple[Addresses, ...]:
    """Returns the addresses of the servers other than the primary."""
    pairs = (pool.pair(number) for number in range(1, plan.request.servers))
    has_standby = plan.request.standby > 0
    return tuple(pair.addresses(has_standby=has_standby) for pair in pairs)


def _give(
    controller: Controller,
    plan: Plan,
    work: Work,
    pool: ProcessPool,
    resume_state: ResumeState | None,
    changes: Changes,
) -> None:
    """Sends every process its argument."""
    model = work.model
    weights, statistics = exchanged_variables(model), statistic_variables(model)
    layout, beside = Layout.of(weights), Layout.of(statistics)
    states = MetricStates.of(model, logs=plan.model.step_logs)
    sizes = Sizes(
        vector=layout.size,
        statistics=beside.size,
        metrics=states.size,
        digest=layout.digest + beside.digest,
        codec=plan.request.codec,
        state=most_state(model),
    )
    secret = secrets.token_bytes(SECRET_BYTES)
    identity = identity_for(pool.main.address[0])
    server = ServerSpec(
        secret=secret,
        strategy=plan.strategy,
        rules=rules(plan),
        sizes=sizes,
        vector=layout.gather(weights),
        statistics=beside.gather(statistics),
        learning_rate=learning_rate_of(model),
        checkpoint=None if resume_state is None else resume_state.server,
        changes=changes,
        identity=identity,
        shards=plan.request.servers,
        losses=loss_totals(model),
    )
    # Cores of other machines have other numbers, and other users.
    mine = () if plan.machine.nodes else None
    cores = shares_of_cores(plan.workers, plan.threads, mine)
    open_backend = OpenBackend(
        name=plan.backend, model=work.packed, is_kept=pool.is_kept
    )
    began = float(int(step_variable(model).numpy()))
    compute = compute_spec(plan, began)
    open_source = opening(work.source, pool.blob)
    collective = _collective(plan, pool, tag_of(secret))

    def make(hint: int, token: str) -> WorkerSpec:
        server_address = ServerAddress(
            address=pool.main.address,
            secret=worker_secret(secret),
            sizes=sizes,
            hint=hint,
            token=token,
            other=pool.main.other_address if plan.request.standby else None,
            # They may have changed since the last process had this place.
            shards=_shards(plan, pool),
            certificate=None if identity is None else identity.certificate,
        )
        return WorkerSpec(
            server_address=server_address,
            strategy=plan.strategy,
            compute=replace(
                compute, loss_at=states.loss_at, memory_share=_memory_share(plan, hint)
            ),
            order=plan.order(),
            open_backend=open_backend,
            open_source=open_source,
            exchanges_gradients=plan.exchanges_gradients,
            clock_start=began,
            cores=cores[hint] if hint < len(cores) else (),
            watch=WATCH.get(),
            reaction=reaction_to(plan.request.on_nan),
            collective=collective,
            has_overlap=plan.request.overlap,
            clean_up=CleanUp(name=plan.backend) if pool.is_kept else None,
            run=pool.run,
            alone_steps=plan.alone_steps,
        )

    controller.give(server, make)
