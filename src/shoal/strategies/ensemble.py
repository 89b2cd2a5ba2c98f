"""Independent models. This file decides that members of an ensemble share nothing."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, final

from shoal.strategies.base import Facts, ServerStrategy, State
from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True)
class Ensemble(ServerStrategy):
    """Trains several models apart, to combine their predictions or keep the best.

    Each member sees all the data, in an order and from a seed of its own. Choose it
    when a better prediction is worth several models; every other strategy gives one
    model sooner instead.

    For a member's weights x and its own center c, one exchange is only

        c <- x              (server, `apply`; one center per member)

    so that a member's progress is committed like that of `Single`.

    Args:
        members: Models to train, at least 1; default None means one per worker.
        period: Local optimizer steps between two copies, at least 1, or 0 for an
            epoch; default 10.

    Messages: weights up and down, each the model's size in bytes. Stable below
    a learning rate of 2 / L, for curvature L.

    Raises:
        ConfigError: If `members` is below 1 or `period` is negative.

    Example:
        >>> import numpy as np
        >>> ensemble = Ensemble(members=3)
        >>> local, center = np.array([4.0], "f4"), np.array([0.0], "f4")
        >>> message = ensemble.push(local, anchor=center, steps=10)
        >>> reply = ensemble.apply(center, {}, message, Facts())
        >>> ensemble.pull(local, local, center, reply)[0], center
        (array([4.], dtype=float32), array([4.], dtype=float32))

    References:
        Hansen, Salamon (1990), doi:10.1109/34.58871.
    """

    needs_anchor: ClassVar[bool] = False
    name: ClassVar[str] = "ensemble"
    is_independent: ClassVar[bool] = True

    members: int | None = None
    period: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = self.members is None or (
            isinstance(self.members, Integral) and self.members >= 1
        )
        self._require(is_valid, "members", "is a whole number of at least 1, or None")

    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the weights."""
        return local

    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        """Makes the member's weights its center."""
        center[:] = message
        return center

    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Returns the member's own weights."""
        return local, pushed

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns 2 / L: members never wait for each other."""
        return 2.0 / curvature

    def warnings(self, *, workers: int, exchanges_per_epoch: float) -> list[str]:
        """Returns nothing: members exchange nothing."""
        return []
