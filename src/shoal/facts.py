"""Plain facts about a model, its data and a machine: what `plan` decides from.

They are read by the layers that can see the real things and carried as values,
so that the plan itself touches no model, no array and no machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, final

DEFAULT_ROOT = "./shoal-runs"
"""Where runs are kept when neither an argument nor $SHOAL_RUNS says."""

SAMPLE_ROWS = 4
"""Rows that tell what a model makes of data, where the model does not say how many."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What `plan` needs to know about a model; read from it by `api`.

    Args:
        name: Keras name of the model.
        parameters: Floats that are exchanged (trainable).
        statistics: Floats that ride beside them (batch-norm moments).
        local_bytes: Of all other variables, frozen weights most of all: they travel
            once, in the model, and afterwards only if they move.
        optimizer: Class name of the optimizer.
        reductions: Loss reductions in use, one for each loss.
        has_own_loss: `train_step` or `compute_loss` is the user's: what it does with
            a loss that is not reduced is its own affair.
        has_masks: Outputs carry masks, so that a loss leaves entries out.
        masks: Different masks that the losses see, of which none at all is one; 0 where
            there are no masks, or it cannot be seen.
        summed: Places among the losses that layers add of those that are sums over the
            batch.
        odd_losses: Which losses are of a whole batch, and neither sums nor means.
        weight_arrays: Different arrays of sample weights, 0 without weights.
        unmergeable_metrics: Names of metrics whose states cannot be summed.
        step_logs: What a `train_step` of the user's logs beyond its metrics.
        lost_logs: What it logs that is no single number, and so is not shown.
        applies: Optimizers that such a `train_step` applies, one entry a call; None
            where the step is Keras' own, or nobody could tell.
        applied: How often it applies each optimizer that the model holds.
        unseen_optimizers: Of those in `applies`, the ones that the model does not hold.
        changed_beside: Paths of variables that it changes by itself after an
            optimizer's step.
        sums_gradients: Such a `train_step` takes the gradient of a sum over the batch.
        fixed_batch: Rows that each batch must have, 0 for any number.
        is_stateful: Recurrent layers keep rows of a batch for the next one.
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
    masks: int = 0
    summed: tuple[int, ...] = ()
    odd_losses: tuple[str, ...] = ()
    weight_arrays: int = 0
    unmergeable_metrics: tuple[str, ...] = ()
    step_logs: tuple[str, ...] = ()
    lost_logs: tuple[str, ...] = ()
    applies: tuple[str, ...] | None = None
    applied: tuple[int, ...] = ()
    unseen_optimizers: tuple[str, ...] = ()
    changed_beside: tuple[str, ...] = ()
    sums_gradients: bool = False
    refused_dtypes: tuple[str, ...] = ()
    local_bytes: int = 0
    fixed_batch: int = 0
    is_stateful: bool = False
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
        are_batches: Each chunk is a batch: a step takes no rows of two.
        later_rows: Samples of every epoch after the first; None for all.
        has_lanes: Every batch takes from all chunks of a group, for workers that share
            each batch.

    Example:
        >>> Chunking(rows=(3, 4)).group_rows >= 3
        True
    """

    rows: tuple[int, ...]
    mixing: Literal["rows", "chunks", "nothing"] = "rows"
    group_rows: int = 1 << 20
    are_batches: bool = False
    later_rows: int | None = None
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


class GpuUse(NamedTuple):
    """What a GPU was busy with at one moment; None where nobody tells.

    Args:
        number: As nvidia-smi counts.
        name: Of its model.
        percent: Of the last moments, that something was computed in.
        memory_mib: Taken.
        total_mib: Memory it has.
        celsius: Its temperature.
        watts: That it draws.
    """

    number: int
    name: str
    percent: float | None
    memory_mib: float | None
    total_mib: float | None
    celsius: float | None
    watts: float | None


class NodeUse(NamedTuple):
    """What a machine was busy with, all its programs together.

    Args:
        percent: Of its cores, since it was looked at before.
        memory_mib: Taken at that moment.
        total_mib: Memory it has.
        gpus: All of them.
    """

    percent: float
    memory_mib: float
    total_mib: float
    gpus: tuple[GpuUse, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, as a run records them.

        Example:
            >>> NodeUse(50.0, 1024, 4096).to_json()["gpus"]
            []
        """
        return {**self._asdict(), "gpus": [gpu._asdict() for gpu in self.gpus]}


@final
@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What one machine of a cluster has free for workers.

    Args:
        name: Its address.
        cores: That nobody has reserved.
        gpus: The same.
        memory_bytes: Of the machine, 0 when unknown.

    Example:
        >>> NodeFacts(name="10.0.0.7", cores=8).gpus
        0
    """

    name: str
    cores: int
    gpus: int = 0
    memory_bytes: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What one machine offers to a run, or a cluster of them.

    Args:
        cores: Usable cores, by affinity and cgroup, at least 1; of a cluster those of
            the machine that has the fewest.
        gpus: Those that the backend in use can compute on; not those of a cluster.
        memory_bytes: Memory that is free for use, 0 when unknown.
        has_compiler: A C++ compiler is there.
        nodes: Machines of a cluster, none where workers are on this one.
        gpus_each: Of a cluster, GPUs that a worker has to itself; a part of one where
            several share it.

    Example:
        >>> MachineFacts(cores=2).gpus
        ()
    """

    cores: int
    gpus: tuple[Gpu, ...] = ()
    memory_bytes: int = 0
    has_compiler: bool = True
    nodes: tuple[NodeFacts, ...] = ()
    gpus_each: float = 0.0

    def threads_of(self, workers: int) -> int:
        """Cores for each of so many workers, on machines that share them evenly.

        Example:
            >>> two = tuple(NodeFacts(name=n, cores=8) for n in "ab")
            >>> MachineFacts(cores=8, nodes=two).threads_of(3)
            4
        """
        on_one = math.ceil(workers / max(1, len(self.nodes)))
        return max(1, self.cores // on_one)

    def room_for(self, threads: int) -> int:
        """Workers of so many threads that a cluster has room for now.

        Example:
            >>> two = tuple(NodeFacts(name=n, cores=8, gpus=1) for n in "ab")
            >>> cluster = MachineFacts(cores=8, nodes=two, gpus_each=0.5)
            >>> cluster.room_for(3), cluster.room_for(8)
            (4, 2)
        """
        rooms = (
            min(
                node.cores // threads,
                int(node.gpus / self.gpus_each) if self.gpus_each else node.cores,
            )
            for node in self.nodes
        )
        return sum(rooms)


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
