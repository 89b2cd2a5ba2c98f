"""Elastic averaging on arrival. This file decides asynchronous EASGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from shoal.strategies.base import UsualPeriod
from shoal.strategies.elastic import ElasticServer


@final
@dataclass(frozen=True, kw_only=True)
class AEASGD(ElasticServer):
    """Elastic averaging, asynchronous: each worker and the center move closer together.

    Every `period` local steps a worker and the center move toward each other by
    the same amount, so that neither jumps. Choose it over `Downpour` when workers
    drift between exchanges, that is when `period` is large or links are slow.

    For local weights x, center c and n workers, one exchange is

        e = moving_rate * (x - c),   moving_rate = beta / n
        c <- c + e          (server, `apply`)
        x <- x - e          (worker, `pull`)

    hence x + c is unchanged, which the contract tests check.

    Args:
        beta: Total pull of all workers on the center, dimensionless, in (0, 1],
            default 0.9. The paper's beta.
        moving_rate: Pull of one worker, in (0, 1], default None: from `beta`. The
            paper's alpha.
        rho: With `learning_rate`, moving_rate = rho * learning_rate; default None.
        learning_rate: Step size of the workers, the paper's eta; default None.
        period: Local optimizer steps between two exchanges, at least 1, or 0 for
            an epoch; default 10, and less where a worker would not make workers / beta
            exchanges in an epoch. The paper's tau.

    Messages: weights up, one displacement down; each the model's size in bytes.
    Stable below a learning rate of 2 / L, for curvature L.

    Raises:
        ConfigError: If `beta` or `moving_rate` is outside (0, 1], or of `rho` and
            `learning_rate` only one is given.

    Example:
        >>> import numpy as np
        >>> from shoal.strategies import Facts
        >>> aeasgd = AEASGD(beta=0.5, period=4)
        >>> local, center = np.array([4.0], "f4"), np.array([0.0], "f4")
        >>> message = aeasgd.push(local, anchor=center, steps=4)
        >>> reply = aeasgd.apply(center, {}, message, Facts(workers=2, staleness=1))
        >>> aeasgd.pull(local, local, center, reply)[0], center
        (array([3.], dtype=float32), array([1.], dtype=float32))

    References:
        Zhang, Choromanska, LeCun (2015), arXiv:1412.6651, Algorithm 1.
    """

    name: ClassVar[str] = "aeasgd"
    scales_rate_from: ClassVar[int | None] = 1

    period: int = UsualPeriod(10)
