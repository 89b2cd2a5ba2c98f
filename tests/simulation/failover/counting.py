"""Models whose weights count the samples they were trained on."""

from __future__ import annotations

import numpy as np

from shoal.backends.base import Clock, ComputeSpec, Data
from shoal.vectors import Vector
from tests.support.linear import LinearBackend


class CountingBackend(LinearBackend):
    """Every local step adds its samples to every weight.

    A center to which differences of weights are added, as by DOWNPOUR, is then the
    number of samples that came in: one that came twice, or never, shows.
    """

    def run(self, data: Data, steps: int, clock: Clock) -> int | None:
        """Adds the samples of each step."""
        del steps, clock
        x, y = data
        self._sum_of_gradients(x, y, self._weights)  # for the metrics
        self._weights = self._weights + np.float32(len(y))
        return None


class EmbeddingBackend(LinearBackend):
    """A weight for each sample, which every step with that sample makes larger by 1.

    The loss is the negative sum over the batch of the samples' weights, so that each
    has a gradient of -1, and SGD has a rate of 1. After any number of epochs every
    weight is that number: a sample that counted twice, never, or for too much shows.

    Args:
        size: Number of weights; samples are rows of the identity of that size.
        spec: Spec of the backend; the loss is summed.
    """

    def __init__(self, size: int, spec: ComputeSpec) -> None:
        super().__init__(size, spec, rate=1.0)

    def gradient(self, data: Data, step_rows: int, out: Vector) -> float:
        """Writes the sum of gradients of a loss that is scaled to the whole step."""
        x, y = data
        self._sum_of_gradients(x, y, self._weights)  # for the metrics
        out[:] = x.sum(axis=0) * -np.float32(step_rows)
        return float(len(y))
