"""The time of checkpoints."""

from __future__ import annotations

from typing import final

from shoal.engine.transport.messages.controller_to_server import AskCheckpoint
from shoal.plan.often import Often

SNAPSHOT_S = 5.0  # between snapshots of workers, which are taken in turn


@final
class CheckpointSchedule:
    """Decides when a checkpoint is requested, and with what.

    Regularly it comes with the optimizer's state of one more worker, which becomes part
    of the next checkpoint.

    Args:
        often: Interval of checkpoints.
        now: Seconds of the controller's clock.
    """

    def __init__(self, often: Often, now: float) -> None:
        self._often = often
        self._requested = self._snapshot_requested = now
        self._samples = 0

    def count(self, samples: int) -> None:
        """Counts samples that were committed."""
        self._samples += samples

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint must be requested now."""
        return self._often.is_due(self._samples, self._requested)

    def request(self, now: float) -> AskCheckpoint:
        """Returns the request; the interval begins again.

        Args:
            now: Seconds of the controller's clock.
        """
        self._requested, self._samples = now, 0
        wants_snapshot = now - self._snapshot_requested >= SNAPSHOT_S
        if wants_snapshot:
            self._snapshot_requested = now
        return AskCheckpoint(wants_snapshot=wants_snapshot)
