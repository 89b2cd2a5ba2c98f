"""Loss and metrics of single exchanges, from the sums of their epoch so far.

This file decides which metrics an exchange has: those that are means, because their
result is a division. Others, such as AUC, are known for epochs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import numpy as np

from shoal.models.metrics import MetricStates
from shoal.vectors import Sums

KEPT_EPOCHS = 4  # those that may be open at once, and more
COUNT = 4.0


@final
class ExchangeMeans:
    """Takes the sums after each exchange, and returns the means of that exchange.

    Args:
        model: Model whose metrics are built.
        states: Layout of the sums.
    """

    def __init__(self, model: Any, states: MetricStates) -> None:
        self._model, self._states = model, states
        self._before: dict[int, Sums | None] = {}

    @cached_property
    def _places(self) -> Mapping[str, tuple[int, int]]:
        """Name -> indices of a total and its count."""
        pairs = _pairs(self._states)
        probe = np.zeros(self._states.size)
        expected: dict[float, tuple[int, int]] = {}
        for number, (total, count) in enumerate(pairs):
            value = 1000.5 + number  # no result but a mean is this number
            probe[total], probe[count] = COUNT * value, COUNT
            expected[value] = (total, count)
        results = self._states.results(self._model, probe)
        found = {
            name: expected[value]
            for name, value in results.items()
            if isinstance(value, float) and value in expected
        }
        logs, end = self._states.logs, self._states.size
        first = end - 1 - len(logs)
        logged = {name: (first + n, end - 1) for n, name in enumerate(logs)}
        return {**found, **logged}

    def forget(self, epochs: Iterable[int]) -> None:
        """Notes epochs whose sums so far are unknown, and drops those of others."""
        self._before = dict.fromkeys(epochs)

    def of(self, epoch: int, sums: Sequence[float] | None) -> dict[str, float]:
        """Returns the means of an exchange; none if they cannot be known.

        Args:
            epoch: Its epoch.
            sums: Sums of the epoch after the exchange, or only the first of them.
        """
        if sums is None:
            return {}
        now = np.asarray(sums)
        before = self._before.get(epoch, np.zeros(now.size))
        self._before[epoch] = now
        if len(self._before) > KEPT_EPOCHS:
            del self._before[min(self._before)]
        if before is None:
            return {}
        with np.errstate(all="ignore"):  # a run that diverges has infinite sums
            own = now - before
            return {
                name: float(own[total] / own[count])
                for name, (total, count) in self._places.items()
                if count < own.size and own[count] > 0
            }


def _pairs(states: MetricStates) -> list[tuple[int, int]]:
    """Returns the indices of scalars named total that are followed by a count."""
    found: list[tuple[int, int]] = []
    start = 0
    for one, other in pairwise(states.entries):
        names = one.name.rpartition("/")[2], other.name.rpartition("/")[2]
        if names == ("total", "count") and one.initial.size == other.initial.size == 1:
            found.append((start, start + 1))
        start += one.initial.size
    return found
