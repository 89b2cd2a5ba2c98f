"""What a call of `fit` does: it reads the arguments, trains, and records all of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from shoal.engine.stage import Stage
from shoal.errors import ModelNotSaved, ShoalWarning
from shoal.plan import environment
from shoal.runs.base import Run
from shoal.runs.store import StoredRun, start
from shoal.training import inline
from shoal.training.arguments import Arguments, Ready, read
from shoal.training.driver import Habits
from shoal.training.ensemble import train_members
from shoal.training.fitting import Outcome, announce, train
from shoal.training.inputs import Inputs, write_inputs
from shoal.training.keeping import Keeper
from shoal.training.progress import warn_aside

RETRIES_S = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class Means:
    """What `fit` has at hand before it knows what to do with it.

    Args:
        began: Monotonic seconds of the call.
        stage: Processes that have been started, None for none.
        heed: Called in turns of the run; raises after Ctrl-C.
    """

    began: float
    stage: Stage | None
    heed: Callable[[], None]


def perform(arguments: Mapping[str, Any], means: Means) -> Any:
    """Does what the arguments of `fit` say, and records it; returns the history."""
    ready = read(Arguments(**arguments))
    plan, name = ready.plan, ready.work.model.name
    root = environment().runs
    with start(ready.arguments.run, name=name, root=root) as record:
        record.write_plan(plan.to_json())
        announce(plan, record)

        def work() -> Outcome:
            for text in plan.warnings:
                record.event("warning", text=text)
                # Of the caller of `fit`, four calls away.
                warnings.warn(text, ShoalWarning, stacklevel=5)
            return _train(ready, record, means)

        return follow(record, ready.work.model, means.began, work)


def follow(record: Run, model: Any, began: float, work: Callable[[], Outcome]) -> Any:
    """Trains, and records how that ends.

    Args:
        record: Of the run.
        model: That is trained.
        began: Monotonic seconds of the user's call.
        work: Trains it.
    """
    before_s, started = time.monotonic() - began, time.monotonic()
    try:
        outcome = work()
    except BaseException as error:
        _record_end(record, model, error)
        raise
    _save(record, model)
    report = {"total_s": round(time.monotonic() - began, 3)}
    if outcome.first_step is not None:
        startup_s = before_s + outcome.first_step - started
        report["startup_s"] = round(startup_s, 3)
    record.finish("finished", report)
    outcome.history.run = record
    _check_saved(record, outcome.history)
    return outcome.history


def _save(record: Run, model: Any) -> None:
    """Saves the trained model; a storage that is away for a moment is waited for."""
    for wait_s in (*RETRIES_S, None):
        saved = record.save_model(model, "last")
        if saved or not _is_away(record) or wait_s is None:
            return
        time.sleep(wait_s)


def _is_away(record: Run) -> bool:
    return isinstance(record, StoredRun) and isinstance(record.model_error, OSError)


def _check_saved(record: Run, history: Any) -> None:
    """A program must not end as if all were well when the model is nowhere."""
    if isinstance(record, StoredRun) and _is_away(record):
        raise ModelNotSaved(
            f"the model is trained, but {record.url} did not take it "
            f"({record.model_error}). Expected a storage with space that can be "
            "reached. The model object holds the trained weights: save it elsewhere "
            "with model.save(path); this error has the history.",
            history=history,
        )


def _train(ready: Ready, record: Run, means: Means) -> Outcome:
    if ready.plan.strategy.is_independent:
        return train_members(ready, record)
    if ready.plan.cluster == "inline":
        return inline.train(ready.plan, ready.work, record, ready.habits())
    habits = replace(ready.habits(), on_turn=means.heed)
    if ready.often is None or not isinstance(record, StoredRun):
        return train(ready.plan, ready.work, record, habits, means.stage)
    folder = record.folder
    inputs, keeper = inputs_of(ready), Keeper(folder, warner(record))
    with keeping(keeper, habits) as kept:
        keeper.begin(lambda: write_inputs(folder, inputs))
        return train(ready.plan, ready.work, record, kept, means.stage)


@contextmanager
def keeping(keeper: Keeper, habits: Habits) -> Generator[Habits]:
    """Checkpoints while a run trains; they are needed no more when it ends well."""
    kept = replace(habits, keep=lambda past: keeper.keep(past.to_checkpoint()))
    try:
        yield kept
    except BaseException:
        keeper.close()
        raise
    keeper.discard()


def warner(record: Run) -> Callable[[str], None]:
    """Tells the user and the run of a line."""

    def warn(text: str) -> None:
        record.event("warning", text=text)
        warn_aside(text)

    return warn


def inputs_of(ready: Ready) -> Inputs:
    """What the run begins with, for another process that may go on with it."""
    given, validation = ready.arguments, ready.validation
    settings = {
        "verbose": ready.verbose,
        "echo": given.echo,
        "validation_freq": given.validation_freq,
        "checkpoint_every": given.checkpoint_every,
        "class_weight": given.class_weight,
        "validation_split": given.validation_split,
    }
    callbacks = given.callbacks
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        callbacks = [callbacks]
    return Inputs(
        plan=ready.plan,
        request=ready.request,
        packed=ready.work.packed,
        source=ready.work.source,
        validation=validation,
        callbacks=callbacks,
        settings=settings,
        scoring=(0, None)
        if validation is None
        else (validation.batch_size, validation.steps),
    )


def _record_end(record: Run, model: Any, error: BaseException) -> None:
    """Records why a run ended early; what was interrupted keeps its weights."""
    if isinstance(error, KeyboardInterrupt):
        with suppress(KeyboardInterrupt):  # pressed again: without it
            record.save_model(model, "last")
        record.finish("interrupted", {"reason": "KeyboardInterrupt"})
    else:
        record.finish("failed", {"reason": f"{type(error).__name__}: {error}"})
