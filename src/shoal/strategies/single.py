"""Plain training on one worker. This file decides the baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from shoal.strategies.base import Facts, ServerStrategy, State
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class Single(ServerStrategy):
    """Trains on one worker, as Keras does: the baseline for every comparison.

    Choose it to know what the others must reach, or to run one process with the
    run folder, restarts and checkpoints of Shoal. With several workers choose
    `AllReduce`, which keeps the same curve.

    For local weights x and center c, one exchange is

        c <- x              (server, `apply`)

    and the worker goes on unchanged.

    Args:
        period: Local optimizer steps between two copies to the server, at least 1, or
            0 for an epoch; default 10. It changes how often progress is committed, not
            the weights.

    Messages: weights up and down, each the model's size in bytes. Stable below
    a learning rate of 2 / L, for curvature L.

    Raises:
        ConfigError: If `period` is negative.

    Example:
        >>> import numpy as np
        >>> single = Single()
        >>> local, center = np.array([4.0], "f4"), np.array([0.0], "f4")
        >>> message = single.push(local, anchor=center, steps=10)
        >>> reply = single.apply(center, {}, message, Facts())
        >>> single.pull(local, local, center, reply)[0], center
        (array([4.], dtype=float32), array([4.], dtype=float32))

    References:
        Robbins, Monro (1951), doi:10.1214/aoms/1177729586, equation 6.
    """

    name: ClassVar[str] = "single"
    max_workers: ClassVar[int | None] = 1
    needs_anchor: ClassVar[bool] = False
    promises: ClassVar[frozenset[str]] = frozenset({"plain"})

    period: int = 10

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the weights."""
        return local

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        """Makes the worker's weights the center."""
        center[:] = message
        return center

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Returns the worker's own weights; the pushed weights are the center now."""
        return local, pushed

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns 2 / L: nothing is ever late."""
        return 2.0 / curvature

    def warnings(self, *, workers: int, exchanges_per_epoch: float) -> list[str]:
        """Returns nothing: few exchanges cost no accuracy here."""
        return []
