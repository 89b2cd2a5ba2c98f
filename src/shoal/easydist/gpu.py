"""How busy the GPUs of this machine are while a run trains, as nvidia-smi tells."""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, final

TOOL = "nvidia-smi"
QUERY = ("index", "name", "utilization.gpu", "memory.used", "memory.total")
HEADER = "gpu,name,busy_percent,used_mib,total_mib\n"
PACE_S = 2.0
LIMIT_S = 10.0


class GpuUse(NamedTuple):
    """One GPU over a run.

    Args:
        number: As nvidia-smi counts.
        name: Of the model.
        mean_percent: Mean share of time in which it computed.
        peak_mib: Most memory in use at a look, of all programs.
        total_mib: Memory it has.
    """

    number: int
    name: str
    mean_percent: float
    peak_mib: int
    total_mib: int


@final
class GpuWatch:
    """Looks every two seconds, and writes what it sees into a file.

    Args:
        path: Of the file; it is made when there is a GPU.

    Example:
        >>> with GpuWatch(Path("gpu.csv")) as watch:
        ...     pass
        >>> isinstance(watch.uses(), list)
        True
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._tool = shutil.which(TOOL)
        self._thread: threading.Thread | None = None

    def uses(self) -> list[GpuUse]:
        """What was seen so far, one entry a GPU; none without a GPU."""
        if not self._path.is_file():
            return []
        seen: dict[int, list[tuple[str, float, int, int]]] = {}
        for line in self._path.read_text().splitlines():
            with suppress(ValueError):  # the header; "[N/A]" of a GPU without counters
                index, name, busy, used, total = line.split(",")
                row = (name.strip(), float(busy), int(used), int(total))
                seen.setdefault(int(index), []).append(row)
        return [
            GpuUse(
                number=index,
                name=rows[0][0],
                mean_percent=sum(row[1] for row in rows) / len(rows),
                peak_mib=max(row[2] for row in rows),
                total_mib=rows[0][3],
            )
            for index, rows in sorted(seen.items())
        ]

    def __enter__(self) -> Self:
        if self._tool is not None:
            self._thread = threading.Thread(
                target=self._watch, args=(self._tool,), name="shoal-gpus", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(LIMIT_S)

    def _watch(self, tool: str) -> None:
        command = [tool, f"--query-gpu={','.join(QUERY)}"]
        command.append("--format=csv,noheader,nounits")
        with suppress(OSError, subprocess.SubprocessError):
            while not self._over.is_set():
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=LIMIT_S
                )
                is_new = not self._path.is_file()
                with self._path.open("a") as file:
                    file.write((HEADER if is_new else "") + done.stdout)
                self._over.wait(PACE_S)
