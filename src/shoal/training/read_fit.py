"""From a call of `fit` to a model, its data and a plan.

This file decides the order in which arguments are read and refused. Nothing is started
here; when it returns, the plan is made, and the model is built and can be sent.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, final

import numpy as np

from shoal.clusters.base import Cluster
from shoal.clusters.finding import find_cluster, name_of, names
from shoal.clusters.yarn import Yarn
from shoal.data import Source, training_data
from shoal.data.chunks import GROUP_BYTES, ChunkedSource, first_rows
from shoal.data.files import FileSource
from shoal.data.reading import Reading
from shoal.engine.worker.spec import WATCH
from shoal.errors import ConfigError, PlanError
from shoal.facts import Chunking, DataFacts
from shoal.models.fixed_batch import sample_rows
from shoal.models.inspection import find_model, prepare, read_model
from shoal.models.lending import lending
from shoal.plan import Plan, Request, environment, resolve
from shoal.plan.often import Often, read_often
from shoal.plan.request import Workers, check_kinds
from shoal.plan.validation import read_freq
from shoal.strategies import Strategy
from shoal.training.allocation import look
from shoal.training.caps import capped_epochs, capped_steps
from shoal.training.conditions import CONDITIONS, Conditions
from shoal.training.driver_options import DriverOptions
from shoal.training.fit_call import FitCall
from shoal.training.progress import writing_progress
from shoal.training.start_run import Work
from shoal.training.validation import (
    Validation,
    check_late,
    read_validation,
    validating,
)

SEED_LIMIT = 2**31 - 1


@final
@dataclass(frozen=True, kw_only=True)
class PreparedFit:
    """A call that was read and checked.

    Args:
        plan: The plan, with the completed request.
        work: The built model, and its data.
        validation: Validation data, None without any.
        call: The user's call.
        verbose: 0, 1, 2 or "auto", as in Keras.
        often: Interval of checkpoints, None for none.
    """

    plan: Plan
    work: Work
    validation: Validation | None
    call: FitCall
    verbose: int | str
    often: Often | None

    def options(self) -> DriverOptions:
        """Returns the arguments that concern this process."""
        validation, model = self.validation, self.work.model
        request = self.plan.request
        return DriverOptions(
            callbacks=self.call.callbacks,
            **validating(validation, model, request.validation),
            validation_freq=read_freq(request.validation_freq),
            verbose=self.verbose,
            echo=self.call.echo,
            often=self.often or Often(),
        )


def read(call: FitCall, *, is_plan: bool = False) -> PreparedFit:
    """Reads and decides everything, and starts nothing.

    Args:
        call: The call of `fit`.
        is_plan: Whether only a plan is wanted.

    Raises:
        ConfigError: A single argument is wrong.
        PlanError: Arguments do not work together, or the model cannot be sent.
        DataError: An array is missing, or does not fit the model.
    """
    request, often = completed(call), read_often(call.checkpoint_every)
    _check_kinds(call)
    model, factory = find_model(call.model)
    source, held = training_data(
        call.x,
        call.y,
        call.sample_weight,
        class_weight=call.class_weight,
        validation_split=call.validation_split,
        validation_data=call.validation_data,
        files=call.files,
        reading=replace(
            reading_of(request),
            is_plan=is_plan,
            progress=writing_progress(verbosity(call.verbose)),
            **_where_read(call.cluster),
        ),
        validation_steps=call.validation_steps,
    )
    natural = source.batch_size if isinstance(source, ChunkedSource) else None
    check_batch_size(request.batch_size, natural)
    sample = first_rows(source, sample_rows(model))
    prepare(model, sample)
    data = DataFacts(
        rows=len(source),
        size_bytes=source.size_bytes,
        validation_rows=0 if held is None else len(held),
        **_chunk_facts(source),
    )
    exchanges_gradients = request.strategy.exchanges == "gradients"
    facts = read_model(
        model,
        sample,
        weights=call.sample_weight,
        has_monitor=request.monitor is not None,
        exchanges_gradients=exchanges_gradients and request.workers != 1,
    )
    _check_travels(request, source)
    plan = resolve(request, facts, data, look(call.cluster, facts.backend))
    CONDITIONS.get().check(plan.workers)
    work = Work(
        model=model,
        source=source,
        custom_objects=call.custom_objects,
        factory=factory,
        sample=sample,
    )
    return PreparedFit(
        plan=plan,
        often=often,
        validation=read_validation(
            model,
            held,
            batch_size=call.validation_batch_size,
            steps=call.validation_steps
            if held is None
            else capped_steps("validation_steps", call.validation_steps),
            usual_batch_size=facts.fixed_batch or plan.batch_size,
        ),
        work=_checked(work, plan),
        call=call,
        verbose=verbosity(call.verbose),
    )


def _where_read(given: Any) -> dict[str, Any]:
    """Returns which folder workers see, and whether they may be elsewhere."""
    cluster = find_cluster(given)
    if not isinstance(cluster, Cluster):
        return {}
    return {
        "store": cluster.shared_folder,
        "is_away": not cluster.is_here,
        "port": cluster.port_here,
    }


def _checked(work: Work, plan: Plan) -> Work:
    """Refuses a model that cannot be sent to workers; returns it packed."""
    if plan.request.cluster != "inline":
        return work.with_packed()
    with lending() as shared:
        packed = work.with_packed()
    # A model with shared objects is packed when training begins, together with them.
    return work if shared else packed


def _check_travels(request: Request, source: Source) -> None:
    """Refuses data that only this process can read, for other machines."""
    is_here = request.cluster in ("local", "inline")
    if is_here or not isinstance(source, ChunkedSource) or source.travels_alone:
        return
    why = "".join(f" {note}" for note in source.notes)
    raise PlanError(
        f"{source.kind} on cluster={request.cluster!r}: only this process can read it, "
        "and workers may be on other machines. Expected arrays, or files that each "
        f"machine can read. Pass one of these, or leave cluster out.{why}"
    )


def reading_of(request: Request) -> Reading:
    """Returns for how long data is read, and by how many workers."""
    plain = request.with_plain_numbers()
    workers = plain.workers[-1] if isinstance(plain.workers, tuple) else plain.workers
    return Reading(
        steps_per_epoch=plain.steps_per_epoch,
        epochs=range(plain.initial_epoch, max(plain.epochs, plain.initial_epoch + 1)),
        workers=workers if isinstance(workers, int) and workers > 0 else 1,
        seed=plain.seed or 0,
        is_training=True,
        shuffle=plain.shuffle is not False,
        generator_gb=environment().generator_gb,
    )


def check_batch_size(batch_size: int | None, natural: int | None) -> None:
    """Refuses, as Keras does, a batch size beside data that comes in batches.

    Args:
        batch_size: The user's value.
        natural: Batch size of the data, None if it has none.

    Raises:
        ConfigError: The two differ.
    """
    if batch_size is not None and natural is not None and batch_size != natural:
        raise ConfigError(
            f"batch_size={batch_size} beside data that comes in batches of {natural}. "
            "Expected the size to be decided where the batches are made. "
            "Leave batch_size out."
        )


def _chunk_facts(source: Source) -> dict[str, Any]:
    """Returns the facts about a chunked source that a plan needs."""
    if not isinstance(source, ChunkedSource):
        return {}
    row_bytes = max(1, source.size_bytes // max(1, len(source)))
    left_out = source.left_out if isinstance(source, FileSource) else ""
    chunking = Chunking(
        rows=tuple(source.chunk_rows),
        mixing=source.mixing,
        group_rows=max(1, GROUP_BYTES // row_bytes),
        are_batches=source.are_batches,
        later_rows=source.later_rows,
    )
    return {
        "kind": source.kind,
        "is_exactly_once": source.is_exactly_once,
        "chunking": chunking,
        "batch_size": source.batch_size,
        "notes": (*source.notes, *([left_out] if left_out else [])),
    }


@contextmanager
def keep_random_state() -> Generator[None]:
    """Restores NumPy's random state: a plan must not change later draws."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


