"""Averaged weights, once an epoch. This file decides Averaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from shoal.strategies.base import Facts, RoundStrategy, State, adopt_reply
from shoal.strategies.mean import mean_of
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class Averaging(RoundStrategy):
    """Averages weights once an epoch: the fewest messages, and the simplest rule.

    Choose it on links so slow that nothing else is possible, or to repeat old
    results. `LocalSGD` with a `period` of tens learns more from the same data.

    For local weights x_i of s_i samples of the epoch, one exchange is

        c <- (sum of s_i x_i) / (sum of s_i)    (server, `merge`)
        x_i <- c                                (worker, `pull`)

    Args:
        period: Default 0, one round an epoch; `LocalSGD` is this with more.

    Messages: weights up, one mean down; each the model's size in bytes. Stable below
    a learning rate of 2 / L, for curvature L.

    Raises:
        ConfigError: If `period` is negative.

    Example:
        >>> import numpy as np
        >>> averaging = Averaging()
        >>> center = np.zeros(1, "f4")
        >>> weights = {0: np.array([3.0], "f4"), 1: np.array([1.0], "f4")}
        >>> facts = {0: Facts(samples=50), 1: Facts(samples=50)}
        >>> averaging.merge(center, {}, weights, facts)[1]
        array([2.], dtype=float32)

    References:
        Zinkevich, Weimer, Li, Smola (2010), "Parallelized stochastic gradient
        descent", Algorithm 3, here repeated every epoch.
    """

    name: ClassVar[str] = "averaging"
    needs_anchor: ClassVar[bool] = False
    scales_rate_from: ClassVar[int | None] = 1
    promises: ClassVar[frozenset[str]] = frozenset({"plain", "mean"})

    period: int = 0

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

    def warnings(self, *, workers: int, exchanges_per_epoch: float) -> list[str]:
        """Returns nothing: one exchange an epoch is intended."""
        return []
