"""Compares strategies: a new model for each, the same samples for all.

The baseline is plain `keras.Model.fit`, under the name `single`. This file decides
which numbers of a training are measured and how trainings are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, TypeAlias, final

import numpy as np

from shoal.data.streams import refuse_streams
from shoal.errors import ConfigError, a_kind
from shoal.models.no_tensorflow import no_tensorflow
from shoal.plan.request import plain, read_workers
from shoal.strategies import Single, Strategy, get, spell
from shoal.training.comparison import Comparison, ComparisonEntry, Point
from shoal.training.f1 import f1_of

Workers: TypeAlias = "int | str"
F1: TypeAlias = Literal["binary", "macro"]
BASELINE = Single.name


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """The training problem of a comparison.

    Args:
        make_model: Returns a new compiled model.
        x: Inputs.
        y: Targets.
        validation_data: Data on which models are evaluated; None for the training data.
        epochs: Passes over the data.
        batch_size: Samples of one step.
        steps_per_epoch: Steps of an epoch, with `batch_size`; None for all rows.
        f1: "binary" or "macro" to add that F1 score, None for none.
        cluster: Name of a cluster, or "inline" for workers in this process.
        run: Records, as for `fit`.
        has_curves: Whether to validate after each epoch, not only at the end.
        curve_data: Other data to do that on; None for `validation_data`.
    """

    make_model: Callable[[], Any]
    x: Any
    y: Any = None
    validation_data: Any = None
    epochs: int = 1
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    f1: F1 | None = None
    cluster: str = "local"
    run: Any = False
    has_curves: bool = True
    curve_data: Any = None

    @property
    def watched(self) -> Any:
        """Returns the data to validate on after each epoch."""
        if not self.has_curves:
            return None
        return self.validation_data if self.curve_data is None else self.curve_data


Fit: TypeAlias = Callable[..., Any]
"""`shoal.fit`, passed by the caller, which is on a higher layer."""


def compare(
    task: Task,
    fit: Fit,
    *,
    strategies: Sequence[str | Strategy],
    workers: Workers | Sequence[Workers],
    seeds: int | Sequence[int] = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Trains a fresh model with each strategy, and with plain Keras.

    Args:
        task: The training problem.
        fit: `shoal.fit`.
        strategies: Names, names with parameters, or objects.
        workers: A number of workers, or several to try each.
        seeds: The number of seeds, counted from 0, or the seeds themselves.
        tell: Called with a line of text as each training begins.

    Raises:
        ConfigError: There is nothing to compare, a strategy is unknown, a number of
            workers is invalid, or `make_model` is a model or no function.
        DataError: The data comes as batches, one after another.
    """
    _check_maker(task.make_model)
    refuse_streams(task.x, "x", "data of compare")
    refuse_streams(task.y, "y", "data of compare")
    chosen = [s for s in map(get, strategies) if not isinstance(s, Single)]
    counts = _listed(workers)
    drawn = list(seeds) if isinstance(seeds, Iterable) else list(range(plain(seeds)))
    if not counts or not drawn:
        raise ConfigError(
            f"there is nothing to compare: workers={workers!r}, seeds={seeds!r}. "
            "Expected at least one number of workers and one seed. "
            "Pass workers=2 and seeds=1, or lists of them."
        )
    for count in counts:
        if count != "auto":
            read_workers(count)
    jobs: list[tuple[str, Callable[[], ComparisonEntry]]] = []
    for seed in drawn:
        jobs.append((f"{BASELINE} (plain Keras)", partial(train_baseline, task, seed)))
        jobs += [
            (spell(strategy), partial(train_one, task, fit, strategy, count, seed))
            for strategy in chosen
            for count in counts
        ]
    entries: list[ComparisonEntry] = []
    for number, (name, train) in enumerate(jobs, start=1):
        tell(f"{number} of {len(jobs)}: {name}")
        entries.append(train())
    return Comparison(entries=tuple(entries))


def _listed(workers: Workers | Sequence[Workers]) -> list[Workers]:
    """Returns the numbers of workers to try, one or several."""
    several: Any = workers
    is_one = isinstance(workers, str) or not isinstance(workers, Iterable)
    return [several] if is_one else list(several)


