"""A worker's weights between two exchanges. Pure arithmetic on vectors.

This file decides where the next steps start after an answer of the server. `client.py`
sends the messages that are written here.
"""

from __future__ import annotations

from typing import final

import numpy as np

from shoal.engine.coordination.instructions import Body
from shoal.engine.transport.buffers import aligned_bytes
from shoal.engine.transport.segments import Spread, pull_into, push_into, segments
from shoal.strategies.base import Strategy
from shoal.vectors import Vector


def _vector(size: int) -> Vector:
    return aligned_bytes(4 * size).view(np.float32)


@final
class LocalWeights:
    """Weights and statistics from which the next steps start.

    Args:
        strategy: Strategy whose `push` and `pull` run here.
        center: Center when the worker joined.
        statistics: Statistics of that center.
        is_early: Steps go on before the answer to a push arrives.
        spread: Spread for writing messages and reading replies.

    Attributes:
        vector: Weights from which the next steps start.
        statistics: Statistics beside them.
    """

    def __init__(
        self,
        strategy: Strategy,
        center: Vector,
        statistics: Vector,
        *,
        is_early: bool,
        spread: Spread,
    ) -> None:
        self._strategy, self._spread = strategy, spread
        self.vector, self.statistics = _vector(center.size), statistics.copy()
        # Weights move on before the reply to an early push comes: they are no anchor.
        has_anchor = is_early or strategy.needs_anchor
        self._anchor = _vector(center.size) if has_anchor else None
        self._pushed = _vector(center.size) if is_early else None
        self._pushed_statistics = np.zeros_like(statistics)
        self._spare: Vector | None = None
        self.adopt(center)

    @property
    def _start(self) -> Vector:
        """The anchor, or the weights before the steps if both are the same."""
        return self.vector if self._anchor is None else self._anchor

    def adopt(self, center: Vector) -> None:
        """Starts from a center."""
        self.vector[:] = self._strategy.adopt(center)
        if self._anchor is not None:
            self._anchor[:] = center

    def write(self, message: Vector, local: Vector, steps: int) -> None:
        """Writes the message that tells the result of some steps.

        Args:
            message: Memory of the message.
            local: Weights after the steps.
            steps: Number of steps.
        """
        push_into(self._strategy, message, local, self._start, steps, self._spread)

    def remember(self, local: Vector, statistics: Vector) -> None:
        """Remembers what is pushed early.

        Raises:
            RuntimeError: The worker was not to push early.
        """
        if self._pushed is None:
            raise RuntimeError("this worker was not to push early")
        # Copied, as further steps change `local` where a backend works in place.
        self._pushed[:] = local
        self._pushed_statistics[:] = statistics

    def take(self, body: Body, reply: Vector, local: Vector) -> None:
        """Takes the answer to a push after which no step was taken.

        Args:
            body: Meaning of the reply.
            reply: Vector of the answer.
            local: Weights that were pushed.
        """
        # Without an anchor the strategy pulls from the weights before the steps, which
        # `vector` no longer is after this line.
        before, self.vector = self._start, self._room(local)
        if body == "reply" and self._pushed is not None:
            self._pull(local, local, reply)
        elif body == "reply":
            pull_into(self._strategy, self.vector, local, before, reply, self._spread)
        elif body == "center":
            self.adopt(reply)
        else:  # an elastic repeat skips one displacement, or the run is done
            self.vector[:] = local

    def catch_up(
        self,
        body: Body,
        reply: Vector,
        local: Vector,
        statistics: Vector,
        *,
        is_void: bool,
    ) -> None:
        """Takes the answer to an early push.

        Args:
            body: Meaning of the reply.
            reply: Vector of the answer.
            local: Weights now, some steps after those that were pushed.
            statistics: Their statistics.
            is_void: Samples of these steps were leased to another worker.

        Raises:
            RuntimeError: The worker was not to push early.
        """
        pushed = self._pushed
        if pushed is None:
            raise RuntimeError("this worker was not to push early")
        self.vector = self._room(local)
        if body == "reply":
            self._pull(local, pushed, reply)
        elif body == "center":
            # Steps since the push are added to the center, unless they are void.
            taken = local - pushed
            self.adopt(reply)
            if not is_void:
                self.vector += taken
        else:
            self.vector[:] = pushed if is_void else local
        if body == "none":
            self.statistics[:] = statistics
        elif not is_void:
            self.statistics += statistics - self._pushed_statistics

    def _pull(self, local: Vector, pushed: Vector, reply: Vector) -> None:
        """Applies a reply to weights that have moved since they were pushed."""
        anchor, is_moving = self._start, local is not pushed
        for part in segments(local.size):
            now = local[part]
            then = pushed[part] if is_moving else now
            found = self._strategy.pull(now, then, anchor[part], reply[part])
            self.vector[part], anchor[part] = found

    def _room(self, local: Vector) -> Vector:
        """Memory for the result of `local`: that of the weights before its steps.

        Other memory if both are the same: without a step, or if the backend works in
        place.
        """
        # Two vectors take turns. The backend may still read `local` (JAX's arrays on
        # processors alias NumPy's memory), so results are never written over it. The
        # vector from before the steps is not read any more.
        if not np.may_share_memory(local, self.vector):
            return self.vector
        if self._spare is None:
            self._spare = _vector(local.size)
        free, self._spare = self._spare, self.vector
        return free