def completed(call: FitCall) -> Request:
    """Returns the request, completed by the environment, Keras and the cluster.

    Raises:
        ConfigError, PlanError: The cluster or the number of workers is invalid.
        ClusterError: YARN's ResourceManager does not answer.
    """
    check_kinds(call.request)
    request = replace(
        call.request,
        epochs=capped_epochs(call.request.epochs),
        steps_per_epoch=capped_steps("steps_per_epoch", call.request.steps_per_epoch),
        has_callbacks=bool(call.callbacks),
    )
    _check_inline(call.cluster, request)
    seed = request.seed
    workers = _number_of(call.workers, request.strategy)
    if seed is None:
        seed = int(np.random.randint(SEED_LIMIT))  # keras.utils.set_random_seed's
    cluster = find_cluster(call.cluster)
    known = (cluster.name,) if isinstance(cluster, Cluster) else names()
    return replace(
        request,
        seed=seed,
        workers=workers,
        cluster=name_of(cluster),
        known_clusters=known,
        validation_freq=read_freq(request.validation_freq),
    )


def _number_of(workers: Workers | Yarn, strategy: Strategy) -> Workers:
    """Returns the number of workers: counted by YARN, or from the environment."""
    if workers == "yarn":
        workers = Yarn()
    if isinstance(workers, Yarn):
        return workers.count(environment().yarn)
    asked = environment().workers
    if workers == "auto" and asked is not None:
        # A variable applies to many runs: a strategy's own limit overrides it.
        return "auto" if strategy.max_workers == 1 else asked
    return workers


