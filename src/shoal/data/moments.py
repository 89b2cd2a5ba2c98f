"""Count, mean and variance of numbers that come part by part.

This file decides the arithmetic of `shoal.data.adapt`: parts are summed in float64 and
merged so that neither their order nor their sizes matter beyond rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count of numbers, their mean, and their squared distances from it.

    A plain sum of squares would lose all digits if the mean is large compared with the
    spread, as with times in seconds since 1970. Two parts with counts a and b, means
    A and B and sums of squared distances P and Q become

        mean = A + (B - A) * b / (a + b)
        squares = P + Q + (B - A)^2 * a * b / (a + b)

    Args:
        count: Number of values in each mean.
        mean: Means, one for each position along the kept axes.
        squares: Sums of squared distances from the mean.

    Example:
        >>> one = Moments.of(np.array([[1.0], [2.0]]), keep=(1,))
        >>> all_of_them = one.merged(Moments.of(np.array([[6.0]]), keep=(1,)))
        >>> all_of_them.count, all_of_them.mean, all_of_them.variance
        (3, array([3.]), array([4.66666667]))

    References:
        Chan, Golub, LeVeque (1979), "Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances", equation 2.1.
    """

    count: int
    mean: Floats
    squares: Floats

    @classmethod
    def of(cls, values: npt.NDArray[Any], keep: tuple[int, ...]) -> Moments:
        """Computes the moments of one part.

        Args:
            values: At least one row, rows first.
            keep: Axes with a mean for each position, ascending, from 1.
        """
        axes = tuple(axis for axis in range(values.ndim) if axis not in keep)
        shape = tuple(values.shape[axis] for axis in keep)
        exact = values.astype(np.float64)
        # Values that are not finite end up in `squares`, which the caller checks.
        with np.errstate(invalid="ignore", over="ignore"):
            mean = exact.mean(axis=axes, keepdims=True)
            exact -= mean
            squares = np.square(exact, out=exact).sum(axis=axes)
        return cls(
            count=int(np.prod([values.shape[axis] for axis in axes])),
            mean=mean.reshape(shape),
            squares=squares.reshape(shape),
        )

    def merged(self, other: Moments) -> Moments:
        """Returns the moments of both parts together."""
        count = self.count + other.count
        share = other.count / count
        with np.errstate(invalid="ignore", over="ignore"):
            apart = other.mean - self.mean
            mean = self.mean + apart * share
            between = apart**2 * (self.count * share)
            squares = self.squares + other.squares + between
        return Moments(count=count, mean=mean, squares=squares)

    @property
    def variance(self) -> Floats:
        """Mean squared distance from the mean, as `numpy.var`."""
        return self.squares / self.count


def merge(parts: Iterable[Moments]) -> Moments:
    """Returns the moments of all parts together; there is at least one.

    Example:
        >>> parts = [Moments.of(np.full((1, 1), n), keep=()) for n in range(5)]
        >>> float(merge(parts).mean), float(merge(parts).variance)
        (2.0, 2.0)
    """
    return reduce(Moments.merged, parts)
