"""Evaluates and predicts on several processes, with the results of one.

This file decides how rows are cut, which processes are started, and how results are
combined: states of metrics are summed, predictions are joined in order. A chunk is a
whole number of batches, so that every batch is the one that Keras would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from typing import Any, final

import numpy as np

from shoal.clusters.local import read_machine
from shoal.data import ArraySource, trees
from shoal.data.arrays import Column
from shoal.data.blob import read_blob
from shoal.data.chunks import ChunkedSource, first_rows
from shoal.facts import MachineFacts
from shoal.interruption import interruptible, pause, undisturbed
from shoal.launchers.shared import SharedBlob, map_inherited
from shoal.models.fixed_batch import check_steps, sample_rows
from shoal.models.inspection import build, check_inputs, prepare
from shoal.models.metrics import MetricStates, unmergeable
from shoal.models.travel import pack
from shoal.plan import BATCH_SIZE, Place, environment
from shoal.plan.gpus import places
from shoal.plan.request import (
    MOST_AUTO_WORKERS,
    Workers,
    read_workers,
    require_whole,
)
from shoal.training.callback_list import safe_points, whole
from shoal.training.caps import capped_steps
from shoal.training.early_start import place_variables
from shoal.training.read_fit import check_batch_size, check_custom_objects, verbosity
from shoal.training.score_bar import ScoreBar
from shoal.training.score_chunks import (
    DONE,
    Compute,
    Join,
    ScoreTask,
    add_states,
    evaluate_chunk,
    join_rows,
    predict_chunk,
)
from shoal.training.scoring_processes import Purpose, ScoringProcesses, shared_bytes
from shoal.training.shared_rows import opening, write_data
from shoal.training.streaming import batches, edges, rows_of_steps
from shoal.training.validation import Validation
from shoal.vectors import recurrent_states

POLL_S = 0.02
PURPOSE = Purpose(
    target="shoal.training.score_chunks:score",
    doing="scored",
    must="workers",
    instead="pass workers=1",
    expected="Every chunk was expected to be computed",
    advice="Pass fewer workers or a smaller batch_size if memory is short",
)
CHUNKS_PER_WORKER = 4
"""Chunks of each worker: more than one, so that slow processes leave work to others."""

PART_BYTES = 16 << 20
"""Bytes of chunked data that one process has in memory, besides open chunks."""
MOST_CHUNKS = 256
"""Limit of chunks: each has an open result file; a process may have 1,024."""

WORTH_A_PROCESS = 3e10
"""Multiplications of one core during the start of a process, about three seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """The user's request.

    Args:
        workers: Processes, `(min, max)` or "auto".
        threads: Compute threads of each process, None to share the cores.
        batch_size: Rows of one step, None for 32.
        steps: Steps to take, None for all rows.
        custom_objects: Custom objects, as for `keras.saving.load_model`.
        factory: Makes the model on processes, None to send it.
        verbose: Verbosity, as in Keras.
    """

    workers: Workers = "auto"
    threads: int | None = None
    batch_size: int | None = None
    steps: int | None = None
    custom_objects: Mapping[str, Any] | None = None
    factory: Callable[[], Any] | None = None
    verbose: int | str = 0


@final
@dataclass(frozen=True, kw_only=True)
class _Job:
    """What is scored, on which rows, and by how many processes."""

    model: Any
    source: ArraySource | ChunkedSource
    rows: int
    batch_size: int
    workers: int
    threads: int
    custom_objects: Mapping[str, Any] | None
    factory: Callable[[], Any] | None
    sample: Any
    verbose: int | str
    places: tuple[Place, ...] = ()


def evaluate(
    model: Any, source: ArraySource | ChunkedSource, asked: Asked
) -> dict[str, float]:
    """Returns the metrics of a compiled model over the rows.

    Raises:
        ConfigError: An argument is wrong, or the model is not compiled.
        WorkerFailed: The model's code raised on a process.
        WorkerLost: Processes died too often.
    """
    with undisturbed(), source.serving():
        return _evaluate(model, source, asked)