def _check_inline(cluster: str | Cluster, request: Request) -> None:
    """Refuses arguments that inline workers do not support."""
    conditions = CONDITIONS.get()
    if cluster != "inline":
        if conditions != Conditions():
            raise PlanError(
                f"shoal.testing.Conditions with cluster={cluster!r}. Expected workers "
                "whose time is simulated. Pass cluster='inline'."
            )
        return
    if conditions.changes and request.strategy.exchanges == "gradients":
        raise PlanError(
            f"workers of {request.strategy.name} that leave and join, with "
            "cluster='inline'. Expected a strategy that exchanges weights. "
            "Leave cluster out and use shoal.testing.faults."
        )
    if request.on_nan is not None:
        raise PlanError(
            f"on_nan={request.on_nan!r} with cluster='inline'. Expected workers that "
            "are processes, which can stop or step back one by one. "
            "Leave one of the two out."
        )
    usual = {"servers": 1, "standby": 0, "spares": 0}
    for name, least in usual.items():
        if getattr(request, name) != least:
            raise PlanError(
                f"{name}={getattr(request, name)} with cluster='inline'. Expected "
                "processes, of which one can be lost. Leave one of the two out."
            )
    if request.overlap:
        raise PlanError(
            "overlap=True with cluster='inline'. Expected workers that are processes, "
            "which compute during exchanges. Leave one of the two out."
        )
    if request.strategy.is_independent:
        raise PlanError(
            f"{request.strategy.name} does not run on cluster='inline'. "
            "Expected a strategy whose workers exchange something. "
            "Leave cluster out to train the models on processes."
        )
    if WATCH.get() is not None:
        raise PlanError(
            "shoal.testing.faults with cluster='inline'. Expected workers that are "
            "processes, which can fail one by one. Leave cluster out."
        )


def verbosity(verbose: int | str) -> int | str:
    """Returns the verbosity: an argument overrides the environment.

    Raises:
        ConfigError: The value is not one of Keras'.

    Example:
        >>> verbosity(2)
        2
    """
    if verbose == "auto":
        found = environment().verbose
        return "auto" if found is None else found
    if verbose not in (0, 1, 2):
        raise ConfigError(
            f"verbose={verbose!r} cannot be used. Expected 0, 1, 2 or 'auto'. "
            "Pass 0 for silence, 2 for a line an epoch."
        )
    return int(verbose)


def _check_kinds(call: FitCall) -> None:
    """Refuses values on which Keras would fail later."""
    for callback in _flat(call.callbacks):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise ConfigError(
                f"callbacks has {callback!r}. Expected objects of subclasses of "
                "keras.callbacks.Callback. "
                "Pass for example callbacks=[keras.callbacks.CSVLogger('log.csv')]."
            )
    if call.request.validation == "async":
        check_late(call.callbacks)
    check_custom_objects(call.custom_objects)


def _flat(callbacks: Any) -> list[Any]:
    return import_module("keras").tree.flatten(callbacks) if callbacks else []


def check_custom_objects(custom_objects: object) -> None:
    """Refuses custom objects without names.

    Raises:
        ConfigError: It is neither None nor a mapping.
    """
    if custom_objects is not None and not isinstance(custom_objects, Mapping):
        raise ConfigError(
            f"custom_objects={custom_objects!r} cannot be used. "
            "Expected a dict from a name to a class or function. "
            "Write it as {'MyLayer': MyLayer}."
        )
