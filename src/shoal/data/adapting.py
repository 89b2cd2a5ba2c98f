"""Adapters of every kind of data that Keras takes besides arrays.

This file decides which adapter takes the x of `fit`. It goes by the
names of classes, so that no library is imported that the user does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from shoal.data import trees
from shoal.data.batches import Packing
from shoal.data.chunks import ChunkedSource
from shoal.data.generators import FedSource
from shoal.data.py_dataset import py_dataset_source
from shoal.data.reading import Reading
from shoal.data.shards import SHARDS_PER_WORKER, ShardedSource
from shoal.data.sources import default_floatx
from shoal.data.spooled import GENERATOR_GB, SpooledSource
from shoal.data.tensors import is_a
from shoal.errors import DataError

Adapter: TypeAlias = Callable[[Any, Packing, Reading], ChunkedSource]


def source_of(
    x: Any, y: Any = None, sample_weight: Any = None, *, reading: Reading | None = None
) -> ChunkedSource | None:
    """Makes a source of data that comes in batches, or from numbers, or in shards.

    | x | who reads it | counted |
    |---|---|---|
    | `keras.utils.PyDataset`, grain `MapDataset` | workers, by number | exactly once |
    | torch `Dataset`, `DataLoader` over one | workers, by number | exactly once |
    | generator, iterator | the driver, once | exactly once |
    | `tf.data.Dataset`, torch `IterableDataset`, grain `IterDataset`, `DataLoader` |
      the driver, once | exactly once |
    | the same with `Reading(shards=n)` | workers, in shards | at least once |
    | a function `dataset_fn(shard)` | workers, in shards | at least once |
    | a `ChunkedSource` | as it says | as it says |

    Args:
        x: The x of `fit`.
        y: Must be None, because such data contains its targets.
        sample_weight: Must be None as well.
        reading: Options of `fit`; default None means one epoch, one worker.

    Returns:
        The source; None where x is something else, such as arrays.

    Raises:
        ConfigError: `steps_per_epoch` is missing.
        DataError: The data is empty, gives no batches, or cannot be sent to
            workers; or y or sample_weight are given beside it.

    Example:
        >>> import numpy as np
        >>> batches = (np.full((4, 1), n) for n in range(10))
        >>> len(source_of(batches, reading=Reading(steps_per_epoch=10)))
        40
        >>> source_of(np.ones(3)) is None
        True
    """
    reading = reading or Reading()
    found = x if isinstance(x, ChunkedSource) else _adapter_of(x)
    if found is None:
        return None
    kind = found.kind if isinstance(found, ChunkedSource) else found[0]
    for name, value in {"y": y, "sample_weight": sample_weight}.items():
        if value is not None:
            raise DataError(
                f"{name} is given beside x, which is a {kind} ({reading.where}). "
                f"Expected x alone: a {kind} has targets and weights in it. "
                f"Leave {name} out, and let x give (x, y) or (x, y, sample_weight)."
            )
    if isinstance(found, ChunkedSource):
        return found
    floatx = reading.floatx or default_floatx()
    packing = Packing(
        kind=kind, floatx=floatx, where=reading.where, steps_name=reading.steps_name
    )
    return found[1](x, packing, reading)


def _adapter_of(x: Any) -> tuple[str, Adapter] | None:
    """Returns the name of this kind of data, and its adapter."""
    for package, names, adapter in _LIBRARIES:
        for name in names:
            if is_a(x, package, name):
                label = "tf.data.Dataset" if name == "DatasetV2" else name
                is_tf = package == "tensorflow"
                return label if is_tf else f"{package} {label}", adapter
    if isinstance(x, GeneratorType):
        return "generator", _iterator
    if isinstance(x, Iterator):
        return "iterator", _iterator
    if callable(x) and not _is_other(x):
        return "dataset_fn", _dataset_fn
    return None


def _is_other(x: Any) -> bool:
    """Whether a callable is not a function of the user's."""
    return (
        isinstance(x, type)
        or hasattr(x, "__array__")
        or trees.is_nested(x)
        or is_a(x, "keras", "Layer", "Operation", "KerasTensor")
    )


def _py_dataset(x: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    return py_dataset_source(x, packing, reading)


def _tensorflow(x: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    from shoal.data.tensorflow import tensorflow_source

    return tensorflow_source(x, packing, reading)


def _torch(x: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    from shoal.data.torch import torch_source

    return torch_source(x, packing, reading)


def _grain(x: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    from shoal.data.grain import grain_source

    return grain_source(x, packing, reading)


def _iterator(x: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    if reading.steps_per_epoch is None:
        return _read_whole(x, packing, reading)
    return FedSource.of_iterator(
        x,
        packing=packing,
        steps_per_epoch=reading.steps_per_epoch,
        epochs=reading.epochs,
    )


_PLANNED: WeakKeyDictionary[Any, SpooledSource] = WeakKeyDictionary()
"""Generators that only a plan has read, with their batches: they yield them once."""


def _read_whole(x: Any, packing: Packing, reading: Reading) -> SpooledSource:
    """Reads a generator without a number of batches to its end."""
    can_be_kept = isinstance(x, GeneratorType)
    found = _PLANNED.get(x) if can_be_kept else None
    if found is None:
        found = SpooledSource.of_iterator(
            x, packing=packing, most_gb=reading.generator_gb or GENERATOR_GB
        )
    if can_be_kept and reading.is_plan:
        _PLANNED[x] = found
    elif can_be_kept:
        _PLANNED.pop(x, None)
    found.note_epochs(reading.epochs, packing)
    return found


def _dataset_fn(x: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    return ShardedSource(
        x,
        shards=reading.shards or SHARDS_PER_WORKER * reading.workers,
        packing=packing,
        steps_per_epoch=reading.steps_per_epoch,
        seed=reading.seed,
    )


_LIBRARIES: tuple[tuple[str, tuple[str, ...], Adapter], ...] = (
    ("keras", ("PyDataset",), _py_dataset),
    ("tensorflow", ("DatasetV2",), _tensorflow),
    ("torch", ("DataLoader", "IterableDataset", "Dataset"), _torch),
    ("grain", ("MapDataset", "IterDataset", "DataLoader"), _grain),
)
