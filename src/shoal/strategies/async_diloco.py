"""Delayed outer momentum, on arrival. This file decides asynchronous DiLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from shoal.strategies.base import Facts, ServerStrategy, State, UsualPeriod, adopt_reply
from shoal.vectors import Vector

MOST_REACH = 2.0
"""Multiple of a worker's change by which the late center may move in the long run."""
WHOLE_STEPS = 20
"""Period from which on the outer momentum counts in full."""


@final
@dataclass(frozen=True, kw_only=True)
class AsyncDiLoCo(ServerStrategy):
    """DiLoCo without rounds: for slow links between workers of unequal speed.

    Momentum at every arrival would amplify late changes, so each arrival takes a
    plain step and the momentum moves once every n arrivals (delayed Nesterov).
    Choose it over `DiLoCo` when a round would wait long for its slowest worker.

    For local weights x, anchor a, n workers, outer learning rate lr and outer
    momentum mu, the arrival number t = 1, 2, ... does

        d = a - x                       (worker, `push`: the pseudo-gradient)
        b <- b + d / n                  (server, `apply`)
        if n divides t:  v <- mu * v + b,  b <- 0,  c <- c - lr * (d / n + mu * v)
        otherwise:       c <- c - lr * d / n
        x <- c,  a <- c                 (worker, `pull`)

    so that n arrivals move the center as one Nesterov step along their mean would.
    That is the paper's rule with momentum activation c = 0; with one worker it is
    `DiLoCo`. The sum is divided on arrival, not at the end, so that it stays a mean
    when workers join or leave. With a `period` of fewer than 20 steps mu is smaller in
    proportion, which is not in the paper: the worker's optimizer remembers about ten
    steps by itself, and both memories together overshoot when they are late.

    Args:
        outer_learning_rate: Step size of the outer optimizer, above 0, default 0.7.
            The paper's epsilon.
        outer_momentum: Nesterov momentum of it, in [0, 1), default 0.5. The paper's
            beta, which is 0.9 there. A change arrives about n updates late, one round;
            with that momentum and as much delay the center swings past the optimum
            ever further where a window of a worker alone would reach it.
        period: Inner optimizer steps between two exchanges, at least 1, or 0 for an
            epoch; default 50, and less where an epoch has fewer than 150 steps of a
            worker.

    Messages: a difference up, weights down; each the model's size in bytes. Stable
    below an inner learning rate of (1 - mu) / (period * k * L), for curvature L and
    the largest staleness k.

    Raises:
        ConfigError: If `outer_learning_rate` is not above 0 or `outer_momentum` is
            outside [0, 1).

    Example:
        >>> import numpy as np
        >>> diloco = AsyncDiLoCo(outer_learning_rate=0.5, outer_momentum=0.0)
        >>> center, state = np.array([8.0], "f4"), diloco.init(1)
        >>> message = diloco.push(np.array([4.0], "f4"), center, steps=50)
        >>> diloco.apply(center, state, message, Facts(workers=2))
        array([7.], dtype=float32)

    References:
        Liu et al. (2024), arXiv:2401.09135, Algorithm 3 (delayed Nesterov update).
    """

    needs_anchor: ClassVar[bool] = False
    scales_rate_from: ClassVar[int | None] = 1
    moves_beyond: ClassVar[bool] = True
    name: ClassVar[str] = "async_diloco"
    message_is_change: ClassVar[bool] = True

    period: int = UsualPeriod(50)
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        rate, momentum = self.outer_learning_rate, self.outer_momentum
        self._require(rate > 0, "outer_learning_rate", "is above 0")
        self._require(0 <= momentum < 1, "outer_momentum", "is in [0, 1)")

    def init(self, size: int) -> State:
        """Returns a velocity and a buffer of zeros."""
        return {
            "velocity": np.zeros(size, np.float32),
            "buffer": np.zeros(size, np.float32),
        }

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the pseudo-gradient."""
        return anchor - local

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        """Takes a plain outer step, and every n-th time the momentum's as well."""
        gradient = message / facts.workers
        buffer = state["buffer"]
        buffer += gradient
        if (facts.updates + 1) % facts.workers == 0:
            velocity, momentum = state["velocity"], self.momentum
            velocity *= momentum
            velocity += buffer
            buffer[:] = 0
            gradient += momentum * velocity
        gradient *= self.outer_learning_rate
        center -= gradient
        return center

    @property
    def momentum(self) -> float:
        """Returns the outer momentum, in proportion where windows are short.

        The worker's optimizer remembers about ten steps by itself. After a window that
        is not much longer both memories push the same way, a round late. The period
        decides, not a window: those that end an epoch are short in every run.
        """
        steps = self.period or WHOLE_STEPS
        return self.outer_momentum * min(1.0, steps / WHOLE_STEPS)

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Adopts the center."""
        return adopt_reply(local, pushed, reply)

    def warnings(self, *, workers: int, exchanges_per_epoch: float) -> list[str]:
        """Adds a warning for a momentum that is too high for late changes."""
        found = super().warnings(
            workers=workers, exchanges_per_epoch=exchanges_per_epoch
        )
        # A round moves the center by lr / (1 - mu) of a window in the long run. From
        # about 3 on the delay of a round makes it unstable: see decision 37.
        reach = self.outer_learning_rate / (1.0 - self.momentum)
        if workers > 1 and reach > MOST_REACH:
            found.append(
                f"async_diloco with outer_momentum={self.outer_momentum:g} moves the "
                f"center by up to {reach:.3g} times a worker's change, about {workers} "
                "updates late, and is known to lose accuracy. At most "
                f"{MOST_REACH:g} times is advised. Leave outer_momentum out, which is "
                "0.5 then, or choose diloco."
            )
        return found

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns (1 - mu) / (period * staleness * L): momentum sums what is late."""
        plain = super().learning_rate_bound(curvature=curvature, staleness=staleness)
        return (1.0 - self.momentum) * plain
