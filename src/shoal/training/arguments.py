"""From the arguments of `fit` to what is trained: a model, a plan and habits.

This file decides in which order arguments are read and refused. Nothing is started
here; when it returns, the plan stands, the model is built and known to travel.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, final

import numpy as np

from shoal.clusters.base import Cluster
from shoal.clusters.finding import find_cluster, name_of, names
from shoal.clusters.yarn import Yarn
from shoal.data import Source, training_data
from shoal.data.chunks import GROUP_BYTES, ChunkedSource, first_rows
from shoal.data.files import FileSource
from shoal.data.located import FileArguments
from shoal.data.order import Shuffle
from shoal.data.reading import Reading
from shoal.engine.worker.spec import WATCH
from shoal.errors import ConfigError, PlanError
from shoal.facts import Chunking, DataFacts
from shoal.models.fixed_batch import sample_rows
from shoal.models.inspection import find_model, prepare, read_model
from shoal.models.lending import lending
from shoal.plan import Plan, Request, environment, resolve
from shoal.plan.often import Often, read_often
from shoal.plan.request import Workers
from shoal.plan.validation import read_freq
from shoal.registry import did_you_mean
from shoal.runs.base import Run
from shoal.strategies import Strategy, get
from shoal.training.allocation import look
from shoal.training.caps import capped_epochs, capped_steps
from shoal.training.driver import DriverOptions
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
class Arguments:
    """The arguments of `shoal.fit`; see there."""

    model: Any
    x: Any = None
    y: Any = None
    strategy: str | Strategy | type[Strategy] = "all_reduce"
    workers: Workers | Yarn = "auto"
    cluster: str | Cluster = "local"
    batch_size: int | None = None
    epochs: int = 1
    verbose: int | str = "auto"
    echo: bool = False
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: Shuffle = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1
    validation: str = "blocking"
    run: str | os.PathLike[str] | Run | bool | None = None
    monitor: str | None = None
    deterministic: bool = False
    epoch_barrier: bool = True
    max_restarts: int = 3
    servers: int = 1
    standby: int = 0
    spares: int = 0
    quorum: float | None = None
    collective: str = "auto"
    codec: str = "float32"
    overlap: bool = False
    on_nan: str | None = None
    checkpoint_every: float | str | bool | None = None
    threads: int | None = None
    seed: int | None = None
    custom_objects: Mapping[str, Any] | None = None
    features: Any = None
    label: Any = None
    preprocess: Any = None
    on_bad_file: str = "raise"

    @property
    def files(self) -> FileArguments:
        """What was said about files."""
        return FileArguments(
            features=self.features,
            label=self.label,
            preprocess=self.preprocess,
            on_bad_file=self.on_bad_file,
        )

    @classmethod
    def of(cls, **given: Any) -> Arguments:
        """Takes arguments by name.

        Raises:
            ConfigError: One of them `fit` does not have.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(did_you_mean("argument of fit", name, known))
        return cls(**given)


@final
@dataclass(frozen=True, kw_only=True)
class Ready:
    """Arguments that were read and found good.

    Args:
        plan: What will happen.
        request: What the plan came from.
        work: The model, built, and its data.
        validation: None without validation data.
        arguments: As given; `callbacks` and `validation_freq` are left.
        verbose: 0, 1, 2 or "auto", as Keras means it.
        often: Between checkpoints, None for none.
    """

    plan: Plan
    request: Request
    work: Work
    validation: Validation | None
    arguments: Arguments
    verbose: int | str
    often: Often | None

    def options(self) -> DriverOptions:
        """The part of the arguments that concerns this process."""
        validation, model = self.validation, self.work.model
        return DriverOptions(
            callbacks=self.arguments.callbacks,
            **validating(validation, model, self.plan.validation),
            validation_freq=read_freq(self.arguments.validation_freq),
            verbose=self.verbose,
            echo=self.arguments.echo,
            often=self.often or Often(),
        )


def read(arguments: Arguments, *, is_plan: bool = False) -> Ready:
    """Reads everything, decides everything, and starts nothing.

    Args:
        arguments: Of `fit`.
        is_plan: Whether nothing but a plan is wanted.

    Raises:
        ConfigError: One argument is wrong in itself.
        PlanError: Arguments cannot work together, or the model cannot travel.
        DataError: An array is missing, or does not fit the model.
    """
    arguments = _capped(arguments)
    strategy = get(arguments.strategy)
    request, often = (
        _request(arguments, strategy),
        read_often(arguments.checkpoint_every),
    )
    _check_kinds(arguments)
    model, factory = find_model(arguments.model)
    source, held = training_data(
        arguments.x,
        arguments.y,
        arguments.sample_weight,
        class_weight=arguments.class_weight,
        validation_split=arguments.validation_split,
        validation_data=arguments.validation_data,
        files=arguments.files,
        reading=replace(reading_of(request), is_plan=is_plan),
        validation_steps=arguments.validation_steps,
    )
    natural = source.batch_size if isinstance(source, ChunkedSource) else None
    check_batch_size(arguments.batch_size, natural)
    sample = first_rows(source, sample_rows(model))
    prepare(model, sample)
    data = DataFacts(
        rows=len(source),
        size_bytes=source.size_bytes,
        validation_rows=0 if held is None else len(held),
        **_chunk_facts(source),
    )
    facts = read_model(
        model,
        sample,
        weights=arguments.sample_weight,
        has_monitor=arguments.monitor is not None,
        exchanges_gradients=strategy.exchanges == "gradients" and request.workers != 1,
    )
    _check_travels(request, source)
    plan = resolve(request, facts, data, look(arguments.cluster, facts.backend))
    work = Work(
        model=model,
        source=source,
        custom_objects=arguments.custom_objects,
        factory=factory,
        sample=sample,
    )
    return Ready(
        plan=plan,
        request=request,
        often=often,
        validation=read_validation(
            model,
            held,
            batch_size=arguments.validation_batch_size,
            steps=arguments.validation_steps
            if held is None
            else capped_steps("validation_steps", arguments.validation_steps),
            usual_batch_size=facts.fixed_batch or plan.batch_size,
        ),
        work=_checked(work, arguments),
        arguments=arguments,
        verbose=verbosity(arguments.verbose),
    )


