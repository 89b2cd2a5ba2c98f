"""Workers that exchange gradients: all take every step, each on its own weights.

`collective.py` obtains the mean of a step.
"""

from __future__ import annotations

from typing import Any, final

from shoal.backends.base import Clock
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_to_server import NanStatus
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

    def close(self) -> None:
        """Also leaves the group."""
        self._collective.close()
        super().close()

    def _publish(self) -> None:
        """Sends the whole state, which is the same on all workers."""
        vector, statistics = self._backend.read()
        self._client.publish(vector, statistics, self._snapshot())

    def _turn(self) -> None:
        """Computes one gradient; each worker applies the mean of all."""
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
        self._expect(piece.rows, data)
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
        with self._pacing(piece.rows, data):
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
        client = self._client
        self._backend.set_statistics(client.statistics)
        self._backend.skip()
        self._apply(client.buffers.reply, clock, None, NanStatus.FINITE)
