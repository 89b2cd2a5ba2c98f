"""Workers that exchange gradients: all take every step, each on its own weights.

`collective.py` obtains the mean of a step. A worker without a partner needs none: it
takes windows of steps, as one that exchanges weights, until another one joins.
"""

from __future__ import annotations

from collections import deque
from typing import Any, final

import numpy as np

from shoal.backends.base import Clock
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_to_server import Compiling, NanStatus
from shoal.engine.worker.client import ServerClient, Weight
from shoal.engine.worker.collective import Collective, StepPart, through_server
from shoal.engine.worker.loop import Loop
from shoal.engine.worker.spec import WorkerSpec
from shoal.vectors import Vector


@final
class GradientLoop(Loop):
    """See `Loop`."""

    exchanges_gradients = True

    def __init__(self, spec: WorkerSpec, client: ServerClient) -> None:
        super().__init__(spec, client)
        self._collective: Collective = spec.collective.open(client)
        self._data: Any = None  # of the step, in case it has to be computed again
        self._has_exchanged = self._begins_with_gradients

    def close(self) -> None:
        """Also leaves the group."""
        self._collective.close()
        super().close()

    def _publish(self) -> None:
        """Sends the whole state, which is the same on all workers."""
        vector, statistics = self._backend.read()
        self._client.publish(vector, statistics, self._snapshot())

    # --------------------------------------------------------- without a partner

    @property
    def _begins_with_gradients(self) -> bool:
        return not self._spec.alone_steps or self._client.progress.workers > 1

    @property
    def _is_alone(self) -> bool:
        """Whether the next steps need no exchange.

        The server counts workers that compile, too. One of them takes part once this
        one has published its weights, and the answer to that tells the new number: no
        worker can take part in a step that was computed alone.
        """
        progress = self._client.progress
        piece = progress.pieces[0]
        is_whole = piece.rows == piece.step_rows  # not a share of a lost partner's step
        return bool(self._spec.alone_steps) and progress.workers == 1 and is_whole

    def _turn_alone(self) -> None:
        """Takes a window of steps, of which the server is told."""
        client, clock = self._client, self._clock()
        pieces = whole_steps(
            client.progress.pieces, self._compute.batch_size, self._spec.alone_steps
        )
        client.metrics[:] = 0.0
        turned = self._take_steps(pieces, clock)
        first, self.steps = self.steps + 1, self.steps + len(pieces)
        turned = None if turned is None else first + turned
        self._nan_guard.is_harmed(pieces, (first, self.steps), turned)
        self._look()
        client.push_alone(self._backend.statistics(), pieces)
        self._backend.set_statistics(client.statistics)

    def _prepare_exchange(self) -> None:
        """Compiles the programs of an exchange, before the first one."""
        if self._has_exchanged:
            return
        self._has_exchanged = True
        self._client.tell(Compiling())
        size, order = self._compute.batch_size, self._spec.order
        rows = min(size, order.rows_of(order.first_epoch))
        data = self._reader.first(np.arange(rows) % order.sample_rows)
        self._backend.warm_up(data, is_gradient=True)

    # ----------------------------------------------------------- with partners

    def _turn(self) -> None:
        """Computes one gradient; each worker applies the mean of all."""
        if self._is_alone:
            self._turn_alone()
            return
        self._prepare_exchange()
        client, clock = self._client, self._clock()
        piece = client.progress.pieces.popleft()
        part = (self._nothing if self._is_void([piece]) else self._learn)(piece)
        self._look()
        mean = self._collective.mean(client, part)
        while mean is None and not client.progress.is_done:
            # A worker was lost: the sums that the loss is scaled by are smaller now.
            part = self._learn_again(part, client.progress.sums)
            mean = through_server(client, part)
        if mean is not None:
            self._step(mean, part, clock)

    def _told(self, nan_status: NanStatus) -> NanStatus:
        """Returns the status that other workers are told."""
        is_told = self._nan_guard.is_shared or nan_status == NanStatus.LEFT_OUT
        return nan_status if is_told else NanStatus.FINITE

    @property
    def _room(self) -> Vector:
        """Best memory for a gradient."""
        room = self._collective.room
        return self._client.buffers.message if room is None else room

    def _learn(self, piece: Piece) -> StepPart:
        """Computes this worker's part of a step."""
        began = self._environment.clock()
        data = self._reader.pieces([piece])
        self._client.times.data_s += self._environment.clock() - began
        self._expect(piece.rows, data, is_gradient=True)
        self.steps += 1
        if self._compute.is_scaled:
            # The gradient is computed anew if the step gets fewer rows: its loss is a
            # sum, and was scaled by the rows of all workers (decision 3).
            self._data = data
        return self._computed(piece, data, piece.step_rows, self._room)

    def _learn_again(self, part: StepPart, sums: tuple[float, ...]) -> StepPart:
        """Computes a part again, for a step that has become smaller."""
        backend, client = self._backend, self._client
        # Random numbers, counters and moving averages are those of before the step.
        backend.undo()
        backend.set_statistics(client.statistics)
        [rows] = sums
        room = client.buffers.message  # it goes to the server, not to the group
        return self._computed(part.piece, self._data, int(rows), room)

    def _computed(
        self, piece: Piece, data: Any, step_rows: int, out: Vector
    ) -> StepPart:
        """Returns a part of a step with the given total of rows."""
        client, began = self._client, self._environment.clock()
        with self._pacing(piece.rows, data, is_gradient=True):
            mass = self._backend.gradient(data, step_rows, out)
            self._backend.take_metrics(client.metrics, add=False)
        statistics = self._backend.statistics()
        client.times.compute_s += self._environment.clock() - began
        nan_status = self._nan_guard.nan_status(out, statistics)
        if nan_status:
            statistics = self._nan_guard.cleaned(statistics)
        rows = float(piece.rows)
        weight = Weight(mass, rows)
        if self._compute.is_scaled:
            weight = weight._replace(own=(rows,), assumed=(float(step_rows),))
        told = self._told(nan_status)
        return StepPart(piece, out, statistics, weight, nan_status, told)

    def _nothing(self, piece: Piece) -> StepPart:
        """Returns a part whose samples are left out by all workers."""
        gradient = self._room
        gradient[:] = self._client.metrics[:] = 0.0
        self.steps += 1
        self._backend.skip()
        statistics = self._nan_guard.cleaned(self._backend.statistics())
        left_out = NanStatus.LEFT_OUT
        return StepPart(
            piece, gradient, statistics, Weight(0.0, 0.0), left_out, left_out
        )

    def _step(self, mean: Vector, part: StepPart, clock: Clock) -> None:
        """Takes a step that counts."""
        self._backend.set_statistics(self._client.statistics)
        self._apply(mean, clock, part.piece, part.nan_status)

    def _apply(
        self, mean: Vector, clock: Clock, piece: Piece | None, nan_status: NanStatus
    ) -> None:
        """Takes the step, with the NaN guard if a number is not finite."""
        if nan_status or self._client.progress.nan_status:
            self._nan_guard.apply(mean, clock, piece, self.steps, nan_status)
        else:
            self._backend.apply(mean, clock)

    def _merged(self, clock: Clock) -> None:
        """Takes a step in which this worker had no rows."""
        self._prepare_exchange()
        client = self._client
        self._backend.set_statistics(client.statistics)
        self._backend.skip()
        self._apply(client.buffers.reply, clock, None, NanStatus.FINITE)


def whole_steps(pieces: deque[Piece], batch: int, most: int) -> list[Piece]:
    """Takes whole steps of one size and epoch from the leases, or one short step.

    Args:
        pieces: The leases, each a step; what is taken leaves them.
        batch: Rows of a full step.
        most: Steps to take at most.

    Example:
        >>> leases = deque([Piece(0, 0, 4, 4), Piece(0, 4, 8, 4), Piece(0, 8, 9, 1)])
        >>> [piece.rows for piece in whole_steps(leases, 4, 10)], len(leases)
        ([4, 4], 1)
        >>> [piece.rows for piece in whole_steps(leases, 4, 10)]
        [1]
    """
    first = pieces.popleft()
    found = [first]
    while pieces and first.rows == batch and len(found) < most:
        piece = pieces[0]
        is_like = (piece.epoch, piece.rows, piece.step_rows) == (
            first.epoch, batch, batch,
        )  # fmt: skip
        if not is_like:
            break
        found.append(pieces.popleft())
    return found
