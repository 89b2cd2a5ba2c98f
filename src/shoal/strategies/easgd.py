"""Elastic averaging in rounds. This file decides synchronous EASGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from shoal.strategies.base import Facts, RoundStrategy, State, UsualPeriod
from shoal.strategies.elastic import ElasticStrategy
from shoal.strategies.mean import sum_of
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class EASGD(ElasticStrategy, RoundStrategy):
    """Elastic averaging in rounds: all workers and the center move closer together.

    Choose it over `LocalSGD` to let workers differ and explore, and over `AEASGD`
    for a run that repeats bit for bit. A round waits for its slowest worker, or for a
    `quorum` of them.

    For local weights x_i of the m workers in a round and center c, one exchange is

        e_i = moving_rate * (x_i - c),   moving_rate = beta / m
        c <- c + sum of e_i     (server, `merge`)
        x_i <- x_i - e_i        (worker, `pull`)

    hence the sum of all x_i and c is unchanged, which the contract tests check.

    Args:
        beta: Total pull of all workers on the center, dimensionless, in (0, 1],
            default 0.9. The paper's beta.
        moving_rate: Pull of one worker, in (0, 1], default None: from `beta`. The
            paper's alpha.
        rho: With `learning_rate`, moving_rate = rho * learning_rate; default None.
        learning_rate: Step size of the workers, the paper's eta; default None.
        period: Local optimizer steps between two rounds, at least 1, or 0 for an
            epoch; default 10, and less where a worker would not make workers / beta
            rounds in an epoch. The paper's synchronous rule has 1: with that, the rate
            of adaptive optimizers does not follow the workers. The paper's tau.

    Messages: weights up, one displacement down; each the model's size in bytes.
    Stable below a learning rate of 2 / L, for curvature L.

    Raises:
        ConfigError: If `beta` or `moving_rate` is outside (0, 1], or of `rho` and
            `learning_rate` only one is given.

    Example:
        >>> import numpy as np
        >>> easgd = EASGD(beta=0.5)
        >>> center = np.array([0.0], "f4")
        >>> weights = {0: np.array([4.0], "f4"), 1: np.array([8.0], "f4")}
        >>> replies = easgd.merge(center, {}, weights, {0: Facts(), 1: Facts()})
        >>> easgd.pull(weights[0], weights[0], center, replies[0])[0], center
        (array([3.], dtype=float32), array([3.], dtype=float32))

    References:
        Zhang, Choromanska, LeCun (2015), arXiv:1412.6651, section 3, the synchronous
        updates of x and the center.
    """

    name: ClassVar[str] = "easgd"
    scales_rate_from: ClassVar[int | None] = 2
    promises: ClassVar[frozenset[str]] = frozenset({"conserves", "mean"})

    period: int = UsualPeriod(10)

    def merge(
        self,
        center: Vector,
        state: State,
        messages: Mapping[int, Vector],
        facts: Mapping[int, Facts],
    ) -> dict[int, Vector]:
        """Moves the center by the sum of displacements, each taken before it moved."""
        rate = self.moving_rate_for(len(messages))
        replies: dict[int, Vector] = {}
        for rank in messages:
            replies[rank] = messages[rank] - center
            replies[rank] *= rate
        center += sum_of(replies)
        return replies
