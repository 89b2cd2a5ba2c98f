"""A process that validates the weights of each epoch during the next ones.

This file decides who waits: training waits for scores only when too
many are pending; a score is never lost, even if the process that computes
it dies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

from shoal.data.chunks import ChunkedSource
from shoal.interruption import pause
from shoal.launchers.base import Exit
from shoal.launchers.shared import SharedBlob
from shoal.models.pickling import dumps
from shoal.runs.base import Run
from shoal.training.early_start import worker_environment_of
from shoal.training.evaluation_spec import Ask, EvaluationSpec, Weights
from shoal.training.scoring_processes import Purpose, ScoringProcesses, shared_bytes
from shoal.training.shared_rows import write_data
from shoal.training.validation import Validation

NAME = "evaluator"
MOST_WAITING = 8
"""Epochs whose scores may be pending. Each takes the memory of the weights, twice."""
POLL_S = 0.02
PURPOSE = Purpose(
    target="shoal.training.evaluation_spec:score_epoch",
    doing="validated",
    must="a process of its own",
    instead="leave validation='async' out",
    expected="Every epoch was expected to be validated",
    advice="Pass a smaller validation_batch_size if memory is short, or leave "
    "validation='async' out",
)


@final
@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of a validation.

    Args:
        epoch: Epoch of the weights.
        weights: Variables that training had changed by then.
        metrics: Metrics by name.
    """

    epoch: int
    weights: Weights
    metrics: Mapping[str, Any]


@final
class Evaluator:
    """Scores weights, one epoch after the other, on a process of its own.

    Args:
        packed: The model from `travel.pack`.
        validation: The rows, and how they are read.
        backend: Name of the Keras backend.
        threads: Compute threads.
        heed: Called during waits; it may raise.
        run: Record of the process.
    """

    def __init__(
        self,
        *,
        packed: bytes,
        validation: Validation,
        backend: str,
        threads: int,
        heed: Callable[[], None],
        run: Run | None = None,
    ) -> None:
        self._backend, self._threads, self._heed = backend, threads, heed
        self._run = run
        self._waiting: dict[int, Weights] = {}
        self._read = 0
        self._token = ""
        self._stack = ExitStack()
        model, data, results = (self._blob() for _ in range(3))
        shared_bytes(model, packed)
        source, chunks = validation.source, b""
        if isinstance(source, ChunkedSource):
            chunks = dumps(source)
        write_data(source, data)
        self._spec = EvaluationSpec(
            model=model.descriptor,
            data=data.descriptor,
            chunks=chunks,
            results=results.descriptor,
            run=run.id if run is not None and run.url else "",
            batch_size=validation.batch_size,
            steps=validation.steps,
        )
        shared = (model.descriptor, data.descriptor, results.descriptor)
        self._processes = ScoringProcesses(PURPOSE, backend, threads, shared)
        self._stack.callback(self._processes.close)

    def _blob(self) -> SharedBlob:
        blob = SharedBlob()
        self._stack.callback(blob.close)
        return blob

    @property
    def waiting(self) -> list[int]:
        """Returns the epochs whose scores are pending."""
        return list(self._waiting)

    @property
    def pid(self) -> int:
        """Returns the id of the process, once it has been started."""
        return self._processes.pid(self._token)

    def start(self) -> None:
        """Starts the process if it is not running: it imports before it is needed."""
        if not self._token:
            self._start()

    def _start(self) -> None:
        environment = worker_environment_of(self._backend, 1, self._threads).environment
        # The workers use the GPUs.
        hidden = {**environment, "CUDA_VISIBLE_DEVICES": ""}
        self._token = self._processes.start(NAME, hidden)
        if self._run is not None:
            self._run.event("process_started", name=NAME, pid=self.pid)

    def ask(self, epoch: int, weights: Weights) -> list[Score]:
        """Has weights scored; returns the scores that came meanwhile.

        It waits only while `MOST_WAITING` others are pending.

        Raises:
            WorkerFailed: The model's code raised.
            WorkerLost: The process died too often.
        """
        self.start()
        self._waiting[epoch] = weights
        self._give(epoch)
        return self.drain(MOST_WAITING)

    def _give(self, epoch: int) -> None:
        ask = Ask(spec=self._spec, epoch=epoch, weights=self._waiting[epoch])
        self._processes.give(self._token, ask)

    def drain(self, most: int = 0) -> list[Score]:
        """Waits until at most so many scores are pending; returns those that came.

        Raises:
            WorkerFailed, WorkerLost: As for `ask`.
        """
        found = self.poll()
        while len(self._waiting) > most:
            self._heed()
            pause(POLL_S)
            found += self.poll()
        return found

    def poll(self) -> list[Score]:
        """Returns the scores since the last call, in their order.

        Raises:
            WorkerFailed, WorkerLost: As for `ask`.
        """
        if not self._waiting:
            return []
        # Ended processes first: their results before the end are still read.
        gone = self._processes.poll()
        found = self._new_lines()
        for end in gone:
            self._replace(end)
        return found

    def _new_lines(self) -> list[Score]:
        descriptor = self._spec.results
        size = os.fstat(descriptor).st_size
        text = os.pread(descriptor, size - self._read, self._read)
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[Score] = []
        for line in whole.splitlines():
            told = json.loads(line)
            weights = self._waiting.pop(told["epoch"], None)
            if weights is not None:
                found.append(Score(weights=weights, **told))
        return found

    def _replace(self, gone: Exit) -> None:
        """Starts another process for one that died; gives up on errors of code."""
        self._processes.count_loss(gone)
        self._read = os.fstat(self._spec.results).st_size  # after a partial line
        self._start()
        for epoch in self._waiting:
            self._give(epoch)

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._stack.close()
