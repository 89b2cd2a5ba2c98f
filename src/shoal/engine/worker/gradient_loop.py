"""Workers that exchange gradients: all take every step together, each for itself.

The mean of a step comes from the server; or workers make it among themselves, and the
server only says whether it counts (`native_allreduce.py`,
`shared_memory_allreduce.py`).
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, final

from shoal.backends.base import Clock
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages import SURE, VOID
from shoal.engine.worker.client import ServerClient, Weight
from shoal.engine.worker.loop import Loop
from shoal.engine.worker.native_allreduce import NativeAllReduce
from shoal.engine.worker.shared_memory_allreduce import (
    SharedMemoryAllReduce,
    SharedMemoryAllReduceSpec,
)
from shoal.engine.worker.spec import WorkerSpec
from shoal.vectors import Vector


class Part(NamedTuple):
    """A worker's part of a step.

    Args:
        piece: Its samples.
        gradient: The sum over them.
        statistics: After them.
        weight: Of the gradient.
        nan_status: See `nan_guard`.
    """

    piece: Piece
    gradient: Vector
    statistics: Vector
    weight: Weight
    nan_status: int


@final
class GradientLoop(Loop):
    """See `Loop`."""

    exchanges_gradients = True

    def __init__(self, spec: WorkerSpec, client: ServerClient) -> None:
        super().__init__(spec, client)
        size = client.local.size
        self._collective: NativeAllReduce | None = None
        self._shared: SharedMemoryAllReduce | None = None
        self._data: Any = None  # of the step, where it may have to be computed anew
        if isinstance(spec.collective, SharedMemoryAllReduceSpec):
            who = client.rank, client.incarnation
            self._shared = SharedMemoryAllReduce(spec.collective, size, *who)
        elif spec.collective is not None:
            self._collective = NativeAllReduce(spec.collective, size)

    def close(self) -> None:
        """Leaves the group as well."""
        for collective in (self._collective, self._shared):
            if collective is not None:
                collective.close()
        super().close()

    def _publish(self) -> None:
        """Sends the whole state: all of a gang have the same."""
        vector, statistics = self._backend.read()
        self._client.publish(vector, statistics, self._snapshot())

    def _turn(self) -> None:
        """One gradient, averaged over all workers, applied by each."""
        client, clock = self._client, self._clock()
        piece = client.progress.pieces.popleft()
        part = (self._nothing if self._is_void([piece]) else self._learn)(piece)
        self._look()
        if self._has_shared_memory():
            mean = self._mean_in_shared_memory(part)
        else:
            mean = self._mean_of_group(part.gradient, part.weight.mass)
            mean = self._push(part, mean)
        while mean is None and not client.progress.is_done:
            # Somebody was lost: the sums that the loss is scaled by are smaller now.
            part = self._learn_again(part, client.progress.sums)
            mean = self._push(part)
        if mean is not None:
            self._step(mean, part, clock)

    def _push(self, part: Part, mean: Vector | None = None) -> Vector | None:
        """Exchanges with the server; see `ServerClient.push_gradient`."""
        return self._client.push_gradient(
            part.gradient, part.statistics, [part.piece], part.weight,
            self._told(part), mean,
        )  # fmt: skip

    def _told(self, part: Part) -> int:
        """What others are to know of doubts."""
        is_told = self._nan_guard.is_shared or part.nan_status == VOID
        return part.nan_status if is_told else SURE

    @property
    def _room(self) -> Vector:
        """Where a gradient lies best."""
        room = None if self._shared is None else self._shared.room
        return self._client.buffers.message if room is None else room

    def _learn(self, piece: Piece) -> Part:
        """Computes this worker's part of a step."""
        began = time.perf_counter()
        data = self._reader.pieces([piece])
        self._client.times.data_s += time.perf_counter() - began
        self._expect(piece.rows, data)
        self.steps += 1
        if self._compute.is_scaled:
            self._data = data
        return self._computed(piece, data, piece.gang, self._room)

    def _learn_again(self, part: Part, sums: tuple[float, ...]) -> Part:
        """Computes a part anew, for a step that has become smaller."""
        backend, client = self._backend, self._client
        backend.undo()
        backend.set_statistics(client.statistics)
        [rows] = sums
        room = client.buffers.message  # it goes to the server, whatever the group does
        return self._computed(part.piece, self._data, int(rows), room)

    def _computed(self, piece: Piece, data: Any, gang_rows: int, out: Vector) -> Part:
        """A part of a step of so many rows."""
        client, began = self._client, time.perf_counter()
        with self._pacing(piece.rows, data):
            mass = self._backend.gradient(data, gang_rows, out)
            self._backend.take_metrics(client.metrics, add=False)
        statistics = self._backend.statistics()
        client.times.compute_s += time.perf_counter() - began
        nan_status = self._nan_guard.nan_status(out, statistics)
        if nan_status:
            statistics = self._nan_guard.cleaned(statistics)
        rows = float(piece.rows)
        weight = Weight(mass, rows)
        if self._compute.is_scaled:
            weight = weight._replace(own=(rows,), assumed=(float(gang_rows),))
        return Part(piece, out, statistics, weight, nan_status)

    def _nothing(self, piece: Piece) -> Part:
        """A part of a step whose samples are left out, by all of the gang."""
        gradient = self._room
        gradient[:] = self._client.metrics[:] = 0.0
        self.steps += 1
        self._backend.skip()
        statistics = self._nan_guard.cleaned(self._backend.statistics())
        return Part(piece, gradient, statistics, Weight(0.0, 0.0), VOID)

    def _step(self, mean: Vector, part: Part, clock: Clock) -> None:
        """Takes a step that counts."""
        self._backend.set_statistics(self._client.statistics)
        self._apply(mean, clock, part.piece, part.nan_status)

    def _apply(
        self, mean: Vector, clock: Clock, piece: Piece | None, nan_status: int
    ) -> None:
        """The gang's step, as it came or with care."""
        if nan_status or self._client.progress.nan_status:
            self._nan_guard.apply(mean, clock, piece, self.steps, nan_status)
        else:
            self._backend.apply(mean, clock)

    def _merged(self, clock: Clock) -> None:
        """Takes a step of which all rows were those of others."""
        client = self._client
        self._backend.set_statistics(client.statistics)
        self._backend.skip()
        self._apply(client.buffers.reply, clock, None, SURE)

    # -------------------------------------------------------------- in groups

    def _mean_of_group(self, gradient: Vector, mass: float) -> Vector | None:
        """What the workers found among themselves, None where they did not."""
        client, group = self._client, self._client.progress.group
        if self._collective is None or group is None:
            return None
        began, lineage = time.perf_counter(), client.progress.lineage
        mean = self._collective.mean(group, lineage, client.rank, gradient, mass)
        client.times.exchange_s += time.perf_counter() - began
        return mean

    def _has_shared_memory(self) -> bool:
        """Whether the next step is one of a group that shares memory."""
        progress = self._client.progress
        if self._shared is None or progress.group is None:
            return False
        return self._shared.enter(progress.group, progress.lineage)

    def _mean_in_shared_memory(self, part: Part) -> Vector | None:
        """Lays the gradient down, says so, and makes the mean once all have.

        Returns:
            The mean; None where the run is over, or the gradient has to be computed for
            other sums.
        """
        client, shared = self._client, self._shared
        if shared is None:
            raise RuntimeError("a step in shared memory without any")
        began = time.perf_counter()
        shared.put(part.gradient, part.weight.mass)
        # The server first: what others could have read was told.
        told = self._told(part)
        client.push_shared(part.statistics, [part.piece], part.weight, told)
        shared.call()
        mean = shared.mean() if shared.wait(client.line_to_server) else None
        counts = client.confirm()
        client.times.exchange_s += time.perf_counter() - began
        if client.progress.is_done or client.progress.sums:
            return None
        if not counts:  # not all of the round were of the group: the server makes it
            return self._push(part)
        return shared.mean() if mean is None else mean
