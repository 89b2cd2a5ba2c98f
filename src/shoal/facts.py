"""Plain facts about a model, its data and a machine: what `plan` decides from.

They are read by the layers that can see the real things and carried as values,
so that the plan itself touches no model, no array and no machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

DEFAULT_ROOT = "./shoal-runs"
"""Where runs are kept when neither an argument nor $SHOAL_RUNS says."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What `plan` needs to know about a model; read from it by `api`.

    Args:
        name: Keras name of the model.
        parameters: Floats that are exchanged (trainable).
        statistics: Floats that ride beside them (batch-norm moments).
        optimizer: Class name of the optimizer.
        reductions: Loss reductions in use, one for each loss.
        has_own_loss: `train_step` or `compute_loss` is the user's: what it does with
            a loss that is not reduced is its own affair.
        has_masks: Outputs carry masks, so that a loss leaves entries out.
        weight_arrays: Different arrays of sample weights, 0 without weights.
        unmergeable_metrics: Names of metrics whose states cannot be summed.
        step_logs: What a `train_step` of the user's logs beyond its metrics.
        lost_logs: What it logs that is no single number, and so is not shown.
        refused_dtypes: "path: dtype" of trainable variables Shoal cannot carry.
        backend: keras.backend.backend().
        needs_compiler: A window of its steps is compiled by a C++ compiler.
        metrics: Name in a history -> "up" or "down", as the metric says it gets
            better; "" where it does not say.

    Example:
        >>> ModelFacts(name="m", parameters=3, statistics=0, optimizer="SGD").backend
        'jax'
    """

    name: str
    parameters: int
    statistics: int
    optimizer: str
    reductions: tuple[str, ...] = ("sum_over_batch_size",)
    has_own_loss: bool = False
    has_masks: bool = False
    weight_arrays: int = 0
    unmergeable_metrics: tuple[str, ...] = ()
    step_logs: tuple[str, ...] = ()
    lost_logs: tuple[str, ...] = ()
    refused_dtypes: tuple[str, ...] = ()
    backend: str = "jax"
    needs_compiler: bool = False
    metrics: Mapping[str, str] = field(default_factory=dict[str, str])


@final
@dataclass(frozen=True, kw_only=True)
class Chunking:
    """How samples lie in chunks, and what a shuffle may do with them.

    Args:
        rows: Samples of each chunk, each at least 1.
        mixing: "rows": rows of several chunks are mixed; "chunks": chunks change their
            places and keep their rows in order; "nothing".
        group_rows: Rows that are mixed with each other, unless one chunk has more.
        has_lanes: Every batch takes from all chunks of a group, for workers that share
            each batch.

    Example:
        >>> Chunking(rows=(3, 4)).group_rows >= 3
        True
    """

    rows: tuple[int, ...]
    mixing: Literal["rows", "chunks", "nothing"] = "rows"
    group_rows: int = 1 << 20
    has_lanes: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What `plan` needs to know about the data; read by `api`.

    Args:
        rows: Training samples, after a validation split.
        size_bytes: Bytes the workers map.
        kind: The word a user would know the data by.
        is_exactly_once: False for streams without random access.
        validation_rows: Samples to validate on, 0 for none.
        chunking: How the samples lie in chunks, None where each can be had by number.
        batch_size: Rows of the batches the data comes in, None where there are none.
        notes: What a user should know of it, sentences.

    Example:
        >>> DataFacts(rows=100, size_bytes=800).is_exactly_once
        True
    """

    rows: int
    size_bytes: int
    kind: str = "arrays"
    is_exactly_once: bool = True
    validation_rows: int = 0
    chunking: Chunking | None = None
    batch_size: int | None = None
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU that this process may use.

    Args:
        number: As nvidia-smi counts.
        name: What CUDA_VISIBLE_DEVICES takes for it.
        total_mib: Memory it has, 0 when unknown.
        free_mib: Memory of it that no program has taken.

    Example:
        >>> Gpu(number=0, name="0", total_mib=81559, free_mib=80994).number
        0
    """

    number: int
    name: str
    total_mib: int = 0
    free_mib: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What one machine offers to a run.

    Args:
        cores: Usable cores, by affinity and cgroup, at least 1.
        gpus: Those that the backend in use can compute on.
        memory_bytes: Memory that is free for use, 0 when unknown.
        has_compiler: A C++ compiler is there.

    Example:
        >>> MachineFacts(cores=2).gpus
        ()
    """

    cores: int
    gpus: tuple[Gpu, ...] = ()
    memory_bytes: int = 0
    has_compiler: bool = True


@final
@dataclass(frozen=True, kw_only=True)
class Monitor:
    """The metric that epochs and models are compared by, and which way is better.

    Args:
        name: As in a history, such as "val_loss".
        is_higher_better: Whether the metric grows as a model gets better.

    Example:
        >>> Monitor(name="auc", is_higher_better=True).score(0.5), Monitor().score(2.0)
        (0.5, -2.0)
        >>> Monitor().score(float("nan"))
        -inf
    """

    name: str = "loss"
    is_higher_better: bool = False

    def score(self, value: float) -> float:
        """Returns what grows as a model gets better; not a number is the worst."""
        if math.isnan(value):
            return -math.inf
        return value if self.is_higher_better else -value
