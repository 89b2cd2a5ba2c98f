"""A backend without a framework: least squares by plain SGD, in NumPy.

This file has the smallest problem that the engine can train: tests of the engine
start no framework, and know every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.backends.base import Backend, Clock, ComputeSpec, Data
from shoal.testing.problems import LeastSquares
from shoal.vectors import Layout, VariableSlice, Vector


@final
class LinearRows:
    """The rows of a problem as a data source: (features, targets).

    Args:
        problem: Problem that has the rows.
    """

    def __init__(self, problem: LeastSquares) -> None:
        self._features = problem.features.astype(np.float32)
        self._targets = self._features @ problem.optimum

    def take(self, indices: npt.NDArray[np.int64]) -> Data:
        """Returns rows by index."""
        return self._features[indices], self._targets[indices]


class LinearBackend(Backend):
    """Least squares with SGD; metrics are the sum of losses and the count of rows.

    The one statistic is the mean of the last batch's targets, as batch norm would
    keep it.

    Args:
        size: Size of the weights.
        spec: Spec of the computation.
        rate: Learning rate.
    """

    def __init__(self, size: int, spec: ComputeSpec, rate: float = 0.1) -> None:
        self.layout = Layout((VariableSlice(path="w", shape=(size,), dtype="float32"),))
        self.statistics_layout = Layout(
            (VariableSlice(path="m", shape=(1,), dtype="float32"),)
        )
        self.metrics_size = 2
        self._spec, self._rate = spec, rate
        self._weights: npt.NDArray[Any] = np.zeros(size, np.float32)
        self._velocity: npt.NDArray[Any] = np.zeros(size, np.float32)
        self._statistics: npt.NDArray[Any] = np.zeros(1, np.float32)
        self._sums = np.zeros(2)
        self.steps = 0

    def load(self, vector: Vector, statistics: Vector) -> None:
        """Sets weights and statistics."""
        self._weights, self._statistics = vector.copy(), statistics.copy()

    def read(self) -> tuple[Vector, Vector]:
        """Returns weights and statistics."""
        return self._weights, self._statistics

    def _sum_of_gradients(self, x: Vector, y: Vector, weights: npt.NDArray[Any]) -> Any:
        # No matmul: its kernels may raise floating-point flags for unused lanes.
        error = (x * weights).sum(axis=1) - y
        self._sums += [float(np.sum(error.astype(np.float64) ** 2)) / 2, len(y)]
        self._statistics = np.array([y.mean()], np.float32)
        return (x * error[:, None]).sum(axis=0)

    def run(self, data: Data, steps: int, clock: Clock) -> int | None:
        """Takes local steps."""
        (x, y), turned = data, None
        size, mu = -(-len(y) // steps), self._spec.local_momentum
        for step, at in enumerate(range(0, len(y), size)):
            ahead = self._weights + mu * self._velocity
            part = x[at : at + size], y[at : at + size]
            mean = self._sum_of_gradients(*part, ahead) / len(part[1])
            self._velocity = mu * self._velocity - self._rate * mean
            self._weights = self._weights + self._velocity
            self.steps += 1
            if turned is None and not np.isfinite(self._sums[0]):
                turned = step
        return turned

    def gradient(self, data: Data, step_rows: int, out: Vector) -> float:
        """Writes the sum of gradients of one step; returns its rows."""
        x, y = data
        out[:] = self._sum_of_gradients(x, y, self._weights)
        if self._spec.is_summed:
            out *= step_rows
        return float(len(y))

    def apply(self, mean: Vector, clock: Clock) -> None:
        """Takes a step with a mean gradient."""
        self._weights = self._weights - self._rate * mean
        self.steps += 1

    def statistics(self) -> Vector:
        """Returns the statistics."""
        return self._statistics

    def set_statistics(self, statistics: Vector) -> None:
        """Sets the statistics."""
        self._statistics = statistics.copy()

    def take_metrics(self, out: npt.NDArray[np.float64], *, add: bool) -> None:
        """Adds the sums to `out`, and resets them."""
        out[:] = out + self._sums if add else self._sums
        self._sums[:] = 0.0

    def change(
        self,
        fixed: Mapping[int, npt.NDArray[Any]],
        optimizer: Mapping[int, npt.NDArray[Any]],
    ) -> None:
        """Takes an optimizer's only variable, the number of steps taken."""
        del fixed
        if 0 in optimizer:
            self.steps = int(optimizer[0])

    def set_learning_rate(self, value: float) -> None:
        """Sets the learning rate."""
        self._rate = value

    def snapshot(self) -> bytes:
        """Returns the number of steps taken."""
        return self.steps.to_bytes(8, "little")

    def restore(self, blob: bytes) -> None:
        """Sets the number of steps taken."""
        self.steps = int.from_bytes(blob, "little")

    def undo(self) -> None:
        """Does nothing: nothing is drawn or counted."""

    def skip(self) -> None:
        """Draws nothing."""

    def keep(self) -> tuple[Any, ...]:
        """Returns all state; nothing is changed in place."""
        return self._weights, self._statistics, self._velocity, self.steps

    def revert(self, kept: tuple[Any, ...]) -> None:
        """Goes back to a state that was kept."""
        self._weights, self._statistics, self._velocity, self.steps = kept
        self._sums[:] = 0.0

    def fork(self, rank: int) -> tuple[Any, ...]:
        """Returns a copy of all state."""
        del rank
        return self._weights, self._statistics, self._velocity.copy(), self.steps

    def swap(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Exchanges all state."""
        before = self._weights, self._statistics, self._velocity, self.steps
        self._weights, self._statistics, self._velocity, self.steps = state
        return before

    def renew(
        self, model: Sequence[Any], optimizer: Sequence[Any], rank_seed: int
    ) -> None:
        """Does nothing: the backend is opened anew for each run."""
        raise NotImplementedError

    def warm_up(self, data: Data, *, is_gradient: bool) -> None:
        """Does nothing: there is nothing to compile."""
        del data, is_gradient

    @staticmethod
    def forget() -> None:
        """Does nothing: nothing is kept."""
