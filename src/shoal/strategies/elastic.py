"""The common part of elastic strategies: the moving rate, and the verbs.

This file decides how strongly workers and center pull each other, from one of
three spellings, and which spellings are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np

from shoal.errors import ConfigError, PlanError
from shoal.strategies.base import Facts, ServerStrategy, State, Strategy, UsualPeriod
from shoal.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class ElasticStrategy(Strategy):
    """An elastic force between worker and center. Subclass it beside a verb class.

    Args:
        beta: Total pull of all workers on the center, in (0, 1], default 0.9.
        moving_rate: Pull of one worker, in (0, 1]; overrides `beta`. The paper's alpha.
        rho: Strength of the force, above 0; with `learning_rate` it overrides `beta`.
        learning_rate: Step size eta that makes moving_rate = rho * learning_rate.
    """

    is_elastic: ClassVar[bool] = True
    needs_anchor: ClassVar[bool] = False
    reply_is_change: ClassVar[bool] = True
    promises: ClassVar[frozenset[str]] = frozenset({"conserves"})

    beta: float = 0.9
    moving_rate: float | None = None
    rho: float | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 < self.beta <= 1, "beta", "is in (0, 1]")
        for field in ("moving_rate", "rho", "learning_rate"):
            value = getattr(self, field)
            is_valid = value is None or (isinstance(value, Real) and float(value) > 0)
            self._require(is_valid, field, "is a number above 0, or None")
        if (self.rho is None) != (self.learning_rate is None):
            raise ConfigError(
                f"{self.name} was given one of rho={self.rho} and "
                f"learning_rate={self.learning_rate}. They make the moving rate "
                "together. Give both, or neither to use beta."
            )
        if self.moving_rate is not None and self.rho is not None:
            raise ConfigError(
                f"{self.name} was given moving_rate={self.moving_rate} and "
                f"rho={self.rho}. Each alone decides the pull of a worker. "
                "Give one of them."
            )
        rate = self.moving_rate_for(1)
        if rate > 1:
            raise ConfigError(
                f"{self.name} would move a worker past the center: moving_rate={rate}. "
                "Expected: at most 1. Lower moving_rate, or rho * learning_rate."
            )

    def moving_rate_for(self, workers: int) -> float:
        """Returns alpha, the share of its distance to the center that a worker moves.

        Args:
            workers: Number of workers that share `beta`, at least 1.
        """
        if self.moving_rate is not None:
            return float(self.moving_rate)
        if self.rho is not None and self.learning_rate is not None:
            return float(self.rho * self.learning_rate)
        return float(self.beta) / workers

    def period_within(self, steps: int, workers: int) -> int:
        """Returns the steps between two exchanges, at least 1.

        An exchange moves a worker by beta / n of its distance to the center, so that it
        takes n / beta exchanges to come near. A usual period is so short that an epoch
        has as many: workers that never come near have an average worse than each.

        Args:
            steps: Steps of a worker in an epoch, at least 1.
            workers: Number of workers.

        Example:
            >>> from shoal.strategies import AEASGD
            >>> [AEASGD().period_within(60, workers) for workers in (2, 8, 16, 64)]
            [10, 6, 3, 1]
            >>> AEASGD(period=10).period_within(60, 64)
            10
        """
        period = super().period_within(steps, workers)
        is_named = self.moving_rate is not None or self.rho is not None
        if is_named or not isinstance(self.period, UsualPeriod):
            return period
        return max(1, min(period, int(steps * self.beta / workers)))

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the weights."""
        return local

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Moves the worker toward the center by the displacement in the reply."""
        return local - reply, anchor

    def pull_into(
        self, out: Vector, local: Vector, anchor: Vector, reply: Vector
    ) -> None:
        """Moves the worker, without a temporary vector."""
        np.subtract(local, reply, out=out)

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns 2 / L: an exchange takes means, which never increase the distance."""
        return 2.0 / curvature

    def warnings(self, *, workers: int, exchanges_per_epoch: float) -> list[str]:
        """Adds a warning if the stability condition n * alpha <= 1 does not hold.

        Raises:
            PlanError: `moving_rate` was given and is too large for the workers.
        """
        found = super().warnings(
            workers=workers, exchanges_per_epoch=exchanges_per_epoch
        )
        rate = self.moving_rate_for(workers)
        # beta = 1 divided by n and multiplied again may be above 1.
        if workers * rate <= 1 + 1e-9:
            return found
        if self.moving_rate is not None:
            raise PlanError(
                f"{self.name} with moving_rate={rate:g} and {workers} workers pulls "
                f"the center by {workers * rate:g} of its distance to them. "
                "At most 1 is stable (workers * moving_rate). "
                f"Use moving_rate={1 / workers:.3g} or less, or beta instead."
            )
        found.append(
            f"{self.name} takes moving_rate={rate:g} from rho * learning_rate, and "
            f"{workers} workers make {workers * rate:g} of it together. "
            "At most 1 is known to be stable. Use beta instead of rho."
        )
        return found


@dataclass(frozen=True, kw_only=True)
class ElasticServer(ElasticStrategy, ServerStrategy):
    """The common part of elastic strategies that exchange on arrival."""

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        """Moves the center toward the worker and returns the displacement."""
        reply = np.empty_like(message)
        self.apply_into(reply, center, state, message, facts)
        return reply

    def apply_into(
        self, reply: Vector, center: Vector, state: State, message: Vector, facts: Facts
    ) -> None:
        """Moves the center, and writes the displacement into the send buffer.

        The worker's part, x <- x - e, must use this very e: a difference computed
        elsewhere would be from a center that has moved since.
        """
        np.subtract(message, center, out=reply)
        reply *= self.moving_rate_for(facts.workers)
        center += reply
