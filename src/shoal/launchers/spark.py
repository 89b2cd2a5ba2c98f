"""Agents as tasks of Spark: one job of one task for each, never a barrier.

A job of many tasks is aborted as a whole when one of its tasks was lost too often; jobs
of one task are lost, requested and cancelled one by one, and a job that waits is demand
that dynamic allocation sees.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

from pyspark import InheritableThread, SparkContext, TaskContext

from shoal.jvm_errors import cause
from shoal.launchers.agent_loop import Ticket
from shoal.launchers.pull_carrier import PullCarrier
from shoal.launchers.spark_resources import GPU, TaskResources, profile_of
from shoal.launchers.spark_session import GONE, is_stopped, stopped

GRACE_S = 3.0  # for a task to end by itself before its job is cancelled
END_S = 10.0  # for Spark to end a cancelled job
VISIBLE = "CUDA_VISIBLE_DEVICES"
OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"
"""Error class of PySpark; the error names both versions."""


@final
@dataclass(kw_only=True, eq=False)
class SparkJob:
    """A job of one task, which runs an agent.

    Args:
        group: Its job group, by which it is cancelled.
        thread: Thread that waits for its end.
        why: Reason of its end, "" while it runs.
        cancel_at: Time at which it is cancelled, once its agent was let go.
    """

    group: str
    thread: threading.Thread | None = None
    why: str = ""
    cancel_at: float = 0.0


@final
class SparkCarrier(PullCarrier):
    """Runs agents as tasks of a session.

    Args:
        context: Context of the session.
        resources: Resources of each task.
        options: Arguments of `PullCarrier`.
    """

    engine: ClassVar[str] = "pyspark"
    advice: ClassVar[str] = (
        "Give executors the environment of this process: PYSPARK_PYTHON, or a packed "
        "environment in spark.archives."
    )

    def __init__(
        self, context: SparkContext, resources: TaskResources, **options: Any
    ) -> None:
        self._spark, self._profile = context, profile_of(context, resources)
        self._jobs: list[SparkJob] = []
        self._ended = queue.SimpleQueue[SparkJob | None]()
        super().__init__(**options)
        self._ender = InheritableThread(
            self._cancel_all, name="shoal-spark-ends", daemon=True
        )
        self._ender.start()

    def start_task(self, ticket: Ticket, avoided: Collection[str]) -> SparkJob:
        """Starts a job in a thread of its own, as groups of jobs are threads'.

        Raises:
            ClusterError: The session was stopped.
        """
        del avoided  # Spark leaves lost executors out by itself
        if is_stopped(self._spark):
            raise stopped()
        job = SparkJob(group=f"shoal-{secrets.token_hex(8)}")
        job.thread = InheritableThread(
            partial(self._run, job, ticket.to_text()), name="shoal-spark", daemon=True
        )
        try:
            job.thread.start()
        except (AssertionError, *GONE):
            raise stopped() from None
        self._jobs.append(job)
        return job

    def _run(self, job: SparkJob, text: str) -> None:
        try:
            self._spark.setJobGroup(
                job.group, "A worker of a Shoal run", interruptOnCancel=True
            )
            data: Any = self._spark.parallelize([0], 1)
            if self._profile is not None:
                data = data.withResources(self._profile)
            [job.why] = data.mapPartitions(agent_task(text)).collect()
        except Exception as error:  # Spark's errors are of many kinds
            job.why = cause(str(error)) or type(error).__name__
            if OTHER_PYTHON in job.why:
                job.why += f" {self.advice}"

    def failure(self, task: SparkJob) -> str:
        """Returns the reason of a job's end."""
        return task.why

    def end_task(self, task: SparkJob) -> None:
        """Has a job cancelled, after a while in which its agent may end by itself."""
        task.cancel_at = time.monotonic() + GRACE_S
        self._ended.put(task)

    def _cancel_all(self) -> None:
        """Cancels the jobs of agents that were let go, one after the other."""
        while (job := self._ended.get()) is not None:
            if self._is_running(job):
                _join(job, job.cancel_at - time.monotonic())
            self._cancel(job)

    def _is_running(self, job: SparkJob) -> bool:
        """Whether a task of the job has begun, which is told to end."""
        with suppress(*GONE):
            tracker = self._spark.statusTracker()
            for number in tracker.getJobIdsForGroup(job.group):
                found = tracker.getJobInfo(number)
                for stage in () if found is None else found.stageIds:
                    info = tracker.getStageInfo(stage)
                    if info is not None and info.numActiveTasks:
                        return True
        return False

    def _cancel(self, job: SparkJob) -> None:
        """Cancels a job; one that has not been submitted yet, as soon as it is."""
        until = time.monotonic() + END_S
        while job.thread is not None and job.thread.is_alive():
            if time.monotonic() > until or is_stopped(self._spark):
                return
            with suppress(*GONE):
                self._spark.cancelJobGroup(job.group)
            _join(job, 1.0)

    def close(self) -> None:
        """Lets all agents go, and waits until Spark has ended their jobs."""
        super().close()
        self._ended.put(None)
        self._ender.join()
        for job in self._jobs:
            _join(job, END_S)


def _join(job: SparkJob, limit_s: float) -> None:
    if job.thread is not None:
        job.thread.join(max(0.0, limit_s))


def agent_task(text: str) -> Callable[[Any], Iterator[str]]:
    """Returns the function of a task, which Spark sends by value.

    It imports Shoal where it runs: an executor without Shoal can so say what is missing
    in a sentence.

    Args:
        text: The ticket of its agent.
    """

    def run(_: Any) -> Iterator[str]:
        import socket
        import sys

        try:
            from shoal.launchers.agent_loop import Ticket, serve
            from shoal.launchers.spark import gpus_of_task
        except ImportError as error:
            yield (
                f"{sys.executable} on {socket.gethostname()} cannot import Shoal "
                f"({error}). Expected the packages of the driver on every executor. "
                "Set PYSPARK_PYTHON, or send a packed environment by spark.archives"
            )
            return
        with gpus_of_task():
            yield serve(Ticket.from_text(text))

    return run


@contextmanager
def gpus_of_task() -> Generator[None]:
    """Shows a task's processes the GPUs that Spark gave it, and no others.

    The Python process of a task may run other tasks after it.
    """
    context = TaskContext.get()
    found: Any = {} if context is None else context.resources()
    addresses = found[GPU].addresses if GPU in found else []
    before = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(addresses)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before
