"""The implementation of `fit`: it reads the arguments, trains, and records the run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from shoal.clusters.base import Allocation
from shoal.engine.controller.process_pool import ProcessPool
from shoal.errors import CheckpointError, ModelNotSaved, ShoalWarning
from shoal.forks import Origin
from shoal.interruption import (
    Terminated,
    interruptible,
    pause,
    undisturbed,
)
from shoal.models.no_tensorflow import no_tensorflow
from shoal.plan import environment
from shoal.runs.base import Run
from shoal.runs.catalogue import EXPLAINED
from shoal.runs.store import StoredRun, is_of_storage, start
from shoal.training import inline
from shoal.training.allocation import opened, staged
from shoal.training.checkpoint_writer import CheckpointWriter
from shoal.training.driver_options import DriverOptions
from shoal.training.ensemble import train_members
from shoal.training.fit_call import FitCall
from shoal.training.inputs import Inputs, left_for_resume, write_inputs
from shoal.training.likeness import Likeness
from shoal.training.progress import warn_aside
from shoal.training.read_fit import PreparedFit, read
from shoal.training.sampling import sampling
from shoal.training.start_run import TrainingResult, announce, train
from shoal.training.stop_request import stoppable

RETRIES_S = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class FitContext:
    """Resources of a call of `fit`.

    Args:
        began: Monotonic seconds of the call.
        pool: Started processes, None for none.
        allocation: Allocation of the workers; None for this machine.
    """

    began: float
    pool: ProcessPool | None
    allocation: Allocation | None = None


def perform(call: FitCall, context: FitContext) -> Any:
    """Does what a call of `fit` says, and records it; returns the history."""
    with interruptible():  # reads the user's data, tries models
        ready = read(call)
    name, root = ready.work.model.name, environment().runs
    with ExitStack() as stack:
        # Unavailable resources are found before a record of the run exists.
        found = opened(call.cluster, ready.plan)
        with interruptible():  # it may wait for room
            plan, allocation = stack.enter_context(found)
        ready = replace(ready, plan=plan)
        record = stack.enter_context(start(call.run, name=name, root=root))
        record.write_plan({**plan.to_json(), EXPLAINED: plan.explain()})
        announce(plan, record)
        writer = _writer(ready, record)
        if writer:
            left = left_for_resume(ready.work.source, ready.validation)
            stack.enter_context(left)

        def work() -> TrainingResult:
            for text in plan.warnings:
                record.event("warning", text=text)
                # Warnings name the caller of `fit`, four calls away.
                warnings.warn(text, ShoalWarning, stacklevel=5)
            return _train(
                ready, record, replace(context, allocation=allocation), writer
            )

        return follow(record, ready.work.model, context.began, work, writer)


def follow(
    record: Run,
    model: Any,
    began: float,
    work: Callable[[], TrainingResult],
    writer: CheckpointWriter | None,
) -> Any:
    """Trains, saves the model, and records the end.

    Args:
        record: Record of the run.
        model: Model that is trained.
        began: Monotonic seconds of the user's call.
        work: Function that trains it.
        writer: Writer of its checkpoints, None for none. They are removed once the
            model is saved.

    Raises:
        ModelNotSaved: The model is trained, but the storage refused it.
        CheckpointError: Another process has resumed the run meanwhile.
    """
    before_s, started = time.monotonic() - began, time.monotonic()
    origin = Origin()
    try:
        outcome = work()
        if writer:
            writer.check()  # the models of another process are not overwritten
        is_saved = _save(record, model)
    except BaseException as error:
        if origin.is_forked:  # the user's code has forked, and raised there
            raise
        with undisturbed():
            try:
                if writer:
                    writer.close()
                    _tell_of_resume(record, writer, error)
            finally:
                _record_end(record, model, error, writer)
        raise
    report: dict[str, Any] = {"total_s": round(time.monotonic() - began, 3)}
    if outcome.first_step is not None:
        startup_s = before_s + outcome.first_step - started
        report["startup_s"] = round(startup_s, 3)
    outcome.history.run = record
    if not is_saved:
        raise _not_saved(record, outcome.history, writer, report)
    record.finish("finished", report)
    if writer:
        writer.discard()
    return outcome.history


def _save(record: Run, model: Any) -> bool:
    """Saves the trained model; waits for a storage that is briefly unreachable.

    Returns:
        False if it is not saved, and could have been.
    """
    for wait_s in (*RETRIES_S, None):
        with no_tensorflow():
            saved = record.save_model(model, "last")
        if saved or not _is_away(record):
            return True
        if wait_s is not None:
            pause(wait_s)
    return False


def _is_away(record: Run) -> bool:
    """Whether the storage failed, not the model."""
    error = record.model_error if isinstance(record, StoredRun) else None
    return error is not None and is_of_storage(error)


def _not_saved(
    record: Run, history: Any, writer: CheckpointWriter | None, report: dict[str, Any]
) -> ModelNotSaved:
    """Returns the error about an unsaved model: the program must not end normally."""
    cause, place = None, record.url
    if isinstance(record, StoredRun):
        cause, place = record.model_error, record.model_place or place
    text = (
        f"the model is trained, but {place} did not take it ({cause}). "
        "Expected a storage with space that can be reached. The model object holds "
        "the trained weights: save it elsewhere with model.save(path); this error "
        "has the history."
    )
    try:
        if writer:
            writer.close()
            if writer.has_saved:
                text += (
                    " Or make space, and when this process has ended, train the end "
                    f"of the run again: shoal runs resume {record.url}"
                )
    finally:
        record.finish("failed", {**report, "reason": f"ModelNotSaved: {text}"})
    return ModelNotSaved(text, history=history)


def _tell_of_resume(
    record: Run, writer: CheckpointWriter, error: BaseException
) -> None:
    """Adds the resume command to a traceback; Ctrl-C has a line of its own."""
    is_fenced = isinstance(error, CheckpointError)
    if writer.has_saved and isinstance(error, Exception) and not is_fenced:
        error.add_note(
            "The run can go on from its last checkpoint: "
            f"shoal runs resume {record.url}, or shoal.resume in Python."
        )


def _writer(ready: PreparedFit, record: Run) -> CheckpointWriter | None:
    """Returns the writer of checkpoints, for a run that can be resumed."""
    is_kept = ready.often is not None and not (
        ready.plan.strategy.is_independent or ready.plan.request.cluster == "inline"
    )
    if not is_kept or not isinstance(record, StoredRun):
        return None
    folder, inputs = record.folder, inputs_of(ready)
    writer = CheckpointWriter(folder, warner(record), tell=record.event)
    writer.begin(lambda: write_inputs(folder, inputs))
    return writer


def _train(
    ready: PreparedFit,
    record: Run,
    context: FitContext,
    writer: CheckpointWriter | None,
) -> TrainingResult:
    if ready.plan.strategy.is_independent:
        return train_members(ready, record, context.allocation)
    with stoppable(record) as look, sampling(record, look) as on_turn:
        options = replace(ready.options(), on_turn=on_turn)
        if ready.plan.request.cluster == "inline":
            return inline.train(ready.plan, ready.work, record, options)
        with staged(ready.plan, context.allocation) as pool:
            if writer:
                options = keeping(writer, options)
            return train(ready.plan, ready.work, record, options, pool or context.pool)


def keeping(writer: CheckpointWriter, options: DriverOptions) -> DriverOptions:
    """Returns the driver options of a run with checkpoints."""
    return replace(
        options, keep=lambda resume_state: writer.keep(resume_state.to_checkpoint())
    )


def warner(record: Run) -> Callable[[str], None]:
    """Returns a function that reports a line to the user and the run."""

    def warn(text: str) -> None:
        record.event("warning", text=text)
        warn_aside(text)

    return warn


def inputs_of(ready: PreparedFit) -> Inputs:
    """Returns the inputs of the run, for another process that may resume it."""
    call, validation = ready.call, ready.validation
    settings = {
        "verbose": ready.verbose,
        "echo": call.echo,
        "checkpoint_every": call.checkpoint_every,
        "class_weight": call.class_weight,
        "validation_split": call.validation_split,
        "files": call.files,
        "cluster": call.cluster,
    }
    callbacks = call.callbacks
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        callbacks = [callbacks]
    return Inputs(
        plan=ready.plan,
        packed=ready.work.packed,
        source=ready.work.source,
        validation=validation,
        callbacks=callbacks,
        settings=settings,
        scoring=(0, None)
        if validation is None
        else (validation.batch_size, validation.steps),
        likeness=Likeness.of(ready.work.source, ready.work.sample),
    )


def _record_end(
    record: Run, model: Any, error: BaseException, writer: CheckpointWriter | None
) -> None:
    """Records why a run ended early; an interrupted one keeps its weights."""
    if isinstance(error, CheckpointError) or (writer and writer.is_taken):
        return  # another process has resumed the run, and will record its end
    if isinstance(error, KeyboardInterrupt):
        with no_tensorflow():
            record.save_model(model, "last")
        reason = str(error) if isinstance(error, Terminated) else "KeyboardInterrupt"
        record.finish("interrupted", {"reason": reason})
    else:
        record.finish("failed", {"reason": f"{type(error).__name__}: {error}"})
