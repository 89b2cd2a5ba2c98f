"""Processes of workers below Spark's own."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import psutil

DAEMON = "pyspark.daemon"
END_S = 30.0


def training_processes(root: int | None = None) -> list[psutil.Process]:
    """Processes that train: children of a task, which is a fork of Spark's daemon.

    A process that is ending has no command line, and is no zombie yet: such a task is
    a child of the daemon that does not have its name any more.

    Args:
        root: Process above all of them; default None means this one.
    """
    found: list[psutil.Process] = []
    for one in psutil.Process(root).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            above = one.parent()
            own = _command(one)
            if above is not None and own and DAEMON not in own:
                found += [one] * (DAEMON in _command(above))
    return found


def daemons() -> set[psutil.Process]:
    """Spark's daemons of Python below this process, and tasks, which are forks."""
    found: set[psutil.Process] = set()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found |= {one} if DAEMON in _command(one) else set()
    return found


def jobs_end(spark: Any) -> bool:
    """Whether no job runs; Spark's status tells of an end some time after it."""
    tracker, pause = spark.sparkContext.statusTracker(), threading.Event()
    until = time.monotonic() + END_S
    while tracker.getActiveJobsIds():
        if time.monotonic() > until:
            return False
        pause.wait(0.05)
    return True


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline()).strip()
