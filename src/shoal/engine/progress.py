"""What a user sees while a run goes on: one live line an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.engine.observer import Record
from shoal.plan import Plan


class Progress:
    """Shows a run as `verbose` asks: 0 nothing, 1 a live line, 2 a line an epoch.

    Args:
        plan: Of the run.
        verbose: As in Keras.
    """

    def __init__(self, plan: Plan, verbose: int) -> None:
        self._plan, self._verbose = plan, verbose

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Tells what a user should know at once."""

    def epoch_begin(self, epoch: int) -> None:
        """Starts a line."""

    def update(
        self, records: list[Record], samples: int, logs: Mapping[str, Any]
    ) -> None:
        """Brings the line up to date."""

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Ends the line."""
        if self._verbose:
            text = " - ".join(f"{k}: {v:.4f}" for k, v in logs.items())
            print(f"Epoch {epoch + 1}/{self._plan.epochs} - {text}", flush=True)  # noqa: T201

    def close(self) -> None:
        """Leaves the terminal as it was."""