def train_baseline(task: Task, seed: int) -> ComparisonEntry:
    """Trains with plain `keras.Model.fit`."""

    def train(model: Any, clock: Any) -> int:
        model.fit(
            task.x,
            task.y,
            epochs=task.epochs,
            batch_size=task.batch_size,
            steps_per_epoch=task.steps_per_epoch,
            validation_data=task.watched,
            callbacks=[clock],
            verbose=0,
        )
        return 1

    return _measure(task, train, BASELINE, seed)


def train_one(
    task: Task, fit: Fit, strategy: Strategy, workers: Workers, seed: int
) -> ComparisonEntry:
    """Trains with one strategy."""

    def train(model: Any, clock: Any) -> int:
        history = fit(
            model,
            task.x,
            task.y,
            strategy=strategy,
            workers=workers,
            cluster=task.cluster,
            epochs=task.epochs,
            batch_size=task.batch_size,
            steps_per_epoch=task.steps_per_epoch,
            validation_data=task.watched,
            callbacks=[clock],
            run=task.run,
            seed=seed,
            verbose=0,
        )
        found = history.run.summary().workers
        return int(found or workers)

    return _measure(task, train, spell(strategy), seed)


def _check_maker(make_model: Any) -> None:
    """Refuses a model, which can be called too: each training needs a new one."""
    if callable(make_model) and not hasattr(make_model, "train_step"):
        return
    raise ConfigError(
        f"make_model is {a_kind(make_model)}. Expected a function without arguments "
        "that returns a new compiled model, as each training begins with one. "
        "Build and compile the model in a function, and pass that function."
    )


def _measure(
    task: Task, train: Callable[[Any, Any], int], name: str, seed: int
) -> ComparisonEntry:
    """Makes a model, trains it, evaluates it."""
    keras = import_module("keras")
    with no_tensorflow():
        keras.utils.set_random_seed(seed)
    model = task.make_model()
    clock = _clock(keras)
    began = time.perf_counter()
    workers = train(model, clock)
    seconds = time.perf_counter() - began
    points = _points(clock.ends, began, _epoch_rows(keras, task))
    data = task.validation_data or (task.x, task.y)
    return ComparisonEntry(
        strategy=name,
        workers=workers,
        seed=seed,
        metrics=_judge(model, data, task),
        seconds=seconds,
        samples_per_s=_rate(points, seconds),
        points=tuple(points),
    )


def _judge(model: Any, data: Any, task: Task) -> dict[str, float]:
    """Returns the model's own metrics on the evaluation data, and F1 if requested."""
    x, y, weights = (*data, None, None)[:3]
    found = model.evaluate(
        x, y, sample_weight=weights, batch_size=1024, verbose=0, return_dict=True
    )
    metrics = _scalars(found)
    if task.f1 is not None:
        scores = model.predict(x, batch_size=1024, verbose=0)
        metrics["f1"] = f1_of(y, scores, average=task.f1)
    return metrics


def _clock(keras: Any) -> Any:
    """Returns a callback that records the end of each epoch, with its logs."""

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[tuple[float, dict[str, float]]] = []

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            del epoch
            self.ends.append((time.perf_counter(), _scalars(logs or {})))

    return Clock()


def _scalars(logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics that are single numbers; others have one for each class."""
    return {name: float(v) for name, v in logs.items() if np.ndim(v) == 0}


def _points(
    ends: Iterable[tuple[float, dict[str, float]]], began: float, rows: int
) -> list[Point]:
    return [
        Point(seconds=end - began, samples=rows * (epoch + 1), metrics=logs)
        for epoch, (end, logs) in enumerate(ends)
    ]


def _rate(points: Sequence[Point], seconds: float) -> float:
    """Returns samples a second, as `COLUMNS` of a comparison defines it."""
    if not points:
        return 0.0
    first, last = points[0], points[-1]
    if len(points) == 1:
        return last.samples / seconds
    return (last.samples - first.samples) / (last.seconds - first.seconds)


def _epoch_rows(keras: Any, task: Task) -> int:
    """Samples of an epoch."""
    if task.steps_per_epoch is not None and task.batch_size is not None:
        return task.steps_per_epoch * task.batch_size
    return len(keras.tree.flatten(task.x)[0])
