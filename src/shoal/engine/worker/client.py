"""A worker's client of the server: it joins, pushes, and asks for data.

This file decides which messages a worker sends, and who gets what of the answers:
`progress.py` the state of the run, `local_weights.py` the vectors.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from shoal.engine.coordination.ledger import Piece
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.transport.changes import STATISTICS, Changes
from shoal.engine.transport.client_connection import ServerAddress, fenced
from shoal.engine.transport.fields import whole
from shoal.engine.transport.messages.server_to_worker import (
    Again,
    Answer,
    Refused,
    Repeat,
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
from shoal.engine.transport.segments import Spread, in_turn
from shoal.engine.worker.local_weights import LocalWeights
from shoal.engine.worker.progress import Progress, Times
from shoal.engine.worker.request_channel import Answered, RequestChannel
from shoal.errors import PlanError
from shoal.strategies.base import Strategy
from shoal.vectors import Vector
from shoal.wire.frames import BadFrame


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
        self.progress.heed(welcome.state)
        self._weights = LocalWeights(
            strategy, vector, statistics, is_early=is_early, spread=spread
        )
        self.metrics = np.zeros(server_address.sizes.metrics, np.float64)

    @property
    def local(self) -> Vector:
        """Weights from which the next steps start."""
        return self._weights.vector

    @property
    def statistics(self) -> Vector:
        """Statistics beside them."""
        return self._weights.statistics

    # ---------------------------------------------------------------- answers

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
        self.progress.heed(message.state)
        if not isinstance(message, Answer):
            raise BadFrame(
                f"the server's answer is {message.kind!r}, where data or the end of "
                "the run was expected. See whether all machines have the same version "
                "of Shoal."
            )
        self.progress.take(message)
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
            self._weights.adopt(self.buffers.reply)
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
        self._weights.write(self.buffers.message, local, steps)
        message = self._weights_message(statistics, pieces, steps, learnt)
        answer, _ = self._take(self._answer(message, has_vectors=True))
        self._weights.take(answer.body, self.buffers.reply, local)
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
        began = self.environment.clock()
        self._weights.remember(local, statistics)
        self._weights.write(self.buffers.message, local, steps)
        self._ask_early(self._weights_message(statistics, pieces, steps, learnt))
        self.times.exchange_s += self.environment.clock() - began

    def catch_up(self, local: Vector, statistics: Vector) -> bool:
        """Takes the answer to an early push; `self.local` is then the next start.

        Args:
            local: Weights now, some steps after those that were pushed.
            statistics: Their statistics.

        Returns:
            False if those steps are void: their samples were leased to another worker.
        """
        began = self.environment.clock()
        answer, _ = self._take(self._arrive())
        is_void = isinstance(answer, Repeat)
        self._weights.catch_up(
            answer.body, self.buffers.reply, local, statistics, is_void=is_void
        )
        self.times.exchange_s += self.environment.clock() - began
        return not is_void

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
        generation = 0 if mean is None else self.progress.generation
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

    def _fill(self, gradient: Vector, *, is_needed: bool = True) -> None:
        """Writes a gradient to the place where the server reads it."""
        message = self.buffers.message
        if is_needed and not np.may_share_memory(gradient, message):
            message[:] = gradient

    def push_alone(self, statistics: Vector, pieces: list[Piece]) -> None:
        """Reports steps of which this worker has applied the gradients itself.

        Args:
            statistics: Statistics after them.
            pieces: Their samples, a piece for each step.
        """
        began = self.environment.clock()
        # No server reads it; an encoding must not find numbers of the past there.
        self.buffers.message[:] = 0.0
        self._fill_rest(statistics)
        message = Push(
            lineage=self.progress.lineage,
            sequence=self._sequence,
            pieces=tuple(pieces),
            steps=len(pieces),
            samples=float(sum(piece.rows for piece in pieces)),
            is_alone=True,
            times=self.times.take(),
        )
        self._take(self._answer(message, has_vectors=True))
        self.times.exchange_s += self.environment.clock() - began

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
        group = self.progress.generation
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

    def _weights_message(
        self, statistics: Vector, pieces: list[Piece], steps: int, learnt: int | None
    ) -> Push:
        samples = sum(p.rows for p in pieces) if learnt is None else learnt
        self._fill_rest(statistics)
        return Push(
            lineage=self.progress.lineage,
            sequence=self._sequence,
            pieces=tuple(pieces),
            steps=steps,
            samples=float(samples),
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
        self.progress.heed(answered.message.state)

    def _check_state(self, blob: bytes) -> None:
        """Checks the size: the server would refuse every replacement, too."""
        most = self.sizes.state_bytes
        if len(blob) > most:
            raise PlanError(
                f"the optimizer and the local state of this worker take {len(blob):,} "
                f"bytes, where the model of the run was expected to make at most "
                f"{most:,}. Variables must exist before training begins: create them "
                "in build() of the optimizer or the layer, with the same shapes each "
                "time."
            )
