"""From the arguments of `fit` to what is trained: a model, a plan and habits.

This file decides in which order arguments are read and refused. Nothing is started
here; when it returns, the plan stands, the model is built and known to travel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np

from shoal.clusters.local import read_machine
from shoal.data import ArraySource, training_data
from shoal.data.order import Shuffle
from shoal.errors import ConfigError, PlanError
from shoal.facts import DataFacts
from shoal.models.inspection import SAMPLE_ROWS, find_model, prepare, read_model
from shoal.models.metrics import MetricStates
from shoal.plan import Plan, Request, environment, resolve
from shoal.plan.request import Workers
from shoal.registry import did_you_mean
from shoal.runs.base import Run
from shoal.strategies import Strategy, get
from shoal.training.driver import Habits
from shoal.training.fitting import Work

SEED_LIMIT = 2**31 - 1
CLUSTERS = ("local", "inline")


@final
@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of `shoal.fit`; see there."""

    model: Any
    x: Any = None
    y: Any = None
    strategy: str | Strategy | type[Strategy] = "all_reduce"
    workers: Workers = "auto"
    cluster: str = "local"
    batch_size: int | None = None
    epochs: int = 1
    verbose: int | str = "auto"
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
    run: str | os.PathLike[str] | Run | bool | None = None
    monitor: str | None = None
    deterministic: bool = False
    epoch_barrier: bool = True
    max_restarts: int = 3
    threads: int | None = None
    seed: int | None = None
    custom_objects: Mapping[str, Any] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Validation:
    """What a model is validated on, and how.

    Args:
        source: The rows.
        batch_size: Rows of one step.
        steps: Steps to take, None for all.
    """

    source: ArraySource
    batch_size: int
    steps: int | None = None

    def of(self, model: Any) -> Callable[..., dict[str, float]]:
        """Returns what evaluates a model, for `Habits.validate`."""
        unpack = import_module("keras").utils.unpack_x_y_sample_weight
        x, y, weights = unpack(self.source.take(slice(None)))

        def validate(callbacks: Any = None) -> dict[str, float]:
            return model.evaluate(
                x, y, sample_weight=weights, batch_size=self.batch_size,
                steps=self.steps, callbacks=callbacks, verbose=0, return_dict=True,
            )  # fmt: skip

        return validate


@final
@dataclass(frozen=True, kw_only=True)
class Ready:
    """Arguments that were read and found good.

    Args:
        plan: What will happen.
        work: The model, built, and its data.
        validation: None without validation data.
        arguments: As given; `monitor`, `callbacks` and `validation_freq` are left.
        verbose: 0, 1, 2 or "auto", as Keras means it.
    """

    plan: Plan
    work: Work
    validation: Validation | None
    arguments: Arguments
    verbose: int | str

    def habits(self) -> Habits:
        """The part of the arguments that concerns this process."""
        validation, model = self.validation, self.work.model
        return Habits(
            callbacks=self.arguments.callbacks,
            validate=None if validation is None else validation.of(model),
            validation_freq=self.arguments.validation_freq,
            monitor=self.arguments.monitor,
            verbose=self.verbose,
        )


def read(arguments: Arguments) -> Ready:
    """Reads everything, decides everything, and starts nothing.

    Raises:
        ConfigError: One argument is wrong in itself.
        PlanError: Arguments cannot work together, or the model cannot travel.
        DataError: An array is missing, or does not fit the model.
    """
    strategy = get(arguments.strategy)
    _check_freq(arguments.validation_freq)
    model, factory = find_model(arguments.model)
    source, held = training_data(
        arguments.x,
        arguments.y,
        arguments.sample_weight,
        class_weight=arguments.class_weight,
        validation_split=arguments.validation_split,
        validation_data=arguments.validation_data,
    )
    sample = source.take(slice(0, SAMPLE_ROWS))
    prepare(model, sample)
    data = DataFacts(
        rows=len(source),
        size_bytes=source.size_bytes,
        has_sample_weight=source.has_sample_weight,
        validation_rows=0 if held is None else len(held),
    )
    request = _request(arguments, strategy)
    plan = resolve(request, read_model(model, sample), data, read_machine())
    _check_monitor(arguments, model, has_validation=held is not None)
    work = Work(
        model=model,
        source=source,
        custom_objects=arguments.custom_objects,
        factory=factory,
    )
    batch_size = arguments.validation_batch_size or plan.batch_size
    return Ready(
        plan=plan,
        work=work.with_packed(),
        validation=None
        if held is None
        else Validation(
            source=held, batch_size=batch_size, steps=arguments.validation_steps
        ),
        arguments=arguments,
        verbose=_verbosity(arguments.verbose),
    )


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Puts NumPy's random state back: who only asks must not change what follows."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


def _request(arguments: Arguments, strategy: Strategy) -> Request:
    """The part of the arguments that decides what will happen."""
    _check_inline(arguments.cluster, strategy)
    workers = arguments.workers
    asked = environment().workers
    if workers == "auto" and asked is not None:
        # A variable stands for many runs: it bows to a strategy's own limit.
        workers = "auto" if strategy.max_workers == 1 else asked
    seed = arguments.seed
    if seed is None:
        seed = int(np.random.randint(SEED_LIMIT))  # keras.utils.set_random_seed's
    return Request(
        strategy=strategy,
        workers=workers,
        cluster=arguments.cluster,
        known_clusters=CLUSTERS,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        initial_epoch=arguments.initial_epoch,
        steps_per_epoch=arguments.steps_per_epoch,
        shuffle=arguments.shuffle,
        seed=seed,
        deterministic=arguments.deterministic,
        epoch_barrier=arguments.epoch_barrier,
        max_restarts=arguments.max_restarts,
        threads=arguments.threads,
    )


def _check_inline(cluster: str, strategy: Strategy) -> None:
    """Refuses models without an exchange, whose workers have no turns to take."""
    if cluster == "inline" and strategy.is_independent:
        raise PlanError(
            f"{strategy.name} does not run on cluster='inline'. "
            "Expected a strategy whose workers exchange something. "
            "Leave cluster out to train the models on processes."
        )


def _verbosity(verbose: int | str) -> int | str:
    """What is shown: an argument beats the environment."""
    if verbose == "auto":
        found = environment().verbose
        return "auto" if found is None else found
    if verbose not in (0, 1, 2):
        raise ConfigError(
            f"verbose={verbose!r} cannot be used. Expected 0, 1, 2 or 'auto'. "
            "Pass 0 for silence, 2 for a line an epoch."
        )
    return int(verbose)


def _check_freq(freq: int | Sequence[int]) -> None:
    """As Keras: a number of epochs, or the epochs themselves."""
    values: list[Any] = [freq] if isinstance(freq, int) else list(freq)
    if not all(isinstance(value, int) and value >= 1 for value in values):
        raise ConfigError(
            f"validation_freq={freq!r} cannot be used. Expected a number of epochs of "
            "at least 1, or a list of epochs. Leave it out to validate after each."
        )


def _check_monitor(arguments: Arguments, model: Any, *, has_validation: bool) -> None:
    """Refuses a metric the run will not have; callbacks may add some of their own."""
    monitor = arguments.monitor
    if monitor is None or arguments.callbacks:
        return
    states = MetricStates.of(model)
    names = list(states.results(model, np.zeros(states.size)))
    known = names + [f"val_{name}" for name in names if has_validation]
    if monitor not in known:
        raise ConfigError(did_you_mean("monitor", monitor, known))
