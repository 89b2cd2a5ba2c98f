"""The interface of a compute backend: a worker's model as programs on flat vectors.

This file decides what the engine may ask of JAX, TensorFlow or torch, so that
none of them is known outside this folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.facts import SAMPLE_ROWS
from shoal.vectors import Layout, Vector

Mass: TypeAlias = Literal["rows", "weights", "entries", "entry weights"]
Data: TypeAlias = Any
"""A pytree `(x,)`, `(x, y)` or `(x, y, sample_weight)` of arrays, rows first."""


@dataclass(frozen=True, kw_only=True)
class RateScaling:
    """A factor of the learning rate that grows linearly from 1 (arXiv:1706.02677, 2.2).

    Args:
        factor: Factor at the end of the growth.
        steps: Steps of the user's batch size until `factor`; 0 begins with the factor.
        began: The run clock at the first of these steps.
    """

    factor: float
    steps: float
    began: float


@dataclass(frozen=True, kw_only=True)
class ComputeSpec:
    """How a worker computes: sizes, masses and the kind of its losses.

    Args:
        window: Maximum number of steps of one call of `run`.
        batch_size: Rows of one full step of this worker.
        local_momentum: mu of the look-ahead Nesterov step, 0 for none.
        mass: Weight of a gradient in a mean: its rows, or its sample weights; or the
            "entries" that the mask of its outputs leaves, or "entry weights", their
            sample weights. Metrics weigh a worker's loss by its rows in any case.
        is_summed: Whether losses of `compile` sum over the batch instead of averaging.
        summed: Indices of losses added by layers that sum over the batch.
        loss_at: Indices of the loss among the sums of metrics.
        applied: Number of times that a training step applies each optimizer, in the
            order of `optimizers_of`; empty for the first one, once.
        logs: Names that `train_step` logs beyond the model's metrics. Their sums over
            rows, and the rows, follow the metric states.
        rank_seed: Number mixed into random state, so that dropout differs by rank.
        memory_share: Share of a GPU's memory that this worker may take, if the
            environment does not tell the backend.
        is_alone: Whether there is one worker; random numbers are then those of plain
            Keras. Otherwise a backend may use cheaper ones.
        has_one_thread: Whether programs compute with one thread; a backend may have
            faster programs for that.
        sample_rows: Rows on which the model is tried, to find out its outputs.
        scaling: Scaling of the learning rate; None leaves it as it is.
        has_nan_policy: Whether `on_nan` was given. Then the loss of a step that raises
            on rows or weights that are not finite, as PyTorch's binary cross-entropy
            does, counts as NaN. Otherwise it raises, as plain Keras does.
    """

    window: int
    batch_size: int
    local_momentum: float = 0.0
    mass: Mass = "rows"
    is_summed: bool = False
    summed: tuple[int, ...] = ()
    loss_at: tuple[int, ...] = ()
    applied: tuple[int, ...] = ()
    logs: tuple[str, ...] = ()
    rank_seed: int = 0
    memory_share: float = 1.0
    is_alone: bool = True
    has_one_thread: bool = False
    sample_rows: int = SAMPLE_ROWS
    scaling: RateScaling | None = None
    has_nan_policy: bool = False

    @property
    def is_scaled(self) -> bool:
        """Whether a part of the loss is scaled to the rows of the whole step."""
        return self.is_summed or bool(self.summed)

    @property
    def has_masks(self) -> bool:
        """Whether the mass of a gradient depends on the mask of the outputs."""
        return self.mass.startswith("entr")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The run clock at the start of a window, in steps of the user's batch size.

    Args:
        start: Committed steps, plus where the optimizer began.
        pace: Ticks in one local step: live workers, or 1 under gradient exchange.
    """

    start: float = 0.0
    pace: float = 1.0


