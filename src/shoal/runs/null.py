"""The run that keeps nothing: `run=False`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from shoal.runs.base import Run, Which
from shoal.runs.events import Event


@final
class NullRun(Run):
    """A run that keeps nothing but its summary, in memory: `run=False`.

    Args:
        name: The model's name.

    Example:
        >>> run = NullRun(name="higgs")
        >>> run.event("worker_lost", rank=0)
        >>> run.summary().workers_lost, run.log_path(0)
        (1, None)
    """

    def __init__(self, *, name: str = "run") -> None:
        super().__init__(run_id=name, name=name, url="", complain=None)

    @property
    def lost_events(self) -> int:
        """Returns 0: nothing was to be recorded."""
        return 0

    def log_path(self, rank: int) -> Path | None:
        """Returns None: output goes nowhere."""
        del rank

    def save_model(self, model: Any, which: Which) -> str | None:
        """Saves nothing."""
        del model, which

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def _keep(self, line: bytes, event: Event) -> None:
        """Keeps nothing."""
