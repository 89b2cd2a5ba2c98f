"""Processes that carry a mark in their command line."""

from __future__ import annotations

import os
import time

import psutil

GRACE_S = 30.0
"""Seconds that processes have to be gone. The kernel ends a killed process some moments
after `kill` returned, later on a busy machine, and nobody waits for a grandchild."""


def living(mark: str) -> list[psutil.Process]:
    """Returns processes, besides this one, that have the mark and are no zombies."""
    found = list[psutil.Process]()
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if mark in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return [each for each in found if each.pid != os.getpid()]


def left(mark: str) -> list[psutil.Process]:
    """Returns what still lives after time to go."""
    until = time.monotonic() + GRACE_S
    while (found := living(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def begun(mark: str, count: int) -> bool:
    """Returns whether so many live, after time to begin."""
    until = time.monotonic() + GRACE_S
    while len(living(mark)) < count and time.monotonic() < until:
        time.sleep(0.02)
    return len(living(mark)) >= count
