"""Resumes an interrupted run, in another process.

This file decides which runs can be resumed, and which arguments override those of the
run: the number of workers, the callbacks, the verbosity.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, final

from shoal.data import Source, training_data
from shoal.data.chunks import ChunkedSource, first_rows
from shoal.data.training import held_out
from shoal.errors import CheckpointError, ConfigError, PlanError
from shoal.interruption import interruptible
from shoal.models.fixed_batch import sample_rows
from shoal.models.inspection import prepare
from shoal.models.travel import unpack
from shoal.plan import Plan, environment, resolve
from shoal.plan.collective import why_no_group
from shoal.plan.often import Often, read_often
from shoal.plan.request import Workers
from shoal.plan.validation import read_freq
from shoal.runs.base import Run
from shoal.runs.checkpoints import CheckpointStore
from shoal.runs.control import clear_stop
from shoal.runs.heartbeat import unless_heard
from shoal.runs.store import StoredRun, model_file, open_run
from shoal.runs.summary import RunSummary
from shoal.training.allocation import look, opened, staged
from shoal.training.checkpoint_writer import CHECKPOINTS, CheckpointWriter
from shoal.training.driver_options import DriverOptions
from shoal.training.inputs import Inputs, left_for_resume, read_inputs
from shoal.training.likeness import difference
from shoal.training.progress import warn_aside
from shoal.training.read_fit import reading_of
from shoal.training.resume_state import ResumeState
from shoal.training.run_fit import follow, keeping
from shoal.training.same_files import check_files
from shoal.training.sampling import sampling
from shoal.training.start_run import TrainingResult, Work, train
from shoal.training.stop_request import stoppable
from shoal.training.validation import Validation, check_late, validating


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of `shoal.resume`; see `resume`."""

    run: str | os.PathLike[str] | Run
    x: Any = None
    y: Any = None
    sample_weight: Any = None
    validation_data: Any = None
    workers: Workers | None = None
    callbacks: Any = None
    verbose: int | str | None = None
    force: bool = False


