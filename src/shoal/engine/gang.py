"""Workers that exchange gradients: all take every step together, each for itself.

The mean of a step comes from the server; or workers make it among themselves, and the
server only says whether it counts (`lane.py`, `shared_lane.py`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, final

from shoal.backends.base import Clock
from shoal.engine.complaints import SURE, VOID
from shoal.engine.lane import Lane
from shoal.engine.ledger import Piece
from shoal.engine.loop import Loop
from shoal.engine.member import Member
from shoal.engine.shared_lane import SharedLane, SharedLaneSpec
from shoal.vectors import Vector

if TYPE_CHECKING:
    from shoal.engine.worker import WorkerSpec


class Part(NamedTuple):
    """A worker's part of a step.

    Args:
        gradient: The sum over its samples.
        piece: They.
        mass: What the gradient weighs.
        doubt: See `guard`.
    """

    gradient: Vector
    piece: Piece
    mass: float
    doubt: int


@final
class Gang(Loop):
    """See `Loop`."""

    is_gang = True

    def __init__(self, spec: WorkerSpec, member: Member) -> None:
        super().__init__(spec, member)
        size = member.local.size
        self._lane: Lane | None = None
        self._shared: SharedLane | None = None
        if isinstance(spec.lane, SharedLaneSpec):
            self._shared = SharedLane(spec.lane, size)
        elif spec.lane is not None:
            self._lane = Lane(spec.lane, size)

    def close(self) -> None:
        """Leaves the group as well."""
        for lane in (self._lane, self._shared):
            if lane is not None:
                lane.close()
        super().close()

    def _publish(self) -> None:
        """Sends the whole state: all of a gang have the same."""
        vector, statistics = self._backend.read()
        self._member.publish(vector, statistics, self._backend.snapshot())

    def _turn(self) -> None:
        """One gradient, averaged over all workers, applied by each."""
        member = self._member
        piece = member.progress.pieces.popleft()
        if self._is_void([piece]):
            self._pass(piece)
            return
        clock, part = self._clock(), self._gradient(piece)
        told = part.doubt if self._guard.is_shared else SURE
        statistics = self._backend.statistics()
        if part.doubt:
            statistics = self._guard.cleaned(statistics)
        self._look()
        if self._has_shared_memory():
            self._step_in_shared_memory(part, statistics, clock, told)
            return
        mean = self._mean_of_group(part.gradient, part.mass)
        mean = member.push_gradient(
            part.gradient, statistics, [piece], part.mass, told, mean
        )
        self._step(mean, part, clock)

    def _gradient(self, piece: Piece) -> Part:
        """Computes this worker's part of a step."""
        member, times = self._member, self._member.times
        self._expect(piece.rows)
        began = time.perf_counter()
        data = self._reader.pieces([piece])
        read = time.perf_counter()
        room = None if self._shared is None else self._shared.room
        gradient = member.bulk.message if room is None else room
        with self._pacing(piece.rows):
            mass = self._backend.gradient(data, piece.gang, gradient)
            self._backend.take_metrics(member.metrics, add=False)
        statistics = self._backend.statistics()
        times.data_s += read - began
        times.compute_s += time.perf_counter() - read
        self.steps += 1
        return Part(gradient, piece, mass, self._guard.doubt(gradient, statistics))

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

    def _pass(self, piece: Piece) -> None:
        """A step of the gang whose samples are left out, by all of it."""
        member, clock = self._member, self._clock()
        member.bulk.message[:] = member.metrics[:] = 0.0
        self.steps += 1
        self._backend.skip()
        part = Part(member.bulk.message, piece, 0.0, VOID)
        statistics = self._backend.statistics()
        mean = member.push_gradient(part.gradient, statistics, [piece], 0.0, VOID)
        self._step(mean, part, clock)

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
        member, group = self._member, self._member.progress.group
        if self._shared is None or group is None:
            return False
        lineage = member.progress.lineage
        return self._shared.enter(group, lineage, member.rank, member.busy)

    def _step_in_shared_memory(
        self, part: Part, statistics: Vector, clock: Clock, told: int
    ) -> None:
        """Lays the gradient down, says so, and makes the mean once all have."""
        member, shared = self._member, self._shared
        if shared is None:
            raise RuntimeError("a step in shared memory without any")
        began, piece = time.perf_counter(), part.piece
        shared.put(part.gradient, part.mass)
        # The server first: what others have read was told.
        member.push_shared(statistics, [piece], part.mass, told)
        shared.call()
        is_whole = shared.wait(member.line_to_server)
        mean = shared.mean() if is_whole else None
        counts = member.confirm()
        member.times.exchange_s += time.perf_counter() - began
        if not counts:  # not all of the round were of the group: the server makes it
            mean = member.push_gradient(
                part.gradient, statistics, [piece], part.mass, told
            )
        elif mean is None:
            mean = shared.mean()
        self._step(mean, part, clock)
