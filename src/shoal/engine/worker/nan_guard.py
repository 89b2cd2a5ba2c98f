"""A worker's guard against numbers that are not finite.

This file decides the action of one worker: before it pushes weights, and, under
gradient exchange, if a gradient of any worker was not finite. All workers then see
the same mean, have the same state, and therefore decide alike without a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.backends.base import Backend, Clock
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_to_server import NanStatus
from shoal.engine.worker.client import ServerClient
from shoal.engine.worker.nan_policy import (
    NanPolicy,
    is_finite,
    joined,
    report,
    suspects,
)
from shoal.engine.worker.reader import SampleReader
from shoal.vectors import Vector

Doubles = npt.NDArray[np.float64]

WORDS = {NanStatus.LOSS: "loss", NanStatus.GRADIENT: "gradient"}


class NonFinite(Exception):
    """This worker's numbers are not finite; the controller knows, and continues."""


@final
class NanGuard:
    """Checks one worker's numbers, and carries out the policy.

    Args:
        reaction: Policy of `on_nan`.
        client: Client of the server.
        backend: The worker's model.
        reader: The worker's data, to look for the cause.
        loss_at: Places of the loss among the sums of metrics.
        batch_size: Rows of a full step of this worker.
    """

    def __init__(
        self,
        reaction: NanPolicy,
        client: ServerClient,
        backend: Backend,
        reader: SampleReader,
        *,
        loss_at: Sequence[int],
        batch_size: int,
    ) -> None:
        self._reaction, self._client = reaction, client
        self._backend, self._reader = backend, reader
        self._loss_at, self._batch_size = list(loss_at), batch_size
        self._kept: tuple[Any, ...] | None = None
        self._is_done = False  # a warning is given once

    # -------------------------------------------------- weights, by windows

    def begin_window(self) -> None:
        """Prepares for the first step of a window, whose weights have been loaded."""
        if self._reaction.is_undone:
            self._kept = self._backend.keep()

    def is_harmed(
        self, pieces: Sequence[Piece], steps: tuple[int, int], turned: int | None
    ) -> bool:
        """Returns whether a window did harm and was undone.

        Args:
            pieces: Samples of the window that were trained on.
            steps: First and last step of the window, of the worker's own count.
            turned: The first step whose loss was not finite, None for none.

        Raises:
            NonFinite: The worker must stop here.
        """
        if self._is_done:
            return False
        what = self._found(*self._backend.read())
        if not what:
            return False
        what = what if turned is None else "loss"  # the first visible sign
        client = self._client
        was_fine = is_finite(client.local) and is_finite(client.statistics)
        if not self.is_shared:
            if was_fine:  # else the center brought it from another worker
                self._tell(what, pieces, steps, turned)
            self._is_done = True
            return False
        self._tell(what, pieces, steps, turned, is_lost=not was_fine)
        kept, self._kept = self._kept, None
        if kept is None:
            return False
        self._backend.revert(kept)
        client.metrics[:] = 0.0
        return True

    def _found(self, vector: Vector, statistics: Vector) -> str:
        """Returns which numbers are not finite, empty for none."""
        if not is_finite(vector):
            return "weights"
        if not is_finite(statistics):
            return "statistics"
        return "" if self._is_loss_finite() else "loss"

    def _is_loss_finite(self) -> bool:
        return bool(np.isfinite(self._client.metrics[self._loss_at]).all())

    # ------------------------------------------------- gradients, by steps

    def nan_status(self, gradient: Vector, statistics: Vector) -> NanStatus:
        """Returns the status of this worker's part of a step.

        An optimizer may cope with a gradient that is not finite: loss scaling relies on
        it. Nothing can repair a loss.
        """
        if self._is_done:
            return NanStatus.FINITE
        if not is_finite(gradient) or not is_finite(statistics):
            return NanStatus.GRADIENT
        return NanStatus.FINITE if self._is_loss_finite() else NanStatus.LOSS

    @property
    def is_shared(self) -> bool:
        """Whether all workers learn each other's status, to decide alike."""
        return self._reaction.is_undone or self._reaction.is_final

    def cleaned(self, statistics: Vector) -> Vector:
        """Returns statistics to send beside a gradient or loss that is not finite.

        It clears such metrics as well.
        """
        if not self.is_shared:
            return statistics
        if not np.isfinite(self._client.metrics).all():
            self._client.metrics[:] = 0.0
        return statistics if is_finite(statistics) else self._client.statistics

    def apply(
        self,
        mean: Vector,
        clock: Clock,
        piece: Piece | None,
        step: int,
        nan_status: NanStatus,
    ) -> None:
        """Takes a step, or skips it, in which some worker's numbers were not finite.

        Args:
            mean: The gradient.
            clock: Run clock for `Backend.apply`.
            piece: This worker's part, None when it had none.
            step: Number of this worker's step.
            nan_status: Status that this worker reported for its part.

        Raises:
            NonFinite: The worker must stop here.
        """
        backend, worst = (
            self._backend,
            max(nan_status, self._client.progress.nan_status),
        )
        if worst == NanStatus.LEFT_OUT:
            return
        was_fine = is_finite(backend.read()[0])
        kept = backend.keep()
        backend.apply(mean, clock)
        if worst == NanStatus.GRADIENT and all(map(is_finite, backend.read())):
            return  # the optimizer handles it
        mine = [] if piece is None or nan_status == NanStatus.FINITE else [piece]
        if not self.is_shared:
            if mine and was_fine:
                self._tell(WORDS[nan_status], mine, (step, step))
            self._is_done = True
            return
        backend.revert(kept)
        if mine:
            self._tell(WORDS[nan_status], mine, (step, step), is_lost=not was_fine)
        if self._reaction.is_final or not was_fine:
            raise NonFinite

    # -------------------------------------------------------------- telling

    def _tell(
        self,
        what: str,
        pieces: Sequence[Piece],
        steps: tuple[int, int],
        turned: int | None = None,
        *,
        is_lost: bool = False,
    ) -> None:
        """Reports after a look at the data.

        Args:
            what: Kind of the numbers that are not finite.
            pieces: See `report`.
            steps: See `report`.
            turned: The first step whose loss was not finite, None for unknown.
            is_lost: The weights were not finite before: there is nothing to restore.
        """
        runs = self._reader.runs(pieces, self._batch_size)
        found = joined(
            (suspects(data, self._reader.indices(part)), sum(p.rows for p in part))
            for part, data in runs
        )
        # A row may harm the weights, and show only in the loss of the next step.
        known = [] if turned is None else [turned]
        rows, size = sum(piece.rows for piece in pieces), self._batch_size
        if found.first >= 0 and -(-rows // size) == steps[1] - steps[0] + 1:
            known.append(steps[0] + found.first // size)
        if known:
            steps = min(known), min(known)
        is_over = is_lost and self._reaction.is_undone
        name = "stop" if is_over else self._reaction.name
        self._client.tell(report(name, what, pieces, steps, found))
        if self._reaction.is_final or is_over:
            raise NonFinite
