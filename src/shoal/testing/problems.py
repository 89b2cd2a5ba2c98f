"""Tiny problems with known answers, which a strategy must solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from shoal.vectors import Vector


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LeastSquares:
    """Linear regression that some weights fit exactly, so that noise vanishes there.

    At the optimum every sample's gradient is zero. A strategy that is correct
    therefore reaches it at a constant learning rate, whatever the order of messages.

    The loss of rows B is the mean over B of (x . w - y)^2 / 2.

    Args:
        features: One sample a row, of length 1 each.
        optimum: Weights that fit every row.

    Example:
        >>> problem = LeastSquares.seeded(rows=8, size=3, seed=1)
        >>> problem.loss(problem.optimum)
        0.0
    """

    features: npt.NDArray[np.float64]
    optimum: Vector

    @classmethod
    def seeded(cls, *, rows: int = 96, size: int = 6, seed: int = 0) -> LeastSquares:
        """Draws a problem; rows have length 1, so that `curvature` is at most 1."""
        random = np.random.default_rng(seed)
        features = random.standard_normal((rows, size))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        return cls(
            features=features,
            optimum=random.standard_normal(size).astype(np.float32),
        )

    @property
    def rows(self) -> int:
        """Number of samples."""
        return self.features.shape[0]

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.features.shape[1]

    @property
    def curvature(self) -> float:
        """Largest eigenvalue that the Hessian of any mini-batch can have."""
        return float(np.max(np.sum(self.features**2, axis=1)))

    def gradient(self, weights: Vector, rows: npt.NDArray[np.int64]) -> Vector:
        """Returns the mean gradient over `rows`, float32."""
        features = self.features[rows]
        error = features @ (weights.astype(np.float64) - self.optimum)
        return (features.T @ error / len(rows)).astype(np.float32)

    def loss(self, weights: Vector) -> float:
        """Returns the mean loss over all rows."""
        error = self.features @ (weights.astype(np.float64) - self.optimum)
        return float(np.mean(error**2) / 2)

    def distance(self, weights: Vector) -> float:
        """Returns the distance of weights from the optimum, 1.0 at the origin."""
        return float(
            np.linalg.norm(weights - self.optimum) / np.linalg.norm(self.optimum)
        )
