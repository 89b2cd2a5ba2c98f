"""Averaged gradients. This file decides how all workers take one common step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from shoal.strategies.base import Facts, RoundStrategy, State
from shoal.strategies.mean import share_of_sum
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class AllReduce(RoundStrategy):
    """Averages gradients at every step, so that the curve is that of plain Keras.

    All workers together take the step one worker would take on the whole batch.
    Choose it whenever the curve must not change and links are fast; choose
    `LocalSGD` or `AEASGD` when an exchange a step costs more than the step.

    For g_i the sum of gradients over the s_i samples of rank i, one exchange is

        g = (sum of g_i) / (sum of s_i)     (server, `merge`)
        x <- optimizer(x, g)                (every worker, the same)

    The center is not changed; it is a snapshot that one worker publishes.

    Args:
        scale_learning_rate: Multiply the learning rate, or its schedule,
            by the number of workers of the plan, for runs whose batch grows with
            them; default False. Callbacks and logs have the unscaled rate.
        warmup_epochs: Epochs over which the scaled rate grows linearly, step by step,
            from the unscaled one, at least 0, default 0. The paper uses 5.
        period: Always 1.

    Messages: gradients up, one mean down; each the model's size in bytes. Stable
    below a learning rate of 2 / L, for curvature L.

    Raises:
        ConfigError: If `period` is not 1, if `warmup_epochs` is negative, or if it is
            given without `scale_learning_rate`.

    Example:
        >>> import numpy as np
        >>> all_reduce = AllReduce()
        >>> center = np.zeros(1, "f4")
        >>> gradients = {0: np.array([6.0], "f4"), 1: np.array([2.0], "f4")}
        >>> facts = {0: Facts(samples=3), 1: Facts(samples=1)}
        >>> replies = all_reduce.merge(center, {}, gradients, facts)
        >>> replies[0], replies[1] is replies[0]
        (array([2.], dtype=float32), True)

    References:
        Goyal et al. (2017), arXiv:1706.02677, equations 2 to 4 and section 2.2.
    """

    name: ClassVar[str] = "all_reduce"
    message_is_change: ClassVar[bool] = True
    reply_is_change: ClassVar[bool] = True
    exchanges: ClassVar[Literal["weights", "gradients"]] = "gradients"
    needs_anchor: ClassVar[bool] = False
    promises: ClassVar[frozenset[str]] = frozenset({"plain", "mean"})

    scale_learning_rate: bool = False
    warmup_epochs: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.period == 1, "period", "is 1: gradients are of one step")
        self._require(self.warmup_epochs >= 0, "warmup_epochs", "is at least 0")
        is_used = self.scale_learning_rate or not self.warmup_epochs
        self._require(is_used, "warmup_epochs", "needs scale_learning_rate=True")

    def rate_scaling(self, workers: int) -> tuple[float, int]:
        """Returns the factor of the learning rate, and the epochs until it is reached.

        Example:
            >>> AllReduce(scale_learning_rate=True, warmup_epochs=5).rate_scaling(8)
            (8.0, 5)
        """
        if not self.scale_learning_rate:
            return 1.0, 0
        return float(workers), self.warmup_epochs

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the sum of gradients unchanged."""
        return local

    def merge(
        self,
        center: Vector,
        state: State,
        messages: Mapping[int, Vector],
        facts: Mapping[int, Facts],
    ) -> dict[int, Vector]:
        """Returns the mean gradient, one object for all ranks."""
        samples = sum(float(facts[rank].samples) for rank in messages)
        # Weights of zero come with gradients of zero, and must not become NaN.
        reply = share_of_sum(messages, samples if samples > 0 else 1.0)
        return dict.fromkeys(messages, reply)

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Returns the mean gradient, for the worker's optimizer to apply."""
        return reply, reply

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns 2 / L: no gradient is late."""
        return 2.0 / curvature
