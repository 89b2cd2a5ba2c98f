"""Independent models: each trained by a run of its own, several at a time.

This file decides what members share (the data, the run folder, a request to
stop) and what each has for itself (a model, an order of samples, callbacks). When
all are done the user's model becomes the best of them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from importlib import import_module
from queue import SimpleQueue
from typing import Any, final

import numpy as np

from shoal.clusters.base import Allocation
from shoal.data.chunks import first_rows
from shoal.engine.worker.spec import WATCH, Moment, Watch
from shoal.errors import ConfigError
from shoal.facts import Monitor
from shoal.launchers.shared import SharedBlob
from shoal.models.fixed_batch import sample_rows
from shoal.models.inspection import prepare
from shoal.models.no_tensorflow import no_tensorflow
from shoal.models.travel import unpack
from shoal.optimizers import optimizer_variables
from shoal.plan import Place, Plan
from shoal.runs.base import Run
from shoal.terminal import say
from shoal.training.allocation import staged
from shoal.training.driver_options import DriverOptions
from shoal.training.ensemble_records import EnsembleRecords, MemberRun
from shoal.training.read_fit import SEED_LIMIT, PreparedFit
from shoal.training.sampling import sampling
from shoal.training.shared_rows import write_data
from shoal.training.start_run import TrainingResult, Work, train
from shoal.training.stop_request import stoppable

TURN_S = 0.1


def train_members(
    ready: PreparedFit, run: Run, allocation: Allocation | None = None
) -> TrainingResult:
    """Trains every member; `ready.work.model` becomes the best one.

    Args:
        ready: The call.
        run: Record of the run.
        allocation: Machines of a cluster; None for this one. Each member has a
            launcher of its own there.

    Returns:
        The best member's history, with `models` and `members` (all histories), the
        best first, and `predict(x)`, the mean of their predictions.

    Raises:
        WorkerFailed, WorkerLost, ClusterError: Error of the first member that failed.
        KeyboardInterrupt: After Ctrl-C; the model has the weights of the member that
            was best at its last epoch's end, including later steps.
    """
    plan = ready.plan
    member_records = EnsembleRecords(run, plan, ready.verbose)
    works = _works(ready)
    blob = SharedBlob()
    try:
        write_data(ready.work.source, blob)
        works = [replace(work, shared=blob) for work in works]
        with ready.work.source.serving_many() as source:
            works = [replace(work, source=source) for work in works]
            outcomes = _train_all(ready, works, member_records, allocation)
    except KeyboardInterrupt:
        _rescue(ready, works, run)
        raise
    finally:
        blob.close()
        member_records.close()
    order = _ranking([o.history.history for o in outcomes], plan.monitor)
    models = [works[place].model for place in order]
    _adopt(ready.work.model, models[0])
    with no_tensorflow():
        run.save_model(ready.work.model, "best")
    history = outcomes[order[0]].history
    history.set_model(ready.work.model)
    ready.work.model.history = history
    history.models = models
    history.members = [outcomes[place].history for place in order]
    history.predict = Combined(tuple(models))
    steps = [o.first_step for o in outcomes if o.first_step is not None]
    return TrainingResult(history=history, first_step=min(steps, default=None))


def _rescue(ready: PreparedFit, works: Sequence[Work], run: Run) -> None:
    """Handles Ctrl-C: the model becomes the best member so far; prints a line."""
    # A member that has not begun has no history.
    found = [getattr(work.model, "history", None) for work in works]
    seen = [getattr(history, "history", {}) for history in found]
    best = _ranking(seen, ready.plan.monitor)[0]
    _adopt(ready.work.model, works[best].model)
    if ready.verbose != 0:
        look = f" See `shoal runs show {run.id}`." if run.url else ""
        say(
            f"Interrupted: the model holds member {best + 1} of {len(works)}, the best "
            f"so far; call fit again to train all of them.{look}",
            err=True,
        )


@final
@dataclass(frozen=True)
class Combined:
    """Predicts with several models at once, by the mean of their predictions.

    Args:
        models: Models with the same outputs.
    """

    models: tuple[Any, ...]

    def __call__(self, x: Any, **arguments: Any) -> Any:
        """Returns the mean of the members' predictions.

        Args:
            x: Inputs, as for `model.predict`.
            **arguments: Other arguments of `model.predict`.
        """
        found = [model.predict(x, **arguments) for model in self.models]
        tree = import_module("keras").tree
        return tree.map_structure(lambda *parts: np.mean(parts, axis=0), *found)


def _works(ready: PreparedFit) -> list[Work]:
    """Returns a model for each member.

    A callable makes each model; a model is copied, so that members start from the
    same weights (they may be pretrained) and differ in order and random state.
    """
    work, found = ready.work, list[Work]()
    sample = first_rows(work.source, sample_rows(work.model))
    for member in range(ready.plan.models):
        if work.factory is not None and member:
            model = work.factory()
        else:
            model = unpack(work.packed)
        prepare(model, sample)
        if work.factory is None and member:
            _reseed(model, member)
        # The first one, often, is as it was packed.
        before = b"" if member else work.packed
        found.append(replace(work, model=model, packed=before).with_packed())
    return found


def _reseed(model: Any, member: int) -> None:
    """Gives a copy random state of its own, for dropout and the like."""
    for variable in model.non_trainable_variables:
        if "uint32" in str(variable.dtype) and tuple(variable.shape) == (2,):
            state = np.asarray(variable.numpy()).copy()
            words = np.random.SeedSequence([int(state[0]), member])
            state[0] = words.generate_state(1)[0]
            variable.assign(state)


def _train_all(
    ready: PreparedFit,
    works: Sequence[Work],
    member_records: EnsembleRecords,
    allocation: Allocation | None,
) -> list[TrainingResult]:
    """Trains members in threads, as many at a time as there are workers."""
    jobs = [
        replace(_options(ready, work, member), on_turn=member_records.heed)
        for member, work in enumerate(works)
    ]
    places: SimpleQueue[Place] = SimpleQueue()
    for place in ready.plan.places:
        places.put(place)
    with ThreadPoolExecutor(ready.plan.workers, "shoal-member") as pool:
        futures: list[Future[TrainingResult]] = []
        try:
            for member, (work, options) in enumerate(zip(works, jobs, strict=True)):
                plan = _member_plan(ready.plan, member)
                run = MemberRun(member_records, member)
                context = copy_context()
                context.run(_watch_member, member)
                job = (_train_member, places, plan, work, run, options, allocation)
                futures.append(pool.submit(context.run, *job))
            run = member_records.run
            with stoppable(run) as look, sampling(run, look) as on_turn:
                while not _are_over(futures):
                    on_turn()
            done = [f for f in futures if f.done()]
            for future in done:
                future.result()
        except BaseException:
            member_records.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _are_over(futures: Sequence[Future[TrainingResult]]) -> bool:
    """Waits a moment for the end of all members, or for a failure."""
    found = wait(futures, timeout=TURN_S, return_when=FIRST_EXCEPTION)
    return not found.not_done or any(f.exception() for f in found.done)


def _train_member(
    places: SimpleQueue[Place],
    plan: Plan,
    work: Work,
    run: Run,
    options: DriverOptions,
    allocation: Allocation | None,
) -> TrainingResult:
    """Trains one member on a GPU without another one, if there are GPUs."""
    place = places.get() if plan.places else None  # for each that is trained at a time
    plan = plan if place is None else replace(plan, places=(place,))
    try:
        with staged(plan, allocation, work.shared) as pool:
            return train(plan, work, run, options, pool)
    finally:
        if place is not None:
            places.put(place)


@final
@dataclass(frozen=True, kw_only=True)
class MemberWatch:
    """Shows a member's worker, which has rank 0, under the member's number.

    Args:
        watch: Watch, as `shoal.testing.faults` sets it.
        member: Number of the member.
    """

    watch: Watch
    member: int

    def __call__(self, moment: Moment) -> None:
        """Reports a worker's position under the member's number."""
        self.watch(moment._replace(rank=self.member))


def _watch_member(member: int) -> None:
    """Makes the workers of this context report as those of a member."""
    watch = WATCH.get()
    if watch is not None:
        WATCH.set(MemberWatch(watch=watch, member=member))


def _member_plan(plan: Plan, member: int) -> Plan:
    """Returns the plan of one member: one worker, an order of its own."""
    return replace(
        plan,
        workers=1,
        min_workers=1,
        models=1,
        global_batch_size=plan.batch_size,
        request=replace(plan.request, seed=(plan.seed + member) % SEED_LIMIT),
    )


def _options(ready: PreparedFit, work: Work, member: int) -> DriverOptions:
    """Returns callbacks and validation of one member."""
    try:
        callbacks = copy.deepcopy(ready.call.callbacks)
    except Exception as error:
        raise ConfigError(
            f"callbacks cannot be copied for the members of an ensemble: {error}. "
            "Expected callbacks that copy.deepcopy can copy, one set for each member. "
            "Leave such a callback out, or train the members one by one."
        ) from error
    own = replace(ready, work=work, verbose=0)
    return replace(own.options(), callbacks=callbacks)


def _ranking(
    histories: Sequence[Mapping[str, Sequence[Any]]], monitor: Monitor
) -> list[int]:
    """Returns members by their last value of a metric, best first; NaN is worst."""
    last = [(history.get(monitor.name) or [np.nan])[-1] for history in histories]
    scores = [monitor.score(float(v) if np.ndim(v) == 0 else np.nan) for v in last]
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))


def _adopt(model: Any, other: Any) -> None:
    """Makes a model equal to another of the same structure, optimizer included."""
    pairs = [
        *zip(model.variables, other.variables, strict=True),
        *zip(optimizer_variables(model), optimizer_variables(other), strict=True),
    ]
    for ours, theirs in pairs:
        # A copy: JAX donates the buffers of the model that trains first.
        ours.assign(np.array(theirs.numpy()))
