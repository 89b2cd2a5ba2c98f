"""A model whose weights count the samples it was trained on."""

from __future__ import annotations

import numpy as np

from shoal.backends.base import Clock, Data
from shoal.testing.linear import LinearBackend


class CountingBackend(LinearBackend):
    """Every local step adds its samples to every weight.

    A center to which differences of weights are added, as by DOWNPOUR, is then the
    number of samples that came in: one that came twice, or never, shows.
    """

    def run(self, data: Data, steps: int, clock: Clock) -> int | None:
        """Counts."""
        del steps, clock
        x, y = data
        self._sum_of_gradients(x, y, self._weights)  # for the metrics
        self._weights = self._weights + np.float32(len(y))
        return None
