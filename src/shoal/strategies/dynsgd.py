"""Deltas divided by their staleness. This file decides DynSGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from shoal.strategies.base import Facts, ServerStrategy, State, UsualPeriod, adopt_reply
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class DynSGD(ServerStrategy):
    """Adds every worker's change to the center, divided by its staleness.

    A change computed from an old center is divided by its age. Choose it where
    workers differ in speed, or where `Downpour` overshoots; with equal workers each
    change counts about 1 / n, so that it behaves like asynchronous averaging.

    For local weights x, the anchor a they started from and k the server's updates
    since the worker's last pull plus 1, one exchange is

        d = x - a           (worker, `push`)
        c <- c + d / k      (server, `apply`)
        x <- c,  a <- c     (worker, `pull`)

    Args:
        period: Local optimizer steps between two exchanges, at least 1, or 0 for
            an epoch; default 20, and less where an epoch has fewer than 60 steps of a
            worker. A window should be longer than the memory of the
            worker's own momentum, ten steps with Adam.

    Messages: a difference up, weights down; each the model's size in bytes. Stable
    below a learning rate of 1 / L, for curvature L, whatever the staleness.

    Raises:
        ConfigError: If `period` is negative.

    Example:
        >>> import numpy as np
        >>> dynsgd = DynSGD(period=4)
        >>> anchor, center = np.array([1.0], "f4"), np.array([2.0], "f4")
        >>> local = np.array([5.0], "f4")
        >>> message = dynsgd.push(local, anchor, steps=4)
        >>> reply = dynsgd.apply(center, {}, message, Facts(staleness=2))
        >>> dynsgd.pull(local, local, anchor, reply)[0]
        array([4.], dtype=float32)

    References:
        Jiang, Cui, Zhang, Yu (2017), "Heterogeneity-aware distributed parameter
        servers", doi:10.1145/3035918.3035933, section 5.
    """

    name: ClassVar[str] = "dynsgd"
    message_is_change: ClassVar[bool] = True
    needs_anchor: ClassVar[bool] = False
    scales_rate_from: ClassVar[int | None] = 1
    moves_beyond: ClassVar[bool] = True
    promises: ClassVar[frozenset[str]] = frozenset({"plain"})

    period: int = UsualPeriod(20)

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the change since the last exchange."""
        return local - anchor

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        """Adds the change divided by its staleness."""
        center += message if facts.staleness <= 1 else message / facts.staleness
        return center

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Adopts the center."""
        return adopt_reply(local, pushed, reply)

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns 1 / L: staleness divides the change already."""
        return 1.0 / curvature
