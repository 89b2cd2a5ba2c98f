"""`ExecutionEnvironment` with EasyDist's interface, on `shoal.fit`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, final

from shoal import api
from shoal.data.files import open_files
from shoal.data.files.preprocess import entry_point
from shoal.data.files.source import FileSource
from shoal.data.located import SCRIPT, beside_script
from shoal.easydist.calling import CallSite, caller, the_model
from shoal.easydist.experiment import Experiment, begin_experiment
from shoal.easydist.optimizer import set_optimizer
from shoal.easydist.place import bucket_of, url_of
from shoal.easydist.report import ExperimentReport, epoch_seconds
from shoal.easydist.timing import LINES, spent, timed
from shoal.errors import ConfigError, a_kind
from shoal.facts import DEFAULT_ROOT
from shoal.plan import environment
from shoal.plan.request import Workers
from shoal.runs.events import exchange_records, read_events
from shoal.runs.folder import Folder
from shoal.runs.store import PLAN, StoredRun, create
from shoal.runs.use import CORES
from shoal.strategies import Strategy
from shoal.training.progress import Display

OURS = ("model", "x", "y", "run", "strategy", "workers", "epochs", "batch_size")
"""Arguments of `shoal.fit` that belong to the environment."""


@final
@dataclass(frozen=True, kw_only=True)
class ExecutionEnvironment:
    """Trains the compiled model of the calling script on files of an S3 bucket.

    It is meant for scripts written for EasyDist: a model definition, a
    `preprocessing.py` beside it, and this. New scripts may as well call
    `shoal.fit(model, "s3://...")`.

    It creates three things in the working directory: `experiments/NNN`, one console
    for each worker, to be read while they train; `models/NNN`, the model with the best
    loss and the last one; and the run itself, for `shoal runs`. Each run takes the
    next number, and files of other runs stay untouched.

    The default strategy is "aeasgd". EasyDist trained asynchronously around a
    parameter server, and so does this: no worker waits for another. The plain
    rule of such a server, "downpour", adds up what all workers did and loses accuracy
    with each worker more (docs, "Learning quality"); elastic averaging does not add up.

    Args:
        bucket: Name of the bucket.
        prefix: Folder in it, "" for all, or a glob such as "data/part-*". Names that
            begin with "." or "_" are left out, as everywhere.
        epochs: Passes over the data.
        batch_size: Samples of a step of each worker, at least 1; default None means 32.
        opt: Optimizer, a name or an object of Keras, in place of the one the model was
            compiled with; loss and metrics stay. Default None keeps it.
        bucket_name: Other name of the argument `bucket`.
        model: The model to train; default None: the one compiled model among the
            names of the module (and function) that calls.
        preprocess: Code that reads the files; default None: the class `Preprocessing`
            of `preprocessing.py` beside the script.
        strategy: Strategy, as for `shoal.fit`.
        workers: Workers, as for `shoal.fit`.

    Raises:
        ConfigError: No bucket is named, or two are.

    Example:
        >>> ExecutionEnvironment(bucket="texts", prefix="part").url
        's3://texts/part/'
    """

    bucket: str | None = None
    prefix: str = ""
    epochs: int = 1
    batch_size: int | None = None
    opt: Any = None
    bucket_name: str | None = None
    model: Any = None
    preprocess: Any = None
    strategy: str | Strategy | type[Strategy] = "aeasgd"
    workers: Workers = "auto"
    _maker: CallSite = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bucket_of(self.bucket, self.bucket_name)
        object.__setattr__(self, "_maker", caller())

    @property
    def url(self) -> str:
        """Returns the URL of the data."""
        return url_of(bucket_of(self.bucket, self.bucket_name), self.prefix)

    def fit(self, **arguments: Any) -> Any:
        """Trains, and prints a report.

        Args:
            **arguments: Others of `shoal.fit`, such as `validation_data`, `callbacks`,
                or `verbose=0` for silence.

        Returns:
            Keras' history, as `shoal.fit` does; `history.experiment` is the number.

        Raises:
            ConfigError: There is no compiled model, or several, or no
                `preprocessing.py`.
            DataError: Files cannot be read, or preprocessing breaks its contract.
            WorkerFailed, WorkerLost: See `shoal.fit`.
        """
        began = time.monotonic()
        taken = sorted(name for name in arguments if name in OURS)
        if taken:
            raise ConfigError(
                f"fit() was given {taken[0]}=. Expected it when the environment is "
                "made, if it can be chosen. Pass it to ExecutionEnvironment."
            )
        places = [caller(), self._maker]
        model = the_model(places) if self.model is None else _checked(self.model)
        preprocess = self.preprocess or _find_preprocess(places)
        entry_point(preprocess)
        bad = arguments.pop("on_bad_file", "raise")
        if self.opt is not None:
            set_optimizer(model, self.opt)
        opening = time.monotonic()
        source = open_files(self.url, preprocess=preprocess, on_bad_file=bad)
        opening_s = time.monotonic() - opening
        experiment = _begin(model)
        try:
            history = self._train(model, source, experiment, began, arguments)
            history.experiment = experiment.number
            report = _report(experiment, history, began, opening_s)
            (experiment.records / "report.txt").write_text(f"{report}\n")
        finally:
            experiment.copy_to(environment().runs)
        if arguments.get("verbose", "auto") != 0:
            Display(is_live=False).say(str(report))
        return history

    def _train(
        self,
        model: Any,
        source: FileSource,
        experiment: Experiment,
        began: float,
        arguments: Mapping[str, Any],
    ) -> Any:
        """Trains and saves; removes the folders if nothing has begun."""
        settings: dict[str, Any] = {"verbose": 2, **arguments}
        callbacks = settings.pop("callbacks", None) or []
        if settings["verbose"] != 0:
            from shoal.easydist.lines import StepLines  # it loads Keras

            callbacks = [*_listed(callbacks), StepLines(began=began)]
        run = experiment.run
        try:
            return api.fit(
                model,
                timed(source, experiment.records / LINES),
                run=run,
                strategy=self.strategy,
                workers=self.workers,
                epochs=self.epochs,
                batch_size=self.batch_size,
                callbacks=callbacks,
                **settings,
            )
        except BaseException:
            if not run.folder.exists(PLAN):
                experiment.undo()
            raise
        finally:
            experiment.save_models()


def _begin(model: Any) -> Experiment:
    """Creates a new run, and its number."""
    root = environment().runs
    # experiments/ links to the run, so it is on this machine, and is copied afterwards.
    place = root if Folder.at(root).is_local else DEFAULT_ROOT
    run = create(place, str(model.name))
    try:
        return begin_experiment(run, Path.cwd())
    except BaseException:
        run.close()
        run.folder.remove()
        raise


def _checked(model: Any) -> Any:
    """Refuses models that cannot be trained, before files are read."""
    is_model = isinstance(model, import_module("keras").Model)
    if not (is_model and model.compiled):
        what = "is not compiled" if is_model else f"is {a_kind(model)}"
        raise ConfigError(
            f"model={getattr(model, 'name', model)!r} {what}. Expected a compiled "
            "Keras model. Call model.compile(optimizer, loss) first."
        )
    return model


def _find_preprocess(places: Sequence[CallSite]) -> Any:
    """Returns the definition in `preprocessing.py` beside the script."""
    for place in places:
        found = beside_script(place.beside)
        if found is not None:
            return found
    folder = Path(places[-1].beside).resolve().parent
    raise ConfigError(
        f"there is no {SCRIPT} in {folder}. Expected it beside the script, with a "
        "class Preprocessing whose preprocess(self, keys, objects) returns (inputs, "
        "outputs, train_size). Write it, or pass preprocess=."
    )


def _listed(callbacks: Any) -> list[Any]:
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _report(
    experiment: Experiment, history: Any, began: float, opening_s: float
) -> ExperimentReport:
    run: StoredRun = experiment.run
    best = run.report.get("best")
    models = experiment.models
    return ExperimentReport(
        number=experiment.number,
        total_s=time.monotonic() - began,
        opening_s=opening_s,
        spent=spent(experiment.records / LINES, os.getpid()),
        epochs_s=epoch_seconds(exchange_records(read_events(run.folder))),
        best=(best["metric"], best["value"], best["epoch"]) if best else None,
        gpus=tuple(row for row in run.summary().use if row["what"] != CORES),
        models=tuple(sorted(p.name for p in models.glob("*"))),
        run=history.run.id,
    )
