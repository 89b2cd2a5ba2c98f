"""A worker's client of the server: it joins, pushes, and asks for data.

This file decides which messages a worker sends and what it keeps of the answers. It
knows the messages and the vectors' memory, but no model.
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
        """Returns the times, and starts again."""
        spent = self.compute_s, self.data_s, self.wait_s, self.exchange_s
        self.compute_s = self.data_s = self.wait_s = self.exchange_s = 0.0
        return tuple(round(seconds, 6) for seconds in spent)


def _vector(size: int) -> Vector:
    return aligned_bytes(4 * size).view(np.float32)


class Weight(NamedTuple):
    """Weight of a gradient in the mean of a round; see `PushMetadata`.

    Args:
        mass: Weight in the mean of gradients.
        rows: Samples that were trained on.
        own: This worker's part of each sum that its losses are scaled by.
        assumed: The sums that were used.
    """

    mass: float
    rows: float
    own: tuple[float, ...] = ()
    assumed: tuple[float, ...] = ()


@dataclass
class Progress:
    """State that the last answer told."""

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
    """Sums for which a message has to be computed again."""
    pieces: deque[Piece] = field(default_factory=deque[Piece])


class ServerClient(RequestChannel):
    """A worker's client, which waits for each answer.

    Answers to early pushes, and to those of a group that shares memory, are taken
    later.

    Args:
        server_address: Address and identity for joining.
        strategy: Strategy whose `push` and `pull` run here.
        is_early: Whether it may `push_early`.
        environment: Clock, connections and threads.
        spread: Spread for writing messages and reading replies.

    Attributes:
        metrics: Sums of metric state since the last push.
        optimizer: Another worker's optimizer state, empty if there is none.
        changes: Callback changes that this worker has not applied yet.

    Raises:
        Fenced: The server has another model, or another process has the rank.
        BadFrame: No server of this version sends this.
    """

    def __init__(
        self,
        server_address: ServerAddress,
        strategy: Strategy,
        environment: Environment = SYSTEM,
        *,
        is_early: bool = False,
        spread: Spread = in_turn,
    ) -> None:
        super().__init__(server_address, strategy, environment)
        self.progress, self.times = Progress(), Times()
        self._sizes = server_address.sizes
        self.changes = Changes()
        self._sequence = 0
        message = Join(
            digest=server_address.sizes.digest,
            metrics=server_address.sizes.metrics,
            hint=server_address.hint,
            node=server_address.node,
            pid=os.getpid(),
            token=server_address.token,
        )
        welcome, vector, statistics, self.optimizer = self._join(message)
        self._heed(welcome.state)
        size, count = server_address.sizes.vector, server_address.sizes.statistics
        self.local = _vector(size)
        # Weights move on before the reply to an early push comes: they are no anchor.
        has_anchor = is_early or strategy.needs_anchor
        self._anchor = _vector(size) if has_anchor else None
        self._pushed = _vector(size) if is_early else None
        self._pushed_statistics = np.zeros(count, np.float32)
        self._spare: Vector | None = None
        self.statistics = statistics.copy()
        self._adopt(vector)
        self.metrics = np.zeros(server_address.sizes.metrics, np.float64)
        self._spread = spread

    # ---------------------------------------------------------------- answers

    def _heed(self, state: RunState) -> None:
        """Keeps the state that every answer tells."""
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
        """Sends a message, waits for the answer; its vectors are in `self.buffers`."""
        if self.has_early:  # it still uses connection and buffers
            raise RuntimeError(f"{message.kind} before the early answer was taken")
        return self._ask(message, has_vectors=has_vectors, blob=blob)

    def _take(self, answered: Answered) -> tuple[Answer, bytes]:
        """Takes the answer to a push, or to a worker without data.

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
            progress.pieces.clear()  # it contains all leases
        progress.pieces.extend(message.pieces)
        end = len(body)
        if message.changes:
            with reading(message.kind):
                end -= whole(message.changes, len(body) + 1)
                changes = Changes.read(bytes(body[end:]))
            if message.has_vectors:
                changes = changes.without(STATISTICS)  # the reply contains them
            self.changes.absorb(changes)
        if message.has_vectors:
            self.statistics[:] = self.buffers.reply_statistics
        found = bytes(body[:end]) if message.body == "snapshot" else b""
        return message, found

    @property
    def _from(self) -> Vector:
        """The anchor, or the weights before the steps if both are the same."""
        return self.local if self._anchor is None else self._anchor

    def _adopt(self, center: Vector) -> None:
        self.local[:] = self.strategy.adopt(center)
        if self._anchor is not None:
            self._anchor[:] = center

    def _room(self, local: Vector) -> Vector:
        """Memory for the result of `local`: that of the weights before its steps.

        Other memory if both are the same: without a step, or if the backend works in
        place.
        """
        # Two vectors take turns. The backend may still read `local` (JAX's arrays on
        # processors alias NumPy's memory), so results are never written over it. The
        # vector from before the steps is not read any more.
        if not np.may_share_memory(local, self.local):
            return self.local
        if self._spare is None:
            self._spare = _vector(local.size)
        free, self._spare = self._spare, self.local
        return free

    # --------------------------------------------------------------- questions

    def ready(self) -> tuple[Answer, bytes]:
        """Reports that the model is compiled; waits for the first data.

        A step with fewer rows than workers may close before: then the answer is its
        mean.
        """
        return self._after_wait(Ready())

    def need(self) -> tuple[Answer, bytes]:
        """Reports that no data is left; waits for more, or for the end."""
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
        """Sends the result of `pieces`; `self.local` is then the next start.

        Args:
            local: Weights, as they were read from a program that has ended.
            statistics: Their statistics.
            pieces: The samples that are done.
            steps: Number of steps.
            learnt: Samples of `pieces` that were trained on, None for all.
        """
        began = self.environment.clock()
        push_into(
            self.strategy, self.buffers.message, local, self._from, steps, self._spread
        )
        samples = sum(p.rows for p in pieces) if learnt is None else learnt
        message = self._message(statistics, pieces, steps, float(samples))
        answer, _ = self._take(self._answer(message, has_vectors=True))
        # Without an anchor the strategy pulls from the weights before the steps, which
        # `local` no longer is after this line.
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
        """Pushes like `push_weights`, without waiting for the answer.

        Further steps begin where these ended; call `catch_up` after them.
        """
        began, pushed = self.environment.clock(), self._pushed
        if pushed is None:
            raise RuntimeError("this member was not to push early")
        push_into(
            self.strategy, self.buffers.message, local, self._from, steps, self._spread
        )
        samples = sum(p.rows for p in pieces) if learnt is None else learnt
        # Copied, as further steps change `local` where a backend works in place.
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
            False if those steps are void: their samples were leased to another worker.
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
            # Steps since the push are added to the center, unless their samples are
            # leased to another worker.
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
            gradient: The sum; fastest if it is in `buffers.message`.
            statistics: Statistics beside it.
            pieces: Its samples.
            weight: Its weight.
            nan_status: See `nan_guard`; the answer has the highest of all workers.
            mean: Mean of the step from this worker's group; None without a group.

        Returns:
            The mean of all workers, a view. None if the gradient has to be computed
            again for the sums in `progress`.
        """
        began = self.environment.clock()
        generation = 0 if mean is None else self._generation
        self._fill(gradient, is_needed=mean is None)
        answer = self._send_gradient(statistics, pieces, weight, nan_status, generation)
        if isinstance(answer, Again) and not self.progress.sums:
            mean = None  # not all workers of the round have that mean
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
        """Number of the group that averages the next step."""
        group = self.progress.group
        return 0 if group is None else group.generation

    def _fill(self, gradient: Vector, *, is_needed: bool = True) -> None:
        """Writes a gradient to the place where the server reads it."""
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
        """Reports that a gradient is in memory that the whole group can read.

        Args:
            statistics: Statistics beside it.
            pieces: Its samples.
            weight: Its weight.
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
            # Most messages need no other weight.
            rows=None if weight.rows == weight.mass else weight.rows,
            own=weight.own,
            assumed=weight.assumed,
        )

    def _fill_rest(self, statistics: Vector) -> None:
        """Writes what goes beside the vector to the place where the server reads it."""
        self.buffers.message_statistics[:] = statistics
        self.buffers.metrics[:] = self.metrics
        self._sequence += 1

    def publish(self, vector: Vector, statistics: Vector, blob: bytes) -> None:
        """Sends a worker's whole state, for joiners and the controller.

        Raises:
            PlanError: `blob` is longer than the model of the run makes it.
        """
        self._check_state(blob)
        self.buffers.message[:] = vector
        self.buffers.message_statistics[:] = statistics
        self._send_snapshot(blob, has_vectors=True)

    def publish_optimizer(self, blob: bytes) -> None:
        """Sends the state of an optimizer whose weights the server has.

        Raises:
            PlanError: The same as in `publish`.
        """
        self._check_state(blob)
        self._send_snapshot(blob, has_vectors=False)

    def _send_snapshot(self, blob: bytes, *, has_vectors: bool) -> None:
        answered = self._answer(Snapshot(), has_vectors=has_vectors, blob=blob)
        if isinstance(answered.message, Refused):
            raise fenced(answered.message)
        self._heed(answered.message.state)

    def _check_state(self, blob: bytes) -> None:
        """Checks the size: the server would refuse every replacement, too."""
        most = self._sizes.state_bytes
        if len(blob) > most:
            raise PlanError(
                f"the optimizer and the local state of this worker take {len(blob):,} "
                f"bytes, where the model of the run was expected to make at most "
                f"{most:,}. Variables must exist before training begins: create them "
                "in build() of the optimizer or the layer, with the same shapes each "
                "time."
            )
