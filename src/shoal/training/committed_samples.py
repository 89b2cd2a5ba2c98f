"""Samples that a run has committed, by epoch, and the steps they stand for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import final

from shoal.data.order import Order


@final
class CommittedSamples:
    """Counts what was committed; a rollback replaces the counts.

    Args:
        order: Order of the samples.
        models: Number of models that are trained on each sample.
    """

    def __init__(self, order: Order, models: int) -> None:
        self._order, self._models = order, models
        self._counts: Counter[int] = Counter()

    def add(self, epoch: int, samples: int) -> None:
        """Counts samples of an exchange."""
        self._counts[epoch] += samples

    def roll_back(self, counts: Mapping[str, int]) -> Iterable[int]:
        """Continues with other counts; returns the epochs that have any samples."""
        self._counts = Counter({int(epoch): n for epoch, n in counts.items()})
        return [epoch for epoch, n in self._counts.items() if n]

    @property
    def total(self) -> int:
        """Samples of all epochs."""
        return sum(self._counts.values())

    def before(self, epoch: int) -> int:
        """Samples of the epochs before one."""
        return sum(n for e, n in self._counts.items() if e < epoch)

    def after(self, epoch: int) -> int:
        """Samples of the epochs after one."""
        return sum(n for e, n in self._counts.items() if e > epoch)

    def steps_before(self, epoch: int) -> int:
        """Steps that plain Keras would have counted by the beginning of an epoch."""
        return sum(
            self._order.steps_within(e, n // self._models)
            for e, n in self._counts.items()
            if e < epoch
        )