def resume(call: Call) -> Any:
    """Resumes a run to its end; returns the history, with all its epochs.

    Raises:
        ConfigError: There is no such run, or it is running, or it has finished.
        CheckpointError: It cannot be read.
        PlanError: It cannot be resumed here, or with so many workers.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        record = stack.enter_context(_open(call.run))
        _check_status(record, force=call.force)
        inputs = read_inputs(record.folder)
        _check_backend(inputs.plan.backend)
        warn = Withheld(record)
        store = CheckpointStore(record.folder.child(CHECKPOINTS), complain=warn)
        store.open()  # from here on, other writers of this run are refused
        found = store.latest(warn)
        resume_state = None if found is None else ResumeState.of(found)
        _check_nothing_is_lost(record, inputs, resume_state, call, warn)
        _reopen(inputs)
        stack.enter_context(left_for_resume(inputs.source, inputs.validation))
        with interruptible():  # reads the user's data, and makes the model
            inputs = _with_data(inputs, call, warn)
            check_files("the data", inputs.source, warn)
            if inputs.validation is not None:
                check_files("the validation data", inputs.validation.source, warn)
            plan, work = _prepare(inputs, call)
            found_there = opened(_cluster(inputs), plan)
            plan, allocation = stack.enter_context(found_there)
        options = _options(inputs, call, work.model, warn)
        epoch = (
            plan.request.initial_epoch
            if resume_state is None
            else resume_state.diary.epoch
        )
        clear_stop(record.folder)
        record.event("run_resumed", workers=plan.workers, epoch=epoch)
        warn.release()
        number = 0 if found is None else found.number + 1
        writer = CheckpointWriter(
            record.folder, warn, first=number, store=store, tell=record.event
        )

        def go_on() -> TrainingResult:
            with (
                stoppable(record) as look,
                sampling(record, look) as on_turn,
                staged(plan, allocation) as pool,
            ):
                kept = keeping(
                    writer, replace(options, resume_state=resume_state, on_turn=on_turn)
                )
                return train(plan, work, record, kept, pool)

        return follow(record, work.model, began, go_on, writer)


@final
class Withheld:
    """Warnings of a run, recorded only once this process writes it.

    An event names the writer of the run. An event of a process that then refuses to
    resume it would make the run look running, for as long as that process lives.

    Args:
        record: The run.
    """

    def __init__(self, record: Run) -> None:
        self._record = record
        self._texts: list[str] | None = []

    def __call__(self, text: str) -> None:
        """Reports a line to the user, and to the run, now or later."""
        warn_aside(text)
        if self._texts is None:
            self._record.event("warning", text=text)
        else:
            self._texts.append(text)

    def release(self) -> None:
        """Records the withheld lines; from now on, each line at once."""
        texts, self._texts = self._texts or [], None
        for text in texts:
            self._record.event("warning", text=text)


def _open(run: str | os.PathLike[str] | Run) -> StoredRun:
    if isinstance(run, Run):
        return open_run(run.url)
    given: Any = run
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"run={run!r} cannot be used. Expected the id of a run, the beginning of "
            "one, or the path or URL of its folder. List the ids with: shoal runs."
        )
    return open_run(os.fspath(run), environment().runs)


def _check_status(record: StoredRun, *, force: bool) -> None:
    summary = record.summary()
    status = summary.status
    if status == "running" and not force:
        raise ConfigError(
            f"run {record.id!r} is running, {_unseen(summary)}. "
            "Expected one that was interrupted. Wait for its end; or, if you know that "
            "it is gone, pass force=True (--force): it can save nothing from then on."
        )
    if status == "finished":
        raise ConfigError(
            f"run {record.id!r} has finished. Expected one that was interrupted. "
            f"Load {record.url}/{model_file(record.folder)} and call fit to train it "
            "further."
        )


def _unseen(summary: RunSummary) -> str:
    """Returns why a run that seems to be running may be lost all the same."""
    if summary.heard_s is None:
        return "or its machine cannot be seen from here"
    return f"as far as is known: {unless_heard(summary.heard_s)}"


def _reopen(inputs: Inputs) -> None:
    """Takes over files that were written for the run, before others remove them."""
    held = None if inputs.validation is None else inputs.validation.source
    for source in (inputs.source, held):
        if isinstance(source, ChunkedSource):
            source.reopen()


def _check_backend(wanted: str) -> None:
    backend = import_module("keras").backend.backend()
    if backend != wanted:
        raise PlanError(
            f"the run was trained with KERAS_BACKEND={wanted}, and this process has "
            f"{backend!r}. Expected the same. "
            f"Set KERAS_BACKEND={wanted} before Keras is imported."
        )


def _check_nothing_is_lost(
    record: StoredRun,
    inputs: Inputs,
    resume_state: ResumeState | None,
    call: Call,
    warn: Callable[[str], None],
) -> None:
    """Compares the checkpoint with the events of the run.

    Raises:
        CheckpointError: Epochs have ended, and there is no checkpoint.
    """
    ended = record.summary().epochs
    first = inputs.plan.request.initial_epoch
    lost = ended - (0 if resume_state is None else resume_state.diary.epoch - first)
    # The checkpoint of an epoch's end is written while the next one begins: a run that
    # was killed meanwhile has lost nothing that was ever saved.
    if resume_state is None and ended > 1 and not call.force:
        raise CheckpointError(
            f"run {record.id!r} has no checkpoint, though its events tell that {ended} "
            "epochs have ended. Expected at least one manifest in "
            f"{record.folder.child(CHECKPOINTS).url}. Put the folder of checkpoints "
            "back; or pass force=True (--force) to train from the first epoch again."
        )
    if resume_state is None and lost:
        epochs = "epoch that ended is" if lost == 1 else f"{lost} epochs that ended are"
        warn(f"there is no checkpoint: the {epochs} trained again")
    elif lost > 1:
        warn(
            f"the newest checkpoint is older than the run's events: the last {lost} "
            "epochs that ended are trained again"
        )


def _with_data(inputs: Inputs, call: Call, warn: Callable[[str], None]) -> Inputs:
    """Returns the inputs with samples: the kept ones, or the given ones.

    Raises:
        CheckpointError: They were not kept, and are not given.
        PlanError: The given samples differ from those of the run.
    """
    has_validation = (
        inputs.validation is not None or not inputs.plan.data.validation_rows
    )
    if call.x is None and (call.y is not None or call.sample_weight is not None):
        raise ConfigError(
            "resume was given y or sample_weight without x. Expected all of what fit "
            "was given, or nothing: most runs keep their samples. Pass x as well, or "
            "leave the others out."
        )
    is_kept = inputs.source is not None and has_validation
    if is_kept and call.x is None and call.validation_data is None:
        return inputs
    if is_kept and call.x is None:
        return _with_same_validation(inputs, call, warn)
    if call.x is None:
        raise CheckpointError(
            "the samples of this run were too many to be kept with it. "
            "Expected them again, as fit was given them. "
            "Call shoal.resume(run, x, y, ...) in Python."
        )
    settings = inputs.settings
    source, held = training_data(
        call.x,
        call.y,
        call.sample_weight,
        class_weight=settings["class_weight"],
        validation_split=settings["validation_split"],
        validation_data=call.validation_data,
        files=settings.get("files"),
        reading=reading_of(inputs.plan.request),
        validation_steps=inputs.scoring[1],
    )
    if inputs.source is not None:
        _compare("x", difference(inputs.source, source), source, warn)
        source = inputs.source
    elif inputs.likeness is not None and len(source) == inputs.likeness.rows:
        _compare("x", inputs.likeness.difference(source), source, warn)
    return replace(inputs, source=source, validation=_held(inputs, held, warn))


def _with_same_validation(
    inputs: Inputs, call: Call, warn: Callable[[str], None]
) -> Inputs:
    """Checks validation data that was given again without other data."""
    held = held_out(
        call.validation_data,
        inputs.settings.get("files"),
        inputs.scoring[1],
        environment().generator_gb,
    )
    return replace(inputs, validation=_held(inputs, held, warn))


def _held(inputs: Inputs, held: Any, warn: Callable[[str], None]) -> Validation | None:
    """Returns the validation data: the kept one, or the given one."""
    kept = inputs.validation
    if held is None:
        return kept
    if kept is not None:
        _compare("validation_data", difference(kept.source, held), held, warn)
        return kept
    batch_size, steps = inputs.scoring
    return Validation(source=held, batch_size=batch_size, steps=steps)


def _compare(
    name: str, found: str, source: Source, warn: Callable[[str], None]
) -> None:
    """Refuses other data; warns if samples may differ in each reading.

    Raises:
        PlanError: The data differs.
    """
    if not found:
        return
    if isinstance(source, ChunkedSource) and found.endswith("samples differ"):
        warn(
            f"{name} of resume does not seem to be what fit was given: {found}. The "
            "run goes on; if these samples are not generated each time they are "
            "read, pass what fit was given."
        )
        return
    raise PlanError(
        f"{name} of resume is not what fit was given: {found}. Expected the same "
        "samples in the same order. Leave it out where the run keeps its samples, pass "
        f"what fit was given, or call fit to train on others."
    )


def _prepare(inputs: Inputs, call: Call) -> tuple[Plan, Work]:
    """Returns request, plan and model of the run, for the present machine."""
    source = inputs.source
    if source is None:
        raise CheckpointError("the run has no samples. Pass them to resume.")
    model = unpack(inputs.packed)
    prepare(model, first_rows(source, sample_rows(model)))
    before = inputs.plan
    # With "auto", the present machine might give another number.
    workers = call.workers
    if workers is None:
        most = before.most_workers
        workers = (before.min_workers, most) if before.growth else most
    request = replace(before.request, workers=workers).with_plain_numbers()
    if call.workers is not None and isinstance(request.quorum, int):
        # The former number of workers of the quorum; for another number the same share.
        share = min(1.0, request.quorum / before.most_workers)
        request = replace(request, quorum=share)
    if request.collective == "native" and why_no_group(before.backend):
        # A run of an earlier version, whose workers formed groups on JAX too.
        request = replace(request, collective="auto")
    data = replace(before.data, rows=len(source), size_bytes=source.size_bytes)
    machine = look(_cluster(inputs), before.backend)
    plan = resolve(request, before.model, data, machine)
    if plan.data_rows != before.data_rows:
        raise PlanError(
            f"the run was trained on {before.data_rows:,} samples, and resume got "
            f"{plan.data_rows:,}. Expected the same samples in the same order. "
            "Pass what fit was given."
        )
    work = Work(model=model, source=source, packed=inputs.packed)
    return plan, work


def _cluster(inputs: Inputs) -> Any:
    """Returns the cluster as given to `fit`; older folders do not have it."""
    return inputs.settings.get("cluster", inputs.plan.request.cluster)


def _options(
    inputs: Inputs, call: Call, model: Any, warn: Callable[[str], None]
) -> DriverOptions:
    callbacks = inputs.callbacks if call.callbacks is None else call.callbacks
    if callbacks is None:
        warn(
            "the callbacks of this run could not be pickled, and it goes on without "
            "them. Pass them to resume as callbacks=[...]."
        )
    if inputs.plan.request.validation == "async":
        check_late(callbacks)
    settings, validation = inputs.settings, inputs.validation
    request = inputs.plan.request
    return DriverOptions(
        callbacks=callbacks or [],
        **validating(validation, model, request.validation),
        validation_freq=read_freq(request.validation_freq),
        verbose=settings["verbose"] if call.verbose is None else call.verbose,
        echo=settings["echo"],
        often=read_often(settings["checkpoint_every"]) or Often(),
    )