def _evaluate(
    model: Any, source: ArraySource | ChunkedSource, asked: Asked
) -> dict[str, float]:
    """Evaluates rows whose source is readable."""
    with interruptible():
        sample = first_rows(source, sample_rows(model))
        prepare(model, sample)
    job = _job(model, source, asked, sample, step="test_step")
    targets = import_module("keras").utils.unpack_x_y_sample_weight(sample)[1]
    states = MetricStates.of(model)
    # States that no reset changes continue in the user's model, so it counts here.
    can_share = not states.has_kept and not unmergeable(model, targets)
    if job.workers > 1 and can_share:
        found, bar = _scored(job, evaluate_chunk, add_states)
        results = states.results(model, states.merge(found))
        bar.end(results)
        return results
    steps = len(edges(source, job.rows, job.batch_size)) - 1
    here = Validation(source=source, batch_size=job.batch_size, steps=steps)
    return here.of(model, job.verbose)()


def predict(
    model: Any, source: ArraySource | ChunkedSource, asked: Asked
) -> trees.Tree:
    """Returns predictions in the order of the rows, nested as the model's outputs.

    Raises:
        ConfigError: An argument is wrong.
        DataError: The model does not take such rows.
        WorkerFailed: The model's code raised on a process.
        WorkerLost: Processes died too often.
    """
    with undisturbed(), source.serving():
        return _predict(model, source, asked)


def _predict(
    model: Any, source: ArraySource | ChunkedSource, asked: Asked
) -> trees.Tree:
    """Predicts from rows whose source is readable."""
    with interruptible():
        sample = first_rows(source, sample_rows(model))
        build(model, sample)
        check_inputs(model, sample)
    job = _job(model, source, asked, sample, step="predict_step")
    if job.workers == 1 and isinstance(source, ChunkedSource):
        with batches(source, job.rows, job.batch_size, is_input=True) as found:
            return whole(
                model, "predict", found, verbose=job.verbose, callbacks=safe_points()
            )
    if job.workers == 1:
        rows = source.take(slice(0, job.rows))
        return predict_chunk(model, rows, job.batch_size, verbose=job.verbose)
    found, bar = _scored(job, predict_chunk, join_rows)
    bar.end()
    return join_rows(found)


