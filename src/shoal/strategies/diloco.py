"""Outer momentum over averaged changes. This file decides DiLoCo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from shoal.strategies.base import Facts, RoundStrategy, State, UsualPeriod, adopt_reply
from shoal.strategies.mean import mean_of
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class DiLoCo(RoundStrategy):
    """Averages changes every few hundred steps, with momentum: for slow links.

    The mean change of a round is treated as a gradient by an outer optimizer on the
    server. Choose it when `period` is in the tens or hundreds, between sites or on
    slow networks; `LocalSGD` is this without the outer optimizer.

    For local weights x_i of s_i samples, center c, outer learning rate lr and outer
    momentum mu, one exchange is

        d_i = c - x_i                           (worker, `push`: the pseudo-gradient)
        g = (sum of s_i d_i) / (sum of s_i)     (server, `merge`)
        v <- mu * v + g
        c <- c - lr * (g + mu * v)
        x_i <- c                                (worker, `pull`)

    Args:
        outer_learning_rate: Step size of the outer optimizer, above 0, default 0.7.
        outer_momentum: Nesterov momentum of it, in [0, 1), default 0.8.
            The paper uses 0.9, with 8 workers and hundreds of steps a round; with 2
            workers and fewer steps that overshoots.
        period: Inner optimizer steps between two rounds, at least 1, or 0 for an
            epoch; default 50, and less where an epoch has fewer than 150 steps of a
            worker; 500 for long runs as in the paper, whose H it is.

    Messages: a difference up, weights down; each the model's size in bytes. Stable
    below an inner learning rate of 1 / L, for curvature L, while
    outer_learning_rate < 2 (1 + mu) / (1 + 2 mu).

    Raises:
        ConfigError: If `outer_learning_rate` is not above 0 or `outer_momentum` is
            outside [0, 1).

    Example:
        >>> import numpy as np
        >>> diloco = DiLoCo(outer_learning_rate=0.5, outer_momentum=0.0)
        >>> center, state = np.array([8.0], "f4"), diloco.init(1)
        >>> weights = {0: np.array([4.0], "f4"), 1: np.array([2.0], "f4")}
        >>> messages = {i: diloco.push(x, center, 50) for i, x in weights.items()}
        >>> diloco.merge(center, state, messages, {0: Facts(), 1: Facts()})[0]
        array([5.5], dtype=float32)

    References:
        Douillard et al. (2023), arXiv:2311.08105, Algorithm 1, lines 12 to 14, with
        the Nesterov step of Sutskever et al. (2013), as in section 3 of the former.
    """

    name: ClassVar[str] = "diloco"
    message_is_change: ClassVar[bool] = True
    needs_anchor: ClassVar[bool] = False
    scales_rate_from: ClassVar[int | None] = 1
    moves_beyond: ClassVar[bool] = True
    promises: ClassVar[frozenset[str]] = frozenset({"mean"})

    period: int = UsualPeriod(50)
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        rate, momentum = self.outer_learning_rate, self.outer_momentum
        self._require(rate > 0, "outer_learning_rate", "is above 0")
        self._require(0 <= momentum < 1, "outer_momentum", "is in [0, 1)")

    def init(self, size: int) -> State:
        """Returns a velocity of zeros."""
        return {"velocity": np.zeros(size, np.float32)}

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the pseudo-gradient."""
        return anchor - local

    def merge(
        self,
        center: Vector,
        state: State,
        messages: Mapping[int, Vector],
        facts: Mapping[int, Facts],
    ) -> dict[int, Vector]:
        """Takes one outer Nesterov step along the mean pseudo-gradient."""
        gradient = mean_of(messages, facts)
        velocity = state["velocity"]
        velocity *= self.outer_momentum
        velocity += gradient
        gradient += self.outer_momentum * velocity
        gradient *= self.outer_learning_rate
        center -= gradient
        return dict.fromkeys(messages, center)

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Adopts the center."""
        return adopt_reply(local, pushed, reply)

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns 1 / L: below it a window never steps past the optimum."""
        return 1.0 / curvature
