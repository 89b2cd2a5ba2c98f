"""Processes of workers below Spark's own."""

from __future__ import annotations

from contextlib import suppress

import psutil

DAEMON = "pyspark.daemon"


def training_processes(root: int | None = None) -> list[psutil.Process]:
    """Processes that train: children of a task, which is a fork of Spark's daemon.

    Args:
        root: Process above all of them; default None means this one.
    """
    found: list[psutil.Process] = []
    for one in psutil.Process(root).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            above = one.parent()
            if above is not None and DAEMON not in _command(one):
                found += [one] * (DAEMON in _command(above))
    return found


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline())
