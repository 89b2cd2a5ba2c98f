"""A worker's seat at the server: joins, pushes, asks for data, keeps its place.

This file decides what a worker says and what it keeps of the answers. It knows
the wire and the vectors' memory, but no model.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shoal.engine.coordination.instructions import Group
from shoal.engine.coordination.ledger import Piece
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.transport.buffers import aligned_bytes
from shoal.engine.transport.changes import STATISTICS, Changes
from shoal.engine.transport.client_connection import ServerAddress, fenced
from shoal.engine.transport.fields import whole
from shoal.engine.transport.messages.server_to_worker import (
    Again,
    Answer,
    Done,
    Refused,
    Repeat,
    RunState,
    reading,
)
from shoal.engine.transport.messages.worker_to_server import (
    Join,
    NanStatus,
    Need,
    Push,
    Ready,
    Snapshot,
)
from shoal.engine.transport.segments import (
    Spread,
    in_turn,
    pull_into,
    push_into,
    segments,
)
from shoal.engine.worker.request_channel import Answered, RequestChannel
from shoal.errors import PlanError
from shoal.strategies.base import Strategy
from shoal.vectors import Vector
from shoal.wire.frames import BadFrame


@dataclass
class Times:
    """Seconds of a window: computing, reading, waiting for work, exchanging."""

    compute_s: float = 0.0
    data_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0

    def take(self) -> tuple[float, ...]:
        """Returns what was measured and starts again."""
        spent = self.compute_s, self.data_s, self.wait_s, self.exchange_s
        self.compute_s = self.data_s = self.wait_s = self.exchange_s = 0.0
        return tuple(round(seconds, 6) for seconds in spent)


def _vector(size: int) -> Vector:
    return aligned_bytes(4 * size).view(np.float32)


class Weight(NamedTuple):
    """What a gradient weighs in the mean of a round; see `instructions.Push`.

    Args:
        mass: In the mean of gradients.
        rows: Samples that it was learnt from.
        own: Of each sum that its losses are scaled by.
        assumed: Those sums.
    """

    mass: float
    rows: float
    own: tuple[float, ...] = ()
    assumed: tuple[float, ...] = ()


@dataclass
class Progress:
    """What the last answer told."""

    version: int = 0
    lineage: int = 0
    clock: int = 0
    workers: int = 1
    learning_rate: float | None = None
    is_done: bool = False
    wants_snapshot: bool = False
    nan_status: int = NanStatus.FINITE
    group: Group | None = None
    sums: tuple[float, ...] = ()
    """That a message has to be computed for, which was told "again"."""
    pieces: deque[Piece] = field(default_factory=deque[Piece])


class ServerClient(RequestChannel):
    """A worker at its server: every question waits for its answer.

    But early pushes, and those of a gang that shares memory, whose answers are taken
    later.

    Args:
        seat: Where and as whom to join.
        strategy: Whose `push` and `pull` run here.
        is_early: Whether it may `push_early`.
        environment: Time, connections and threads.
        spread: How messages are written and replies taken in.

    Attributes:
        metrics: Sums of metric state since the last push.
        optimizer: Another worker's optimizer state, empty where there was none.
        changes: What callbacks changed, and this worker has not taken in yet.

    Raises:
        Fenced: The server has another model, or gave the place to another.
        BadFrame: The server says what no server of ours says.
    """

    def __init__(
        self,
        seat: ServerAddress,
        strategy: Strategy,
        environment: Environment = SYSTEM,
        *,
        is_early: bool = False,
        spread: Spread = in_turn,
    ) -> None:
        super().__init__(seat, strategy, environment)
        self.progress, self.times = Progress(), Times()
        self._sizes = seat.sizes
        self.changes = Changes()
        self._sequence = 0
        message = Join(
            digest=seat.sizes.digest,
            metrics=seat.sizes.metrics,
            hint=seat.hint,
            node=seat.node,
            pid=os.getpid(),
            token=seat.token,
        )
        welcome, vector, statistics, self.optimizer = self._join(message)
        self._heed(welcome.state)
        size, count = seat.sizes.vector, seat.sizes.statistics
        self.local = _vector(size)
        has_anchor = is_early or strategy.needs_anchor
        self._anchor = _vector(size) if has_anchor else None
        self._pushed = _vector(size) if is_early else None
        self._pushed_statistics = np.zeros(count, np.float32)
        self._spare: Vector | None = None
        self.statistics = statistics.copy()
        self._adopt(vector)
        self.metrics = np.zeros(seat.sizes.metrics, np.float64)
        self._spread = spread

    # ---------------------------------------------------------------- answers

    def _heed(self, state: RunState) -> None:
        """Keeps what every answer tells of the run."""
        progress, rate = self.progress, state.learning_rate
        progress.version, progress.lineage = state.version, state.lineage
        progress.clock, progress.workers = state.clock, state.workers
        progress.learning_rate = None if rate is None else float(rate)
        progress.is_done = progress.wants_snapshot = False
        progress.nan_status, progress.group, progress.sums = 0, None, ()

    def _answer(
        self,
        message: Need | Ready | Push | Snapshot,
        *,
        has_vectors: bool = False,
        blob: bytes = b"",
    ) -> Answered:
        """Asks and waits for an answer; vectors are then in `self.buffers`."""
        if self.has_early:
            raise RuntimeError(f"{message.kind} before the early answer was taken")
        return self._ask(message, has_vectors=has_vectors, blob=blob)

    def _take(self, answered: Answered) -> tuple[Answer, bytes]:
        """Keeps what the answer to a push, or to a worker without data, tells.

        Returns:
            The answer, and the optimizer's state that came with it.

        Raises:
            BadFrame: It is another answer.
            Fenced: This worker is not wanted any more.
        """
        message, body = answered
        if isinstance(message, Refused):
            raise fenced(message)
        self._heed(message.state)
        if not isinstance(message, Answer):
            raise BadFrame(
                f"the server's answer is {message.kind!r}, where data or the end of "
                "the run was expected. See whether all machines have the same version "
                "of Shoal."
            )
        progress = self.progress
        progress.is_done = isinstance(message, Done)
        progress.wants_snapshot = message.wants_snapshot
        progress.nan_status = message.nan_status
        progress.group, progress.sums = message.group, message.sums
        if isinstance(message, Repeat):
            progress.pieces.clear()  # it tells of all there are
        progress.pieces.extend(message.pieces)
        end = len(body)
        if message.changes:
            with reading(message.kind):
                end -= whole(message.changes, len(body) + 1)
                changes = Changes.read(bytes(body[end:]))
            if message.has_vectors:
                changes = changes.without(STATISTICS)  # the reply has them
            self.changes.absorb(changes)
        if message.has_vectors:
            self.statistics[:] = self.buffers.reply_statistics
        found = bytes(body[:end]) if message.body == "snapshot" else b""
        return message, found

    @property
    def _from(self) -> Vector:
        """The anchor, or where the steps began if that is the same."""
        return self.local if self._anchor is None else self._anchor

    def _adopt(self, center: Vector) -> None:
        self.local[:] = self.strategy.adopt(center)
        if self._anchor is not None:
            self._anchor[:] = center

    def _room(self, local: Vector) -> Vector:
        """Memory for what follows from `local`: that of where its steps began.

        Unless it is the same, as no step was taken, or as the backend works in place.
        """
        # Two vectors take turns. The backend may still read `local` (JAX's arrays on
        # processors alias NumPy's memory), so results are never written over it. The
        # vector where its steps began is no longer read by anybody.
        if not np.may_share_memory(local, self.local):
            return self.local
        if self._spare is None:
            self._spare = _vector(local.size)
        free, self._spare = self._spare, self.local
        return free

    # --------------------------------------------------------------- questions

    def ready(self) -> tuple[Answer, bytes]:
        """Says that the model is compiled; waits for the first data.

        A gang's step that has fewer rows than workers may close before: then its mean
        is the answer.
        """
        return self._after_wait(Ready())

    def need(self) -> tuple[Answer, bytes]:
        """Says that there is no data left; waits for more, or for the end."""
        return self._after_wait(Need())

    def _after_wait(self, message: Ready | Need) -> tuple[Answer, bytes]:
        answer, blob = self._take(self._answer(message))
        if answer.is_center:
            self._adopt(self.buffers.reply)
        return answer, blob

    def push_weights(
        self,
        local: Vector,
        statistics: Vector,
        pieces: list[Piece],
        steps: int,
        learnt: int | None = None,
    ) -> None:
        """Sends what was learnt from `pieces`; `self.local` is then the next start.

        Args:
            local: Weights, as they were read from a program that has ended.
            statistics: Their statistics.
            pieces: Whose samples are done.
            steps: That were taken.
            learnt: Samples of `pieces` that something was learnt from, None for all.
        """
        began = self.environment.clock()
        push_into(
            self.strategy, self.buffers.message, local, self._from, steps, self._spread
        )
        samples = sum(p.rows for p in pieces) if learnt is None else learnt
        message = self._message(statistics, pieces, steps, float(samples))
        answer, _ = self._take(self._answer(message, has_vectors=True))
        before, self.local = self._from, self._room(local)
        if answer.body == "reply" and self._pushed is not None:
            self._pull(local, local)
        elif answer.body == "reply":
            pull_into(
                self.strategy,
                self.local,
                local,
                before,
                self.buffers.reply,
                self._spread,
            )
        elif answer.body == "center":
            self._adopt(self.buffers.reply)
        else:  # an elastic repeat skips one displacement, or the run is done
            self.local[:] = local
        self.times.exchange_s += self.environment.clock() - began

    def push_early(
        self,
        local: Vector,
        statistics: Vector,
        pieces: list[Piece],
        steps: int,
        learnt: int | None = None,
    ) -> None:
        """Does what `push_weights` does, and does not wait for the answer.

        Further steps begin where these ended; `catch_up` follows them.
        """
        began, pushed = self.environment.clock(), self._pushed
        if pushed is None:
            raise RuntimeError("this member was not to push early")
        push_into(
            self.strategy, self.buffers.message, local, self._from, steps, self._spread
        )
        samples = sum(p.rows for p in pieces) if learnt is None else learnt
        pushed[:] = local
        self._pushed_statistics[:] = statistics
        self._ask_early(self._message(statistics, pieces, steps, float(samples)))
        self.times.exchange_s += self.environment.clock() - began

    def catch_up(self, local: Vector, statistics: Vector) -> bool:
        """Takes the answer to an early push; `self.local` is then the next start.

        Args:
            local: Weights now, some steps after those that were pushed.
            statistics: Their statistics.

        Returns:
            False where those steps are void: their samples are somebody else's now.
        """
        began, pushed = self.environment.clock(), self._pushed
        if pushed is None:
            raise RuntimeError("this member was not to push early")
        answer, _ = self._take(self._arrive())
        is_void, body = isinstance(answer, Repeat), answer.body
        self.local = self._room(local)
        if body == "reply":
            self._pull(local, pushed)
        elif body == "center":
            taken = local - pushed
            self._adopt(self.buffers.reply)
            if not is_void:
                self.local += taken
        else:
            self.local[:] = pushed if is_void else local
        if body == "none":
            self.statistics[:] = statistics
        elif not is_void:
            self.statistics += statistics - self._pushed_statistics
        self.times.exchange_s += self.environment.clock() - began
        return not is_void

    def _pull(self, local: Vector, pushed: Vector) -> None:
        """Applies a reply to weights that have moved since they were pushed."""
        anchor, is_moving = self._from, local is not pushed
        for part in segments(local.size):
            now = local[part]
            then = pushed[part] if is_moving else now
            found = self.strategy.pull(
                now, then, anchor[part], self.buffers.reply[part]
            )
            self.local[part], anchor[part] = found

    def push_gradient(
        self,
        gradient: Vector,
        statistics: Vector,
        pieces: list[Piece],
        weight: Weight,
        nan_status: NanStatus = NanStatus.FINITE,
        mean: Vector | None = None,
    ) -> Vector | None:
        """Sends a sum of gradients, and waits for the mean.

        Args:
            gradient: The sum, best where `buffers.message` lies.
            statistics: Beside it.
            pieces: Whose samples it is of.
            weight: What it weighs.
            nan_status: See `nan_guard`; the answer has the highest of all workers.
            mean: Of the step, as this worker's group has it; None without one.

        Returns:
            The mean of all workers, a view. None where the gradient has to be computed
            for other sums, which `progress` then has.
        """
        began = self.environment.clock()
        generation = 0 if mean is None else self._generation
        self._fill(gradient, is_needed=mean is None)
        answer = self._send_gradient(statistics, pieces, weight, nan_status, generation)
        if isinstance(answer, Again) and not self.progress.sums:
            mean = None  # not all of the round have that mean
            self._fill(gradient)
            answer = self._send_gradient(statistics, pieces, weight, nan_status)
        self.times.exchange_s += self.environment.clock() - began
        if isinstance(answer, Again):
            return None
        return self.buffers.reply if mean is None else mean

    def _send_gradient(
        self,
        statistics: Vector,
        pieces: list[Piece],
        weight: Weight,
        nan_status: NanStatus,
        group: int = 0,
    ) -> Answer:
        message = self._gradient_message(statistics, pieces, weight, nan_status, group)
        return self._take(self._answer(message, has_vectors=True))[0]

    @property
    def _generation(self) -> int:
        """Of the group that takes the next step."""
        group = self.progress.group
        return 0 if group is None else group.generation

    def _fill(self, gradient: Vector, *, is_needed: bool = True) -> None:
        """Lays a gradient where the server reads it."""
        message = self.buffers.message
        if is_needed and not np.may_share_memory(gradient, message):
            message[:] = gradient

    def push_shared(
        self,
        statistics: Vector,
        pieces: list[Piece],
        weight: Weight,
        nan_status: NanStatus,
    ) -> None:
        """Says that a gradient lies where all of the group can read it.

        Args:
            statistics: Beside it.
            pieces: Whose samples it is of.
            weight: What it weighs.
            nan_status: See `nan_guard`.
        """
        group = self._generation
        self._ask_later(
            self._gradient_message(statistics, pieces, weight, nan_status, group)
        )

    def confirm(self) -> bool:
        """Waits for the answer to `push_shared`.

        Returns:
            Whether the group's mean counts, unless the run is over.
        """
        answer, _ = self._take(self._arrive())
        return not isinstance(answer, Again)

    def _message(
        self, statistics: Vector, pieces: list[Piece], steps: int, samples: float
    ) -> Push:
        self._fill_rest(statistics)
        return Push(
            lineage=self.progress.lineage,
            sequence=self._sequence,
            pieces=tuple(pieces),
            steps=steps,
            samples=samples,
            times=self.times.take(),
        )

    def _gradient_message(
        self,
        statistics: Vector,
        pieces: list[Piece],
        weight: Weight,
        nan_status: NanStatus,
        group: int,
    ) -> Push:
        self._fill_rest(statistics)
        return Push(
            lineage=self.progress.lineage,
            sequence=self._sequence,
            pieces=tuple(pieces),
            steps=1,
            samples=weight.mass,
            nan_status=nan_status,
            group=group,
            times=self.times.take(),
            # Most messages need not say what they weigh otherwise.
            rows=None if weight.rows == weight.mass else weight.rows,
            own=weight.own,
            assumed=weight.assumed,
        )

    def _fill_rest(self, statistics: Vector) -> None:
        """Lays what goes beside the vector where the server reads it."""
        self.buffers.message_statistics[:] = statistics
        self.buffers.metrics[:] = self.metrics
        self._sequence += 1

    def publish(self, vector: Vector, statistics: Vector, blob: bytes) -> None:
        """Sends the whole state of a gang member, for joiners and the controller.

        Raises:
            PlanError: Its `blob` is longer than the model of the run makes it.
        """
        self._check_state(blob)
        self.buffers.message[:] = vector
        self.buffers.message_statistics[:] = statistics
        self._send_snapshot(blob, has_vectors=True)

    def publish_optimizer(self, blob: bytes) -> None:
        """Sends the state of an optimizer whose weights are at the server.

        Raises:
            PlanError: As `publish`.
        """
        self._check_state(blob)
        self._send_snapshot(blob, has_vectors=False)

    def _send_snapshot(self, blob: bytes, *, has_vectors: bool) -> None:
        answered = self._answer(Snapshot(), has_vectors=has_vectors, blob=blob)
        if isinstance(answered.message, Refused):
            raise fenced(answered.message)
        self._heed(answered.message.state)

    def _check_state(self, blob: bytes) -> None:
        """The server would hang up, and so it would on every replacement."""
        most = self._sizes.state_bytes
        if len(blob) > most:
            raise PlanError(
                f"the optimizer and the local state of this worker take {len(blob):,} "
                f"bytes, where the model of the run was expected to make at most "
                f"{most:,}. Variables must exist before training begins: create them "
                "in build() of the optimizer or the layer, with the same shapes each "
                "time."
            )
