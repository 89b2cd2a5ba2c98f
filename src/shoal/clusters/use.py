"""The load of this machine, measured regularly while a run trains.

A measurement never blocks: cores and memory are read at once, and `nvidia-smi` is a
process that is started in one turn and read in a later one. Without GPUs
it is not started.
"""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from typing import final

import psutil

from shoal.clusters.gpus import LIMIT_S, TOOL
from shoal.facts import GpuUse, NodeUse

FIRST_S, EVERY_S = 1.0, 5.0
MOST = 200
"""Pauses grow with a run: from the first to the usual one, and longer after so many
measurements. The records of a run of days stay small."""

QUERY = (
    "index", "name", "utilization.gpu", "memory.used", "memory.total",
    "temperature.gpu", "power.draw",
)  # fmt: skip
"""Names of the fields of `GpuUse` in `nvidia-smi`."""

MIB = 1 << 20


def parse_use(text: str) -> tuple[GpuUse, ...]:
    r"""Parses the output of `nvidia-smi`; other lines are ignored.

    Args:
        text: Lines of `QUERY`, without units.

    Example:
        >>> text = "0, NVIDIA H100, 97, 41200, 81559, [N/A], 402.51\nNo more devices\n"
        >>> [gpu] = parse_use(text)
        >>> gpu.name, gpu.percent, gpu.celsius
        ('NVIDIA H100', 97.0, None)
    """
    found: list[GpuUse] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(QUERY) and parts[0].isdecimal():
            number, name, *rest = parts
            found.append(GpuUse(int(number), name, *map(_amount, rest)))
    return tuple(found)


def _amount(word: str) -> float | None:
    """Returns a number, None for "[N/A]" and other missing values."""
    with suppress(ValueError):
        number = float(word)
        return number if math.isfinite(number) else None
    return None


@final
class UseSampler:
    """Measures this machine every few seconds, if `look` is called often.

    Args:
        claim: Among processes of a machine with the same claim, one measures, and
            another when that one has ended; empty for one that always does.
    """

    def __init__(self, claim: str = "") -> None:
        self._claim = claim
        self._socket: socket.socket | None = None
        self._tool = shutil.which(TOOL)
        self._asked: subprocess.Popen[str] | None = None
        self._began = self._looked = time.monotonic()
        self._spent = _cores_spent()

    def look(self) -> NodeUse | None:
        """Returns a measurement to report, most often None."""
        now = time.monotonic()
        if self._asked is not None:
            return self._hear(self._asked, now)
        if now - self._looked < self._pause_s(now - self._began):
            return None
        self._looked = now
        if not self._is_ours():
            return None
        if self._tool is None:
            return self._seen(())
        words = [self._tool, f"--query-gpu={','.join(QUERY)}"]
        try:
            self._asked = subprocess.Popen(
                [*words, "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            self._tool = None
            return self._seen(())
        return None

    @staticmethod
    def _pause_s(age_s: float) -> float:
        return max(FIRST_S, min(EVERY_S, age_s / 2), age_s / MOST)

    def _hear(self, asked: subprocess.Popen[str], now: float) -> NodeUse | None:
        """Returns the answer of `nvidia-smi` once it has ended; a hung one is given up.

        A pipe can hold the output for all GPUs of a machine.
        """
        if asked.poll() is None and now - self._looked < LIMIT_S:
            return None
        is_well = asked.poll() == 0 and asked.stdout is not None
        gpus = parse_use(asked.stdout.read()) if is_well and asked.stdout else ()
        self._end()
        if not gpus:
            self._tool = None
        return self._seen(gpus)

    def _seen(self, gpus: tuple[GpuUse, ...]) -> NodeUse:
        before, self._spent = self._spent, _cores_spent()
        busy, total = (now - was for now, was in zip(self._spent, before, strict=True))
        memory = psutil.virtual_memory()
        return NodeUse(
            percent=round(100.0 * busy / total, 1) if total > 0 else 0.0,
            memory_mib=(memory.total - memory.available) // MIB,
            total_mib=memory.total // MIB,
            gpus=gpus,
        )

    def _is_ours(self) -> bool:
        """Claims this machine, by a name of Linux that ends with its process."""
        if self._socket is None and self._claim:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                found.bind(f"\0shoal-{self._claim}")
            except (
                OSError,
                ValueError,
            ):  # another process has it, or this is not Linux
                found.close()
                return False
            self._socket = found
        return True

    def _end(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.kill()
            asked.wait()
            if asked.stdout is not None:
                asked.stdout.close()

    def close(self) -> None:
        """Ends the processes that it started."""
        self._end()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _cores_spent() -> tuple[float, float]:
    """Returns busy and total seconds of the cores since the machine began."""
    spent = psutil.cpu_times()._asdict()
    # Linux counts the time of guests twice.
    total = sum(s for name, s in spent.items() if not name.startswith("guest"))
    idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
    return total - idle, total
