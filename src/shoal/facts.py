"""Plain facts about a model, its data and a machine: the input of `plan`.

Layers that can see the real objects read them and pass them on as values,
so that the plan itself touches no model, no array and no machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, final

DEFAULT_ROOT = "./shoal-runs"
"""Default folder of runs, without an argument and $SHOAL_RUNS."""

SAMPLE_ROWS = 4
"""Rows on which a model is tried, if it does not fix their number."""


class Multiplications(NamedTuple):
    """Multiplications of weights for one sample, forward, by the kind of their layers.

    Args:
        dense: In layers that are products of matrices, which all cores share well.
        convolved: In convolutions.
        recurrent: In recurrent cells, one time step after the other.

    Example:
        >>> Multiplications(dense=6, recurrent=2).total
        8
    """

    dense: int = 0
    convolved: int = 0
    recurrent: int = 0

    @property
    def total(self) -> int:
        """Returns the multiplications of all layers."""
        return sum(self)


UNKNOWN = Multiplications()


@final
@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a model that `plan` needs; `api` reads them.

    Args:
        name: Keras name of the model.
        parameters: Number of floats that are exchanged (trainable).
        statistics: Number of floats beside them (batch-norm moments).
        has_moving_averages: Whether layers keep moving averages of what they see, as
            `BatchNormalization` does where it is not frozen.
        can_estimate_averages: Whether all of them can be computed from rows: in layers
            of Keras, to which a training step of Keras shows the rows unchanged.
        local_bytes: Bytes of all other variables, mostly frozen weights: they travel
            once, in the model, and afterwards only if they change.
        optimizer: Class name of the optimizer.
        normalising: Class names of those optimizers whose steps are as long for small
            gradients as for large ones.
        is_adaptive: Whether the learning rates of all optimizers are the lengths of
            their steps.
        reductions: Loss reductions in use, one for each loss.
        has_own_loss: Whether `train_step` or `compute_loss` is the user's, who then
            decides about losses that are not reduced.
        has_masks: Whether outputs carry masks, so that a loss leaves entries out.
        masks: Number of different masks of the losses, where no mask counts as one; 0
            if there are no masks, or it cannot be found out.
        summed: Indices of losses added by layers that are sums over the
            batch.
        odd_losses: Names of losses of a whole batch that are neither sums nor means.
        weight_arrays: Number of different arrays of sample weights.
        unmergeable_metrics: Names of metrics whose states cannot be summed.
        step_logs: Names that a user's `train_step` logs beyond its metrics.
        lost_logs: Names it logs that are not single numbers, and so are not shown.
        applies: Optimizers that such a `train_step` applies, one entry a call; None
            if the step is Keras' own, or it could not be found out.
        applied: Number of times it applies each optimizer of the model.
        unseen_optimizers: Optimizers in `applies` that the model does not hold.
        changed_beside: Paths of variables that it changes by itself after an
            optimizer's step.
        sums_gradients: Whether it takes the gradient of a sum over the batch.
        hides_reduction: Whether that could not be seen of a loss of its own.
        fixed_batch: Rows that each batch must have, 0 for any number.
        is_stateful: Whether recurrent layers keep rows of a batch for the next one.
        refused_dtypes: "path: dtype" of trainable variables that Shoal cannot exchange.
        backend: Keras backend, as keras.backend.backend() returns it.
        needs_compiler: Whether a window of steps is compiled by a C++ compiler.
        metrics: Name in a history -> "up" or "down", the direction in which the metric
            improves; "" if it does not say.
        multiplications: Estimated work of a sample; all zero if unknown.

    Example:
        >>> ModelFacts(name="m", parameters=3, statistics=0, optimizer="SGD").backend
        'jax'
    """

    name: str
    parameters: int
    statistics: int
    optimizer: str
    normalising: tuple[str, ...] = ()
    is_adaptive: bool = False
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
    hides_reduction: bool = False
    refused_dtypes: tuple[str, ...] = ()
    has_moving_averages: bool = False
    can_estimate_averages: bool = False
    local_bytes: int = 0
    fixed_batch: int = 0
    is_stateful: bool = False
    backend: str = "jax"
    needs_compiler: bool = False
    metrics: Mapping[str, str] = field(default_factory=dict[str, str])
    multiplications: Multiplications = UNKNOWN