class Backend(ABC):
    """A compiled model on one device, seen as vectors.

    Vectors returned are views that stay valid until the next call.

    Args:
        model: A built and compiled model.
        spec: How it is computed.
    """

    model: Any = None
    layout: Layout
    statistics_layout: Layout
    metrics_size: int

    @abstractmethod
    def load(self, vector: Vector, statistics: Vector) -> None:
        """Sets weights and statistics; `vector` must stay unchanged until `run`."""

    @abstractmethod
    def read(self) -> tuple[Vector, Vector]:
        """Returns weights and statistics."""

    @abstractmethod
    def run(self, data: Data, steps: int, clock: Clock) -> int | None:
        """Takes `steps` optimizer steps over the rows of `data`, in order.

        Steps of a gradient exchange may come before and after it.

        Returns:
            Index of the first step, from 0, whose loss was not finite; None for none.
        """

    @abstractmethod
    def gradient(self, data: Data, step_rows: int, out: Vector) -> float:
        """Writes the sum of gradients of one step; returns its mass.

        Args:
            data: The worker's share of the step.
            step_rows: Rows of the whole step, over all workers.
            out: Receives the sum: the mean times the mass, `(size,)`.
        """

    @abstractmethod
    def undo(self) -> None:
        """Restores random and counted state to that before the last `gradient`.

        The gradient is computed again then. Called only for a loss that `is_scaled`.
        """

    @abstractmethod
    def apply(self, mean: Vector, clock: Clock) -> None:
        """Applies a mean gradient with the worker's own optimizer, at once."""

    @abstractmethod
    def statistics(self) -> Vector:
        """Returns the statistics alone."""

    @abstractmethod
    def set_statistics(self, statistics: Vector) -> None:
        """Sets the statistics alone."""

    @abstractmethod
    def take_metrics(self, out: npt.NDArray[np.float64], *, add: bool) -> None:
        """Writes (or adds) sums of metric state since the last call; resets them."""

    @abstractmethod
    def change(
        self,
        fixed: Mapping[int, npt.NDArray[Any]],
        optimizer: Mapping[int, npt.NDArray[Any]],
    ) -> None:
        """Sets variables to other values, as a callback did in the user's process.

        Args:
            fixed: Values by index, among the model's variables that are neither trained
                nor statistics.
            optimizer: Values by index, among the optimizer's variables.
        """

    @abstractmethod
    def set_learning_rate(self, value: float) -> None:
        """Sets the optimizer's learning rate; no-op under a schedule."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """Returns optimizer and local state as raw bytes in a fixed order."""

    @abstractmethod
    def restore(self, blob: bytes) -> None:
        """Restores a `snapshot` of any worker; seeds stay this worker's own."""

    @abstractmethod
    def skip(self) -> None:
        """Notes a step of a gradient exchange of which this worker has no rows."""

    def fork_local(self, rank: int) -> Any:
        """Returns the local state with which worker `rank` would begin.

        With `local` and `set_local` one set of programs computes for all workers of a
        gradient exchange, which differ in nothing else. None if there is no such state.
        """
        del rank

    def local(self) -> Any:
        """Returns the current local state; see `fixed.py`."""
        return None

    def set_local(self, state: Any) -> None:
        """Continues from a local state that `local` or `fork_local` returned."""
        del state

    @abstractmethod
    def keep(self) -> tuple[Any, ...]:
        """Returns the whole current state for `revert`; valid until the next call.

        The parts are private to the backend. A vector that was given to `load` is not
        copied.
        """

    @abstractmethod
    def revert(self, kept: tuple[Any, ...]) -> None:
        """Restores the state that `keep` returned; sums of metrics start again."""

    @abstractmethod
    def fork(self, rank: int) -> tuple[Any, ...]:
        """Returns the state with which worker `rank` would begin, before any step.

        With `swap` one set of compiled programs serves many workers in turn. The
        parts are private to the backend.
        """

    @abstractmethod
    def swap(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Continues as the worker with `state`; returns the previous state."""

    @abstractmethod
    def renew(
        self, model: Sequence[Any], optimizer: Sequence[Any], rank_seed: int
    ) -> None:
        """Starts over with the state of a new worker; compiled programs stay.

        Args:
            model: Values of all the model's variables, in the model's order.
            optimizer: Values of the optimizer's variables.
            rank_seed: Number mixed into random state; see `ComputeSpec`.
        """

    @abstractmethod
    def warm_up(self, data: Data, *, is_gradient: bool) -> None:
        """Compiles the programs of the run, with data of a full step or window."""

    @staticmethod
    @abstractmethod
    def forget() -> None:
        """Frees all programs and models of this process."""