def _checked(work: Work, arguments: Arguments) -> Work:
    """Refuses a model that no worker can have; returns it packed."""
    if arguments.cluster != "inline":
        return work.with_packed()
    with lending():
        work.with_packed()
    return work  # packed when training begins, together with what is shared


def _capped(arguments: Arguments) -> Arguments:
    """Returns the arguments within the limits of Keras' configuration."""
    return replace(
        arguments,
        epochs=capped_epochs(arguments.epochs),
        steps_per_epoch=capped_steps("steps_per_epoch", arguments.steps_per_epoch),
    )


def _check_travels(request: Request, source: Source) -> None:
    """Refuses, for other machines, data that only this process can read."""
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
    """For how long data is read, and by how many."""
    plain = request.with_plain_numbers()
    workers = plain.workers[-1] if isinstance(plain.workers, tuple) else plain.workers
    return Reading(
        steps_per_epoch=plain.steps_per_epoch,
        epochs=range(plain.initial_epoch, max(plain.epochs, plain.initial_epoch + 1)),
        workers=workers if isinstance(workers, int) and workers > 0 else 1,
        seed=plain.seed,
        is_training=True,
        shuffle=plain.shuffle is not False,
    )


def check_batch_size(batch_size: int | None, natural: int | None) -> None:
    """Refuses, as Keras does, a batch size beside data that comes in batches.

    Args:
        batch_size: As given.
        natural: Of the data's batches, None where it has none.

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
    """What a plan has to know of a source that is read in chunks."""
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
    """Puts NumPy's random state back: who only asks must not change what follows."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


def _request(arguments: Arguments, strategy: Strategy) -> Request:
    """The part of the arguments that decides what will happen."""
    _check_inline(arguments, strategy)
    workers = arguments.workers
    if workers == "yarn":
        workers = Yarn()
    if isinstance(workers, Yarn):
        workers = workers.count(environment().yarn)
    asked = environment().workers
    if workers == "auto" and asked is not None:
        # A variable stands for many runs: it bows to a strategy's own limit.
        workers = "auto" if strategy.max_workers == 1 else asked
    seed = arguments.seed
    if seed is None:
        seed = int(np.random.randint(SEED_LIMIT))  # keras.utils.set_random_seed's
    cluster = find_cluster(arguments.cluster)
    known = (cluster.name,) if isinstance(cluster, Cluster) else names()
    return Request(
        strategy=strategy,
        workers=workers,
        cluster=name_of(cluster),
        known_clusters=known,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        initial_epoch=arguments.initial_epoch,
        steps_per_epoch=arguments.steps_per_epoch,
        shuffle=arguments.shuffle,
        seed=seed,
        deterministic=arguments.deterministic,
        epoch_barrier=arguments.epoch_barrier,
        max_restarts=arguments.max_restarts,
        servers=arguments.servers,
        standby=arguments.standby,
        spares=arguments.spares,
        quorum=arguments.quorum,
        collective=arguments.collective,
        codec=arguments.codec,
        overlap=arguments.overlap,
        on_nan=arguments.on_nan,
        threads=arguments.threads,
        monitor=arguments.monitor,
        validation=arguments.validation,
        validation_freq=read_freq(arguments.validation_freq),
        has_callbacks=bool(arguments.callbacks),
    )


def _check_inline(arguments: Arguments, strategy: Strategy) -> None:
    """Refuses what workers that take turns in one process cannot do."""
    if arguments.cluster != "inline":
        return
    if arguments.on_nan is not None:
        raise PlanError(
            f"on_nan={arguments.on_nan!r} with cluster='inline'. Expected workers that "
            "are processes, which can stop or step back one by one. "
            "Leave one of the two out."
        )
    usual = {"servers": 1, "standby": 0, "spares": 0}
    for name, least in usual.items():
        if getattr(arguments, name) != least:
            raise PlanError(
                f"{name}={getattr(arguments, name)} with cluster='inline'. Expected "
                "processes, of which one can be lost. Leave one of the two out."
            )
    if arguments.overlap:
        raise PlanError(
            "overlap=True with cluster='inline'. Expected workers that are processes, "
            "which compute while others speak. Leave one of the two out."
        )
    if strategy.is_independent:
        raise PlanError(
            f"{strategy.name} does not run on cluster='inline'. "
            "Expected a strategy whose workers exchange something. "
            "Leave cluster out to train the models on processes."
        )
    if WATCH.get() is not None:
        raise PlanError(
            "shoal.testing.faults with cluster='inline'. Expected workers that are "
            "processes, which can fail one by one. Leave cluster out."
        )


def verbosity(verbose: int | str) -> int | str:
    """Returns what is shown: an argument beats the environment.

    Raises:
        ConfigError: It is nothing that Keras knows.

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


def _check_kinds(arguments: Arguments) -> None:
    """Refuses what Keras would stumble over later."""
    for callback in _flat(arguments.callbacks):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise ConfigError(
                f"callbacks has {callback!r}. Expected objects of subclasses of "
                "keras.callbacks.Callback. "
                "Pass for example callbacks=[keras.callbacks.CSVLogger('log.csv')]."
            )
    if arguments.validation == "async":
        check_late(arguments.callbacks)
    check_custom_objects(arguments.custom_objects)


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
