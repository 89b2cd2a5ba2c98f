"""What a compute backend is: one worker's model as programs on flat vectors.

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
        factor: Where it ends.
        steps: Steps of the user's batch size until then; 0 begins with the factor.
        began: The run clock at the first of them.
    """

    factor: float
    steps: float
    began: float


@dataclass(frozen=True, kw_only=True)
class ComputeSpec:
    """How a worker computes.

    Args:
        window: Most steps of one call of `run`.
        batch_size: Rows of one full step of this worker.
        local_momentum: mu of the look-ahead Nesterov step, 0 for none.
        mass: What a gradient weighs in a mean: its rows, or its sample weights; or the
            "entries" that the mask of its outputs leaves, or "entry weights", their
            sample weights. Metrics weigh a worker's loss by its rows in any case.
        is_summed: The losses of `compile` sum over the batch instead of averaging.
        summed: Places of losses that layers add and that do so.
        loss_at: Places of the loss among the sums of metrics.
        applied: How often a training step applies each optimizer of the model, in the
            order of `optimizers_of`; empty for the first one, once.
        logs: What `train_step` logs beyond the model's metrics. Its sums over rows,
            and the rows, follow the metric states.
        rank_seed: Mixed into random state, so that dropout differs by rank.
        memory_share: Of a GPU's memory, that this worker may take, where the backend
            is not told by its environment.
        is_alone: Random numbers are those of plain Keras, as there is one worker;
            a backend may have cheaper ones.
        has_one_thread: Its programs compute with one thread; a backend may have ways
            that are quicker then.
        sample_rows: Rows that tell what the model makes of data.
        scaling: Of the learning rate; None leaves it as it is.
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

    @property
    def is_scaled(self) -> bool:
        """Whether a part of the loss is scaled to the rows of the whole step."""
        return self.is_summed or bool(self.summed)

    @property
    def has_masks(self) -> bool:
        """Whether a gradient weighs what the mask of the outputs leaves."""
        return self.mass.startswith("entr")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The run clock at the start of a window, in steps of the user's batch size.

    Args:
        start: Committed steps, plus where the optimizer began.
        pace: Ticks in one local step: live workers, or 1 for a gang.
    """

    start: float = 0.0
    pace: float = 1.0


class Backend(ABC):
    """A compiled model on one device, seen as vectors.

    Vectors returned are views that stay valid until the next call.

    Args:
        model: Built and compiled.
        spec: How it is run.
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

        Returns:
            The first of them, from 0, whose loss was not finite; None for none.
        """

    @abstractmethod
    def gradient(self, data: Data, gang_rows: int, out: Vector) -> float:
        """Writes the sum of gradients of one step; returns its mass.

        Args:
            data: The worker's share of the step.
            gang_rows: Rows of all shares.
            out: Where the sum goes: the mean times the mass, `(size,)`.
        """

    @abstractmethod
    def undo(self) -> None:
        """Takes random and counted state back to before the last `gradient`.

        It is computed anew then. Nobody asks for it but where a loss `is_scaled`.
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
        """Writes (or adds) sums of metric state since the last call; starts again."""

    @abstractmethod
    def change(
        self,
        fixed: Mapping[int, npt.NDArray[Any]],
        optimizer: Mapping[int, npt.NDArray[Any]],
    ) -> None:
        """Gives variables other values, as a callback did in the user's process.

        Args:
            fixed: By number among those of the model that are neither trained nor
                statistics.
            optimizer: By number among those of the optimizer.
        """

    @abstractmethod
    def set_learning_rate(self, value: float) -> None:
        """Sets the optimizer's learning rate; no-op under a schedule."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """Returns optimizer and local state as raw bytes in a fixed order."""

    @abstractmethod
    def restore(self, blob: bytes) -> None:
        """The inverse of `snapshot`, of any worker: seeds stay this one's own."""

    @abstractmethod
    def skip(self) -> None:
        """Takes note of a step of a gang that this worker has no rows of."""

    def fork_local(self, rank: int) -> Any:
        """Returns the local state that worker `rank` of a gang would begin with.

        With `local` and `set_local` one set of programs computes for all of a gang,
        whose workers differ in nothing else; nothing for a backend without such state.
        """
        del rank

    def local(self) -> Any:
        """Returns the local state as it is now; see `fixed.py`."""
        return None

    def set_local(self, state: Any) -> None:
        """Goes on with a local state that `local` or `fork_local` returned."""
        del state

    @abstractmethod
    def keep(self) -> tuple[Any, ...]:
        """Returns all state as it is now, to go back to until the next call.

        The parts are the backend's own. A vector that was given to `load` is not
        copied.
        """

    @abstractmethod
    def revert(self, kept: tuple[Any, ...]) -> None:
        """Goes back to what `keep` returned; sums of metrics start again."""

    @abstractmethod
    def fork(self, rank: int) -> tuple[Any, ...]:
        """Returns what worker `rank` would begin with, before anything has run.

        With `swap` one set of compiled programs serves many workers in turn. The
        parts are the backend's own; only it looks inside.
        """

    @abstractmethod
    def swap(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Goes on as the worker with `state`; returns the state of the one before."""

    @abstractmethod
    def renew(
        self, model: Sequence[Any], optimizer: Sequence[Any], rank_seed: int
    ) -> None:
        """Starts over as a worker that nobody has used; its programs stay.

        Args:
            model: Values of all the model's variables, in their order.
            optimizer: Of those of its optimizer.
            rank_seed: See `ComputeSpec`.
        """

    @abstractmethod
    def warm_up(self, data: Data, *, is_gradient: bool) -> None:
        """Compiles what the run needs, with data of a full step or window."""

    @staticmethod
    @abstractmethod
    def forget() -> None:
        """Lets go of all programs and models of this process: others will come."""