def _job(
    model: Any,
    source: ArraySource | ChunkedSource,
    asked: Asked,
    sample: Any,
    *,
    step: str,
) -> _Job:
    """Resolves the request."""
    batch_size, steps, threads = (
        None if value is None else require_whole(name, value, 1)
        for name, value in (
            ("batch_size", asked.batch_size),
            ("steps", capped_steps("steps", asked.steps)),
            ("threads", asked.threads),
        )
    )
    check_custom_objects(asked.custom_objects)
    natural = source.batch_size if isinstance(source, ChunkedSource) else None
    check_batch_size(batch_size, natural)
    batch_size = batch_size or natural or BATCH_SIZE
    rows = rows_of_steps(source, steps, batch_size)
    check_steps(
        model, edges(source, rows, batch_size), step=step, data="x",
        size="batch_size", count="steps",
    )  # fmt: skip
    machine = read_machine(import_module("keras").config.backend())
    workers = worker_count(
        asked.workers if asked.workers != "auto" else environment().workers or "auto",
        machine,
        batches=-(-rows // batch_size),
        work=float(rows) * model.count_params(),
    )
    if recurrent_states(model):
        workers = 1  # states between batches stay in one process
    return _Job(
        model=model,
        source=source,
        rows=rows,
        batch_size=batch_size,
        workers=workers,
        threads=threads or max(1, machine.cores // workers),
        custom_objects=asked.custom_objects,
        factory=asked.factory,
        sample=sample,
        verbose=verbosity(asked.verbose),
        places=places(machine.gpus, workers) if workers > 1 else (),
    )


def worker_count(
    workers: Workers, machine: MachineFacts, batches: int, work: float
) -> int:
    """Chooses how many processes score; 1 means only this one.

    Args:
        workers: A number, `(min, max)`, or "auto".
        machine: Resources of the machine.
        batches: Steps of the whole job, the largest number of processes.
        work: Multiplications of the whole job; "auto" starts no process for little.

    Raises:
        ConfigError: `workers` is invalid.

    Example:
        >>> worker_count("auto", MachineFacts(cores=2), batches=9, work=1e6)
        1
    """
    if workers == "auto":
        # One process keeps a GPU busy; more of them share it only on request.
        cores = 1 if machine.gpus else machine.cores
        most = min(cores, MOST_AUTO_WORKERS, int(work / WORTH_A_PROCESS))
    else:
        _, most = read_workers(workers)
    return max(1, min(most, batches))


def _scored(
    job: _Job, compute: Compute, join: Join
) -> tuple[list[trees.Tree], ScoreBar]:
    """Computes every chunk; returns the results in order."""
    with interruptible():
        packed = pack(
            job.model,
            custom_objects=job.custom_objects,
            factory=job.factory,
            sample=job.sample,
        )
    bounds = _bounds(job)
    with ExitStack() as stack:
        model, data, board, *results = (_blob(stack) for _ in range(3 + len(bounds)))
        write_data(job.source, data)
        board.allocate(len(bounds)).close()
        task = ScoreTask(
            model=shared_bytes(model, packed),
            compute=compute,
            join=join,
            open_source=opening(job.source, data),
            board=board.descriptor,
            results=tuple(result.descriptor for result in results),
            bounds=bounds,
            batch_size=job.batch_size,
            part_rows=_part_rows(job),
        )
        bar = ScoreBar(bounds, job.batch_size, job.verbose)
        _Chunks(task, job, data.descriptor, bar).compute()
        return [_result(descriptor) for descriptor in task.results], bar


def _blob(stack: ExitStack) -> SharedBlob:
    blob = SharedBlob()
    stack.callback(blob.close)
    return blob


def _bounds(job: _Job) -> tuple[tuple[int, int], ...]:
    """Cuts rows into chunks of whole batches, a few for each worker.

    If data is not in memory there are more chunks, so that the last one is not awaited
    long.
    """
    rows, batch_size = job.rows, job.batch_size
    starts = edges(job.source, rows, batch_size)
    steps = len(starts) - 1
    wanted = job.workers * CHUNKS_PER_WORKER
    if isinstance(job.source, ChunkedSource):
        size_bytes = job.source.size_bytes * rows // len(job.source)
        wanted = max(wanted, min(MOST_CHUNKS, -(-size_bytes // PART_BYTES)))
    chunks = min(steps, wanted)
    bounds = [starts[steps * i // chunks] for i in range(chunks)] + [rows]
    return tuple(pairwise(bounds))


def _part_rows(job: _Job) -> int:
    """Returns the rows that one process has in memory, in whole batches."""
    if not isinstance(job.source, ChunkedSource):
        return job.rows
    row_bytes = max(1, job.source.size_bytes // len(job.source))
    return job.batch_size * max(1, PART_BYTES // row_bytes // job.batch_size)


def _result(descriptor: int) -> trees.Tree:
    """Copies the result of a process: its memory ends with the descriptor."""

    def copied(column: Column) -> Any:
        return np.array(column.values)

    return trees.map_leaves(copied, read_blob(map_inherited(descriptor)))


@dataclass
class _Chunks:
    """The chunks of one job, and the processes that compute them."""

    task: ScoreTask
    job: _Job
    data: int
    bar: ScoreBar
    living: int = field(default=0, init=False)

    def compute(self) -> None:
        """Starts processes and follows them until every chunk is done."""
        task, job = self.task, self.job
        board = map_inherited(task.board)
        shared = (task.model, self.data, task.board, *task.results)
        backend = import_module("keras").backend.backend()
        purpose = replace(PURPOSE, doing=f"scored {job.model.name!r}")
        processes = ScoringProcesses(purpose, backend, job.threads, shared)
        count = len(task.bounds)
        try:
            for number in range(job.workers):
                self._start(processes, number, self._first_of(number))
            while (done := board[:]).count(DONE) < count:
                self.bar.show([state == DONE for state in done[:count]])
                for gone in processes.poll():
                    self.living -= 1
                    is_left = self.living == 0 and board[:].count(DONE) < count
                    if gone.code or is_left:  # the model's code may end a process
                        number = int(gone.name.rpartition("-")[2])
                        processes.count_loss(gone, number)
                        self._start(processes, number, 0)
                pause(POLL_S)
        finally:
            processes.close()
            board.close()

    def _first_of(self, number: int) -> int:
        """Returns the first chunk of a process: apart from others, unless in order."""
        source, workers = self.job.source, self.job.workers
        if isinstance(source, ChunkedSource) and not source.travels_alone:
            return 0
        return len(self.task.bounds) * number // workers

    def _start(self, processes: ScoringProcesses, number: int, first: int) -> None:
        gpus, environment = self.job.places, None
        if gpus:
            backend = import_module("keras").backend.backend()
            environment = place_variables(backend, gpus[number % len(gpus)])
        token = processes.start(f"worker-{number}", environment)
        processes.give(token, replace(self.task, first=first))
        self.living += 1
