"""A worker's seat at the server: joins, pushes, asks for data, keeps its place.

This file decides what a worker says and what it keeps of the answers. It knows
the wire and the vectors' memory, but no model.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shoal.engine.coordination.instructions import Group
from shoal.engine.coordination.ledger import Piece
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.transport import answers
from shoal.engine.transport.buffers import aligned_bytes
from shoal.engine.transport.changes import STATISTICS, Changes
from shoal.engine.transport.client_connection import Fenced, ServerAddress
from shoal.engine.transport.messages import whole
from shoal.engine.transport.segments import (
    Spread,
    in_turn,
    pull_into,
    push_into,
    segments,
)
from shoal.engine.worker.request_channel import RequestChannel
from shoal.errors import PlanError
from shoal.strategies.base import Strategy
from shoal.vectors import Vector
from shoal.wire.frames import Head


@dataclass
class Times:
    """Seconds of a window: computing, reading, waiting for work, exchanging."""

    compute_s: float = 0.0
    data_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0

    def take(self) -> list[float]:
        """Returns what was measured and starts again."""
        spent = self.compute_s, self.data_s, self.wait_s, self.exchange_s
        self.compute_s = self.data_s = self.wait_s = self.exchange_s = 0.0
        return [round(seconds, 6) for seconds in spent]


def _vector(size: int) -> Vector:
    return aligned_bytes(4 * size).view(np.float32)


class Weight(NamedTuple):
    """What a gradient weighs in the mean of a round; see `Push`.

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

    def to_json(self) -> dict[str, Any]:
        """What of it goes beside `samples`; most messages need nothing there."""
        found: dict[str, Any] = {} if self.rows == self.mass else {"rows": self.rows}
        if self.own:
            found |= {"own": self.own, "assumed": self.assumed}
        return found


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
    nan_status: int = 0
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
        head, vector, statistics, self.optimizer = self._join(
            {"kind": "join", "digest": seat.sizes.digest, "metrics": seat.sizes.metrics,
             "hint": seat.hint, "node": seat.node, "pid": os.getpid()}
        )  # fmt: skip
        try:
            self._heed(head)
        except BaseException:
            self.leave()
            raise
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

    def _heed(self, head: Head) -> None:
        """Keeps what every answer tells."""
        kind = head["kind"]
        if kind == "refused":
            reason = head.get("reason")
            raise Fenced(f"the server refused this worker: {reason!s:.300}")
        with answers.reading(head):
            told = answers.told(head)
        progress = self.progress
        progress.version, progress.lineage = told.version, told.lineage
        progress.clock, progress.workers = told.clock, told.workers
        progress.learning_rate = told.learning_rate
        progress.is_done = kind == "done"
        progress.nan_status = told.nan_status
        progress.wants_snapshot = bool(head.get("publish"))
        progress.group, progress.sums = told.group, told.sums
        if kind == "repeat":
            progress.pieces.clear()  # it tells of all there are
        progress.pieces.extend(told.pieces)

    def _answer(
        self, question: Head, *, has_vectors: bool = False, blob: bytes = b""
    ) -> tuple[Head, bytes]:
        """Asks and waits for an answer; vectors are then in `self.buffers`."""
        if self.has_early:
            raise RuntimeError(f"{question['kind']} before the early answer was taken")
        return self._take(*self._ask(question, has_vectors=has_vectors, blob=blob))

    def _take(self, head: Head, body: memoryview) -> tuple[Head, bytes]:
        """Keeps what an answer tells."""
        self._heed(head)
        with answers.reading(head):
            end = len(body) - whole(head.get("changes", 0), len(body) + 1)
            changes = Changes.read(bytes(body[end:]))
        found = bytes(body[:end]) if head.get("body") == "snapshot" else b""
        if head.get("body", "none") != "none":
            self.statistics[:] = self.buffers.reply_statistics
            changes = changes.without(STATISTICS)  # the reply has them
        self.changes.absorb(changes)
        return head, found

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

    def ready(self) -> tuple[Head, bytes]:
        """Says that the model is compiled; waits for the first data.

        A gang's step that has fewer rows than workers may close before: then its mean
        is the answer.
        """
        return self._after_wait("ready")

    def need(self) -> tuple[Head, bytes]:
        """Says that there is no data left; waits for more, or for the end."""
        return self._after_wait("need")

    def _after_wait(self, kind: str) -> tuple[Head, bytes]:
        head, blob = self._answer({"kind": kind})
        if head.get("body") in ("center", "snapshot"):
            self._adopt(self.buffers.reply)
        return head, blob

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
        head = self._send(statistics, pieces, steps, float(samples))
        before, self.local = self._from, self._room(local)
        if head["body"] == "reply" and self._pushed is not None:
            self._pull(local, local)
        elif head["body"] == "reply":
            pull_into(
                self.strategy,
                self.local,
                local,
                before,
                self.buffers.reply,
                self._spread,
            )
        elif head["body"] == "center":
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
        self._ask_early(self._push_head(statistics, pieces, steps, float(samples)))
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
        head, _ = self._take(*self._arrive())
        is_void, body = head["kind"] == "repeat", head.get("body", "none")
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
        nan_status: int = 0,
        mean: Vector | None = None,
    ) -> Vector | None:
        """Sends a sum of gradients, and waits for the mean.

        Args:
            gradient: The sum, best where `bulk.message` lies.
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
        head = self._send_gradient(statistics, pieces, weight, nan_status, generation)
        if head["kind"] == "again" and not self.progress.sums:
            mean = None  # not all of the round have that mean
            self._fill(gradient)
            head = self._send_gradient(statistics, pieces, weight, nan_status)
        self.times.exchange_s += self.environment.clock() - began
        if head["kind"] == "again":
            return None
        return self.buffers.reply if mean is None else mean

    def _send_gradient(
        self,
        statistics: Vector,
        pieces: list[Piece],
        weight: Weight,
        nan_status: int,
        group: int = 0,
    ) -> Head:
        head = self._push_head(statistics, pieces, 1, weight.mass, nan_status, group)
        head |= weight.to_json()
        return self._answer(head, has_vectors=True)[0]

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
        self, statistics: Vector, pieces: list[Piece], weight: Weight, nan_status: int
    ) -> None:
        """Says that a gradient lies where all of the group can read it.

        Args:
            statistics: Beside it.
            pieces: Whose samples it is of.
            weight: What it weighs.
            nan_status: See `nan_guard`.
        """
        group = self._generation
        head = self._push_head(statistics, pieces, 1, weight.mass, nan_status, group)
        self._ask_later(head | weight.to_json())

    def confirm(self) -> bool:
        """Waits for the answer to `push_shared`.

        Returns:
            Whether the group's mean counts, unless the run is over.
        """
        head, _ = self._take(*self._arrive())
        return head["kind"] != "again"

    def _send(
        self,
        statistics: Vector,
        pieces: list[Piece],
        steps: int,
        samples: float,
    ) -> Head:
        head = self._push_head(statistics, pieces, steps, samples)
        return self._answer(head, has_vectors=True)[0]

    def _push_head(
        self,
        statistics: Vector,
        pieces: list[Piece],
        steps: int,
        samples: float,
        nan_status: int = 0,
        group: int = 0,
    ) -> Head:
        self.buffers.message_statistics[:] = statistics
        self.buffers.metrics[:] = self.metrics
        self._sequence += 1
        return {
            "kind": "push", "lineage": self.progress.lineage,
            "sequence": self._sequence, "pieces": pieces, "steps": steps,
            "samples": samples, "doubt": nan_status, "group": group,
            "times": self.times.take(),
        }  # fmt: skip

    def publish(self, vector: Vector, statistics: Vector, blob: bytes) -> None:
        """Sends the whole state of a gang member, for joiners and the controller.

        Raises:
            PlanError: Its `blob` is longer than the model of the run makes it.
        """
        self._check_state(blob)
        self.buffers.message[:] = vector
        self.buffers.message_statistics[:] = statistics
        self._answer({"kind": "snapshot"}, has_vectors=True, blob=blob)

    def publish_optimizer(self, blob: bytes) -> None:
        """Sends the state of an optimizer whose weights are at the server.

        Raises:
            PlanError: As `publish`.
        """
        self._check_state(blob)
        self._answer({"kind": "snapshot"}, blob=blob)

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