@final
@dataclass(frozen=True, kw_only=True)
class Chunking:
    """Sizes of chunks, and what a shuffle may do with them.

    Args:
        rows: Samples of each chunk, each at least 1.
        mixing: "rows": rows of several chunks are mixed; "chunks": chunks are
            reordered and keep the order of their rows; "nothing".
        group_rows: Rows that are mixed with each other, if no chunk has more.
        are_batches: Whether each chunk is a batch: a step takes no rows of two.
        later_rows: Samples of every epoch after the first; None for all.
        has_lanes: Whether every batch takes rows from all chunks of a group, for
            workers that share each batch.

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
    """Facts about the data that `plan` needs; `api` reads them.

    Args:
        rows: Training samples, after a validation split.
        size_bytes: Bytes that the workers map.
        kind: The user's name for the data.
        is_exactly_once: False for streams without random access.
        validation_rows: Samples to validate on, 0 for none.
        chunking: Sizes of chunks, None if each row can be read by number.
        batch_size: Rows of the data's own batches, None without batches.
        notes: Sentences that the user should read.

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
        number: Index in nvidia-smi.
        name: Its name in CUDA_VISIBLE_DEVICES.
        total_mib: Memory it has, 0 when unknown.
        free_mib: Memory that no program uses.

    Example:
        >>> Gpu(number=0, name="0", total_mib=81559, free_mib=80994).number
        0
    """

    number: int
    name: str
    total_mib: int = 0
    free_mib: int = 0


class GpuUse(NamedTuple):
    """Load of a GPU at one moment; None for unknown values.

    Args:
        number: Index in nvidia-smi.
        name: Name of its model.
        percent: Share of the last moments in which it computed.
        memory_mib: Used memory.
        total_mib: Memory it has.
        celsius: Temperature.
        watts: Power.
    """

    number: int
    name: str
    percent: float | None
    memory_mib: float | None
    total_mib: float | None
    celsius: float | None
    watts: float | None


class NodeUse(NamedTuple):
    """Load of a machine, of all its programs together.

    Args:
        percent: Load of its cores since the last measurement.
        memory_mib: Memory used at that moment.
        total_mib: Memory it has.
        gpus: All its GPUs.
    """

    percent: float
    memory_mib: float
    total_mib: float
    gpus: tuple[GpuUse, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the records of a run.

        Example:
            >>> NodeUse(50.0, 1024, 4096).to_json()["gpus"]
            []
        """
        return {**self._asdict(), "gpus": [gpu._asdict() for gpu in self.gpus]}


@final
@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Free resources of one machine of a cluster.

    Args:
        name: Address of the machine.
        cores: Cores that are not reserved.
        gpus: GPUs that are not reserved.
        memory_bytes: Memory of the machine, 0 when unknown.

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
    """Resources of one machine for a run, or of a cluster.

    Args:
        cores: Usable cores, by affinity and cgroup, at least 1; for a cluster those of
            its smallest machine.
        gpus: GPUs that the backend in use can compute on; empty for a cluster.
        memory_bytes: Free memory, 0 when unknown.
        has_compiler: Whether there is a C++ compiler.
        nodes: Machines of a cluster, empty if workers are on this machine.
        gpus_each: For a cluster, GPUs of each worker; a fraction if
            several share one.
        slots: For a cluster that counts places for workers itself, their number; None
            if the cores decide.
        threads_each: For such a cluster, cores of each place; 0 if they are shared.
        is_divisible: Whether a worker may be given more cores than that; there are
            fewer places then.
        overhead_each_mib: Memory of a worker's processes beside the engine's own, above
            which a container is killed; 0 if there is no such limit.
        idle_gpus: GPUs of a cluster's machine that it gives to no worker, although the
            backend can compute on them.

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
    slots: int | None = None
    threads_each: int = 0
    is_divisible: bool = False
    overhead_each_mib: int = 0
    idle_gpus: int = 0

    def threads_of(self, workers: int) -> int:
        """Returns the cores for each worker, on machines that share them evenly.

        Example:
            >>> two = tuple(NodeFacts(name=n, cores=8) for n in "ab")
            >>> MachineFacts(cores=8, nodes=two).threads_of(3)
            4
        """
        if self.threads_each:
            return self.threads_each
        on_one = math.ceil(workers / max(1, len(self.nodes)))
        return max(1, self.cores // on_one)

    def room_for(self, threads: int) -> int:
        """Returns how many more workers of so many threads a cluster has room for.

        Example:
            >>> two = tuple(NodeFacts(name=n, cores=8, gpus=1) for n in "ab")
            >>> cluster = MachineFacts(cores=8, nodes=two, gpus_each=0.5)
            >>> cluster.room_for(3), cluster.room_for(8)
            (4, 2)
        """
        if self.slots is not None and threads > self.threads_each > 0:
            return sum(node.cores // threads for node in self.nodes)
        if self.slots is not None:
            return self.slots
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
    """The metric that compares epochs and models, and its direction.

    Args:
        name: Name in a history, such as "val_loss".
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
        """Returns a value that grows as a model improves; NaN is the worst."""
        if math.isnan(value):
            return -math.inf
        return value if self.is_higher_better else -value
