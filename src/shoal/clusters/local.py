"""This machine as a cluster: its resources for a run.

This file decides how many cores may be used, which are often fewer than the
hardware has: schedulers and containers limit them.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path

import psutil

from shoal.clusters.gpus import PROC, reaches_gpus, usable_gpus
from shoal.facts import MachineFacts
from shoal.launchers.cores import count_cores

CGROUPS = Path("/sys/fs/cgroup")


def read_machine(backend: str) -> MachineFacts:
    """Reads the resources of this machine for this process, for `plan`.

    Args:
        backend: Keras backend; GPUs that it cannot compute on do not count.

    Example:
        >>> read_machine("jax").cores >= 1
        True
    """
    return MachineFacts(
        cores=usable_cores(),
        gpus=usable_gpus() if reaches_gpus(backend) else (),
        memory_bytes=int(psutil.virtual_memory().available),
        has_compiler=shutil.which(_compiler()) is not None,
    )


def _compiler() -> str:
    """Returns the C++ compiler that torch would call."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return os.environ.get("CXX", usual)


def usable_cores(cgroups: Path = CGROUPS, proc: Path = PROC) -> int:
    """Counts the cores this process may keep busy, at least 1.

    The minimum of the affinity and of the CPU quotas of its cgroup (v2)
    and of those above it, rounded down, as a part of a core keeps no worker busy.

    Args:
        cgroups: Mount point of the cgroup tree.
        proc: Mount point of process information.
    """
    return max(1, math.floor(min(count_cores(), _quota(cgroups, proc))))


def _quota(cgroups: Path, proc: Path) -> float:
    """Returns the cores by quota, infinity without one."""
    found = [math.inf]
    for folder in _folders(cgroups, proc):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            found.append(int(quota) / int(period))
    return min(found)


def _folders(cgroups: Path, proc: Path) -> list[Path]:
    """Returns the cgroup of this process and those above it; all their quotas hold."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    # The line of version 2 is "0::/path".
    paths = [line[3:].strip("/") for line in lines if line.startswith("0::")]
    own = [cgroups / path for path in paths]
    return [f for folder in own for f in (folder, *folder.parents)
            if f == cgroups or cgroups in f.parents]  # fmt: skip
