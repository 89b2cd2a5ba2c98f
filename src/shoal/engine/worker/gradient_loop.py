"""Workers that exchange gradients: all take every step together, each for itself.

The mean of a step comes from the server; or workers make it among themselves, and the
server only says whether it counts (`lane.py`, `shared_lane.py`).
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
        doubt: See `guard`.
    """

    piece: Piece
    gradient: Vector
    statistics: Vector
    weight: Weight
    doubt: int


@final
class GradientLoop(Loop):
    """See `Loop`."""

    exchanges_gradients = True

    def __init__(self, spec: WorkerSpec, member: ServerClient) -> None:
        super().__init__(spec, member)
        size = member.local.size
        self._lane: NativeAllReduce | None = None
        self._shared: SharedMemoryAllReduce | None = None
        self._data: Any = None  # of the step, where it may have to be computed anew
        if isinstance(spec.lane, SharedMemoryAllReduceSpec):
            who = member.rank, member.incarnation
            self._shared = SharedMemoryAllReduce(spec.lane, size, *who)
        elif spec.lane is not None:
            self._lane = NativeAllReduce(spec.lane, size)

    def close(self) -> None:
        """Leaves the group as well."""
        for lane in (self._lane, self._shared):
            if lane is not None:
                lane.close()
        super().close()

    def _publish(self) -> None:
        """Sends the whole state: all of a gang have the same."""
        vector, statistics = self._backend.read()
        self._member.publish(vector, statistics, self._snapshot())

    def _turn(self) -> None:
        """One gradient, averaged over all workers, applied by each."""
        member, clock = self._member, self._clock()
        piece = member.progress.pieces.popleft()
        part = (self._nothing if self._is_void([piece]) else self._learn)(piece)
        self._look()
        if self._has_shared_memory():
            mean = self._mean_in_shared_memory(part)
        else:
            mean = self._mean_of_group(part.gradient, part.weight.mass)
            mean = self._push(part, mean)
        while mean is None and not member.progress.is_done:
            # Somebody was lost: the sums that the loss is scaled by are smaller now.
            part = self._learn_again(part, member.progress.sums)
            mean = self._push(part)
        if mean is not None:
            self._step(mean, part, clock)

    def _push(self, part: Part, mean: Vector | None = None) -> Vector | None:
        """Exchanges with the server; returns the mean, as `ServerClient.push_gradient`."""
        return self._member.push_gradient(
            part.gradient, part.statistics, [part.piece], part.weight,
            self._told(part), mean,
        )  # fmt: skip

    def _told(self, part: Part) -> int:
        """What others are to know of doubts."""
        is_told = self._guard.is_shared or part.doubt == VOID
        return part.doubt if is_told else SURE

    @property
    def _room(self) -> Vector:
        """Where a gradient lies best."""
        room = None if self._shared is None else self._shared.room
        return self._member.bulk.message if room is None else room

    def _learn(self, piece: Piece) -> Part:
        """Computes this worker's part of a step."""
        began = time.perf_counter()
        data = self._reader.pieces([piece])
        self._member.times.data_s += time.perf_counter() - began
        self._expect(piece.rows, data)
        self.steps += 1
        if self._compute.is_scaled:
            self._data = data
        return self._computed(piece, data, piece.gang, self._room)

    def _learn_again(self, part: Part, sums: tuple[float, ...]) -> Part:
        """Computes a part anew, for a step that has become smaller."""
        backend, member = self._backend, self._member
        backend.undo()
        backend.set_statistics(member.statistics)
        [rows] = sums
        room = member.bulk.message  # it goes to the server, whatever the group does
        return self._computed(part.piece, self._data, int(rows), room)

    def _computed(self, piece: Piece, data: Any, gang_rows: int, out: Vector) -> Part:
        """A part of a step of so many rows."""
        member, began = self._member, time.perf_counter()
        with self._pacing(piece.rows, data):
            mass = self._backend.gradient(data, gang_rows, out)
            self._backend.take_metrics(member.metrics, add=False)
        statistics = self._backend.statistics()
        member.times.compute_s += time.perf_counter() - began
        doubt = self._guard.doubt(out, statistics)
        if doubt:
            statistics = self._guard.cleaned(statistics)
        rows = float(piece.rows)
        weight = Weight(mass, rows)
        if self._compute.is_scaled:
            weight = weight._replace(own=(rows,), assumed=(float(gang_rows),))
        return Part(piece, out, statistics, weight, doubt)

    def _nothing(self, piece: Piece) -> Part:
        """A part of a step whose samples are left out, by all of the gang."""
        gradient = self._room
        gradient[:] = self._member.metrics[:] = 0.0
        self.steps += 1
        self._backend.skip()
        statistics = self._guard.cleaned(self._backend.statistics())
        return Part(piece, gradient, statistics, Weight(0.0, 0.0), VOID)

    def _step(self, mean: Vector, part: Part, clock: Clock) -> None:
        """Takes a step that counts."""
        self._backend.set_statistics(self._member.statistics)
        self._apply(mean, clock, part.piece, part.doubt)

    def _apply(
        self, mean: Vector, clock: Clock, piece: Piece | None, doubt: int
    ) -> None:
        """The gang's step, as it came or with care."""
        if doubt or self._member.progress.doubt:
            self._guard.apply(mean, clock, piece, self.steps, doubt)
        else:
            self._backend.apply(mean, clock)

    def _merged(self, clock: Clock) -> None:
        """Takes a step of which all rows were those of others."""
        member = self._member
        self._backend.set_statistics(member.statistics)
        self._backend.skip()
        self._apply(member.bulk.reply, clock, None, SURE)

    # -------------------------------------------------------------- in groups

    def _mean_of_group(self, gradient: Vector, mass: float) -> Vector | None:
        """What the workers found among themselves, None where they did not."""
        member, group = self._member, self._member.progress.group
        if self._lane is None or group is None:
            return None
        began, lineage = time.perf_counter(), member.progress.lineage
        mean = self._lane.mean(group, lineage, member.rank, gradient, mass)
        member.times.exchange_s += time.perf_counter() - began
        return mean

    def _has_shared_memory(self) -> bool:
        """Whether the next step is one of a group that shares memory."""
        progress = self._member.progress
        if self._shared is None or progress.group is None:
            return False
        return self._shared.enter(progress.group, progress.lineage)

    def _mean_in_shared_memory(self, part: Part) -> Vector | None:
        """Lays the gradient down, says so, and makes the mean once all have.

        Returns:
            The mean; None where the run is over, or the gradient has to be computed for
            other sums.
        """
        member, shared = self._member, self._shared
        if shared is None:
            raise RuntimeError("a step in shared memory without any")
        began = time.perf_counter()
        shared.put(part.gradient, part.weight.mass)
        # The server first: what others could have read was told.
        told = self._told(part)
        member.push_shared(part.statistics, [part.piece], part.weight, told)
        shared.call()
        mean = shared.mean() if shared.wait(member.line_to_server) else None
        counts = member.confirm()
        member.times.exchange_s += time.perf_counter() - began
        if member.progress.is_done or member.progress.sums:
            return None
        if not counts:  # not all of the round were of the group: the server makes it
            return self._push(part)
        return shared.mean() if mean is None else mean
