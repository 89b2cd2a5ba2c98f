"""Averaged weights, every few steps. This file decides a round of local SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from shoal.strategies.base import Facts, RoundStrategy, State, UsualPeriod, adopt_reply
from shoal.strategies.mean import mean_of
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class LocalSGD(RoundStrategy):
    """Averages weights every few steps: the curve of `AllReduce`, or near it, for less.

    Choose it when an exchange a step is too expensive and workers are equally fast.
    Choose `AEASGD` when they are not (a round waits for the slowest), `DiLoCo` when
    `period` is in the tens or more.

    For local weights x_i of s_i samples since the last round, one exchange is

        c <- (sum of s_i x_i) / (sum of s_i)    (server, `merge`)
        x_i <- c                                (worker, `pull`)

    Args:
        period: Local optimizer steps between two rounds, at least 1, or 0 for an
            epoch; default 10, and less where an epoch has fewer than 30 steps of a
            worker. The paper's H, tau elsewhere.

    Messages: weights up, one mean down; each the model's size in bytes. Stable below
    a learning rate of 2 / L, for curvature L: no mean of points lies farther from the
    optimum than the farthest of them.

    Raises:
        ConfigError: If `period` is negative.

    Example:
        >>> import numpy as np
        >>> local_sgd = LocalSGD(period=4)
        >>> center = np.zeros(1, "f4")
        >>> weights = {0: np.array([6.0], "f4"), 1: np.array([2.0], "f4")}
        >>> facts = {0: Facts(samples=3), 1: Facts(samples=1)}
        >>> local_sgd.merge(center, {}, weights, facts)[1]
        array([5.], dtype=float32)

    References:
        Stich (2018), arXiv:1805.09767, Algorithm 1.
    """

    name: ClassVar[str] = "local_sgd"
    needs_anchor: ClassVar[bool] = False
    scales_rate_from: ClassVar[int | None] = 1
    promises: ClassVar[frozenset[str]] = frozenset({"plain", "mean"})

    period: int = UsualPeriod(10)

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the weights."""
        return local

    def merge(
        self,
        center: Vector,
        state: State,
        messages: Mapping[int, Vector],
        facts: Mapping[int, Facts],
    ) -> dict[int, Vector]:
        """Makes the mean the center."""
        center[:] = mean_of(messages, facts)
        return dict.fromkeys(messages, center)

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Adopts the center."""
        return adopt_reply(local, pushed, reply)

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns 2 / L: rounds leave nothing late."""
        return 2.0 / curvature
