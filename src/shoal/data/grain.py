"""Data sets of grain: by number where they have numbers, else as streams.

This file decides which of them workers read by themselves. Elements are batches, as
in Keras. Grain itself is not imported: the objects have all that is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from shoal.data.batches import Packing
from shoal.data.chunks import ChunkedSource
from shoal.data.generators import FedSource
from shoal.data.numbered import NumberedBatches
from shoal.data.reading import Reading
from shoal.data.shards import Shard, ShardedSource
from shoal.data.tensors import is_a
from shoal.data.travelling import check_travels
from shoal.errors import ConfigError, DataError

_ENDLESS = 1 << 62
"""Length from which a data set of grain counts as repeated without an end."""


def grain_source(dataset: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    """Makes a source of a grain `MapDataset`, `IterDataset` or `DataLoader`.

    A `MapDataset` is read by workers, batch by batch, in its own order. A data set
    without numbers, or with gaps in them because of a filter, is read in the driver;
    or, with `reading.shards`, by workers: shard i of n has every n-th batch, for which
    a worker reads through all of them.

    Args:
        dataset: Data set of batches, made with `.batch(...)`.
        packing: How batches are made into chunks.
        reading: Options of `fit`.

    Raises:
        ConfigError: It has no end and there are no `steps_per_epoch`.
        DataError: It is empty, or cannot be pickled.

    Example:
        >>> import numpy as np
        >>> MapDataset = type("MapDataset", (list,), {"__module__": "grain"})
        >>> dataset = MapDataset([np.zeros((2, 1)), np.ones((1, 1))])
        >>> packing = Packing(kind="grain MapDataset", floatx="float32")
        >>> grain_source(dataset, packing, Reading()).chunk_rows
        (2, 1)
    """
    if is_a(dataset, "grain", "MapDataset"):
        count = len(dataset)
        is_endless = count >= _ENDLESS
        if is_endless and reading.steps_per_epoch is None:
            raise ConfigError(
                f"{packing.steps_name}=None, but the {packing.kind} has no end "
                f"({packing.where}). Expected the number of batches in a pass. "
                f"Pass {packing.steps_name}, or leave out .repeat()."
            )
        if count < 1:
            raise DataError(
                f"The {packing.kind} is empty ({packing.where}). "
                "Expected at least one batch. Check its source and its slices."
            )
        stride = reading.steps_per_epoch if is_endless else None
        last = (stride or count) - 1
        if dataset[0] is not None and dataset[last] is not None:
            _check(dataset, packing)
            return NumberedBatches(
                _Numbers(dataset=dataset, stride=stride or 0),
                count=stride or count,
                packing=packing,
                mixing="nothing",
            )
        dataset = dataset.to_iter_dataset()
    if reading.shards is not None:
        _check(dataset, packing)
        return ShardedSource(
            _EveryNth(dataset=dataset),
            shards=reading.shards,
            packing=packing,
            steps_per_epoch=reading.steps_per_epoch,
            seed=reading.seed,
        )
    return FedSource.of_passes(
        lambda: iter(dataset),
        packing=packing,
        steps_per_epoch=reading.steps_per_epoch,
        epochs=reading.epochs,
    )


def _check(dataset: Any, packing: Packing) -> None:
    check_travels(
        dataset,
        packing.kind,
        packing.where,
        "Open files and locks when an element is read.",
    )


@final
@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """Batches by number; an epoch begins `stride` batches after the previous one."""

    dataset: Any
    stride: int

    def __call__(self, index: int, epoch: int) -> Any:
        return self.dataset[index + epoch * self.stride]


@final
@dataclass(frozen=True, kw_only=True)
class _EveryNth:
    """A shard of batches without numbers: every n-th one."""

    dataset: Any

    def __call__(self, shard: Shard) -> Iterator[Any]:
        return itertools.islice(iter(self.dataset), shard.index, None, shard.count)
