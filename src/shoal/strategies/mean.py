"""Sums and means over a round, independent of the order of arrival.

Messages are summed in rank order. Two float32 vectors are added in float32,
because their sum does not depend on the order either, in a quarter of the time;
three and more are summed in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from shoal.strategies.base import Facts
from shoal.vectors import Vector

Sum: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def sum_of(messages: Mapping[int, Vector]) -> Sum:
    """Returns the sum of a round, float32 for up to two messages, else float64.

    With one message the result is that message itself: do not write into it.
    """
    first, *others = [messages[rank] for rank in sorted(messages)]
    if not others:
        return first
    if len(others) == 1:
        return first + others[0]
    total = first.astype(np.float64)
    for message in others:
        total += message
    return total


def share_of_sum(messages: Mapping[int, Vector], divisor: float) -> Vector:
    """Returns the sum of a round divided by a number, as a new float32 vector."""
    total = sum_of(messages)
    # A product takes half the time of a quotient, for at most one rounding more.
    factor = 1.0 / divisor
    if len(messages) == 2:
        return np.multiply(total, factor, out=cast(Vector, total))
    out = np.empty(total.shape, np.float32)
    return np.multiply(total, factor, out=out, casting="same_kind")


def mean_of(messages: Mapping[int, Vector], facts: Mapping[int, Facts]) -> Vector:
    """Returns the mean of a round weighted by samples, as a new float32 vector.

    If all messages together have weight zero (sample weights of zero), they count
    equally, so that such a round causes no division by zero.
    """
    weights = {rank: float(facts[rank].samples) for rank in messages}
    whole = sum(weights.values())
    if whole <= 0 or len(set(weights.values())) == 1:
        return share_of_sum(messages, len(messages))
    mean = np.zeros(next(iter(messages.values())).shape, np.float64)
    for rank in sorted(messages):
        mean += np.multiply(messages[rank], weights[rank] / whole, dtype=np.float64)
    return mean.astype(np.float32)
