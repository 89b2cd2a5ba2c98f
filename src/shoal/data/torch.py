"""Data of torch: data sets by number, loaders over them, and streams.

This file decides which parts of a `DataLoader` are used, and where. Workers read
items by themselves and collate them; the loader's own processes are not started,
except for an `IterableDataset`, which the driver reads as Keras would.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from shoal.data import trees
from shoal.data.batches import Packing
from shoal.data.chunks import ChunkedSource
from shoal.data.digests import digest
from shoal.data.drawn import DrawnBatches
from shoal.data.draws import seeded
from shoal.data.generators import FedSource
from shoal.data.hooked import REHEARSED
from shoal.data.items import CHUNK_ITEMS, Fetch, Items
from shoal.data.reading import Reading
from shoal.data.shards import Shard, ShardedSource

_PROBED_ITEMS = 8


def torch_source(data: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    """Makes a source of a torch `Dataset`, `IterableDataset` or `DataLoader`.

    * A `Dataset`, or a `DataLoader` over one: items by number, in any order, each
      exactly once. `RandomSampler` means that rows are shuffled, by `fit`'s
      own order; `SequentialSampler` that they stay in order; any other sampler is
      drawn from again for each epoch, with its random numbers seeded.
    * A loader with `batch_size=None`: the items are batches.
    * An `IterableDataset`: read in the driver, with the loader's own processes; or,
      where `reading.shards` is given, by workers, each of which is to the data set as
      a process of the loader (`torch.utils.data.get_worker_info`).

    Args:
        data: The data set or the loader.
        packing: How batches are made into chunks.
        reading: Options of `fit`.

    Raises:
        DataError: It is empty, cannot be pickled, or gives no batches.

    Example:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.arange(6.0), torch.arange(6))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        >>> packing = Packing(kind="torch DataLoader", floatx="float32")
        >>> source = torch_source(loader, packing, Reading())
        >>> source.batch_size, source.mixing, source.take(slice(4, 6))
        (4, 'rows', (array([4., 5.], dtype=float32), array([4, 5])))
    """
    from torch.utils.data import DataLoader, IterableDataset, default_collate

    if isinstance(data, IterableDataset):
        source = _stream(DataLoader(data, CHUNK_ITEMS), packing, reading)
        source.batch_size = None
        return source
    if not isinstance(data, DataLoader):
        return Items(Fetch(dataset=data, collate=default_collate), packing=packing)
    if isinstance(data.dataset, IterableDataset):
        return _stream(data, packing, reading)
    return _by_number(data, packing, reading)


def _by_number(loader: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    """Makes a source of a loader over items with numbers."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    fetch = Fetch(dataset=loader.dataset, collate=loader.collate_fn)
    rows = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
    sampler: Any = loader.sampler
    size: Any = loader.batch_size
    # With a batch_sampler of the user's, batch_size is None and sampler a default.
    is_plain = size is not None and type(loader.batch_sampler) is BatchSampler
    is_random = (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == rows
    )
    is_ordered = type(sampler) is SequentialSampler
    if not is_plain or not (is_random or is_ordered) or not _is_even(fetch, rows):
        is_batched = loader.batch_sampler is not None
        picks = loader.batch_sampler if is_batched else sampler
        first, seed = reading.epochs.start, reading.seed
        draws = SeededDraws(picks, seed, first, loader.dataset)
        if not draws.are_alike():
            return _driven(loader, draws(first), packing, reading)
        return DrawnBatches(draws, fetch, packing, is_batched=is_batched)
    if is_ordered and loader.drop_last and isinstance(size, int):
        rows -= rows % size
    return Items(
        fetch,
        packing=packing,
        rows=rows,
        mixing="rows" if is_random else "nothing",
        batch_size=size,
    )


def _driven(
    loader: Any, draws: Sequence[Any], packing: Packing, reading: Reading
) -> FedSource:
    """Makes a source of a loader whose sampler draws differently in each process."""

    def expect(rows: int) -> Sequence[int] | None:
        return [len(draw) for draw in draws] if loader.batch_sampler else None

    note = (
        f"The sampler of the {packing.kind} draws something else in each worker, so "
        "this process draws, and reads the batches for all workers. To let workers "
        "read by themselves, draw from torch's random numbers, from NumPy's, or from "
        "a generator that the sampler makes with a seed in __init__."
    )
    return FedSource.of_passes(
        lambda: iter(loader),
        packing=packing,
        steps_per_epoch=reading.steps_per_epoch,
        epochs=reading.epochs,
        expect=expect,
        notes=(note,),
    )


def _is_even(fetch: Fetch, rows: int) -> bool:
    """Whether items collate to one shape, so that rows of several batches can mix."""
    from torch.utils.data import default_collate

    if fetch.collate is default_collate:
        return True
    shapes: set[str] = set()
    try:
        for index in range(min(_PROBED_ITEMS, rows)):
            found = trees.leaves(fetch([index]))
            if any(len(leaf) != 1 for leaf in found):
                return False
            shapes.add(str([tuple(leaf.shape) for leaf in found]))
    except Exception:  # a user's collate_fn that wants whole batches
        return False
    return len(shapes) == 1


def _stream(loader: Any, packing: Packing, reading: Reading) -> ChunkedSource:
    """Makes a source of a loader over a stream of items."""
    if reading.shards is not None:
        shards = _WorkerShards(loader)
        return ShardedSource(
            shards,
            shards=reading.shards,
            packing=packing,
            steps_per_epoch=reading.steps_per_epoch,
            seed=reading.seed,
        )

    def expect(rows: int) -> Sequence[int] | None:
        if not hasattr(loader.dataset, "__len__") or loader.num_workers > 1:
            return None
        count, left = divmod(len(loader.dataset), rows)
        return [rows] * count + [left] * (bool(left) and not loader.drop_last)

    return FedSource.of_passes(
        lambda: iter(loader),
        packing=packing,
        steps_per_epoch=reading.steps_per_epoch,
        epochs=reading.epochs,
        expect=expect,
    )


@final
class SeededDraws:
    """The draws of a sampler in each epoch; the same in every process.

    Epochs are drawn one after another from the original sampler: a sampler with a
    generator of its own then gives each epoch's draws in every process.

    Args:
        sampler: Sampler of a loader; iterating over it draws. It is not changed.
        seed: Seed of the run.
        first: The first epoch.
        shared: Object that copies of the sampler share: its data set.

    Example:
        >>> SeededDraws([[0, 1], [2]], seed=0)(0)
        [[0, 1], [2]]
    """

    def __init__(
        self, sampler: Any, seed: int, first: int = 0, shared: Any = None
    ) -> None:
        self._sampler, self._seed, self._first = sampler, seed, first
        self._shared = shared
        self._kept: dict[int, list[Any]] = {}
        self._current: Any = None  # a copy, which has drawn all kept epochs

    def __call__(self, epoch: int) -> list[Any]:
        """Returns the draws of an epoch; the last two epochs are kept."""
        epoch = max(epoch, self._first)  # callers without an epoch ask for 0
        if epoch not in self._kept:
            last = max(self._kept, default=epoch)
            if self._current is None or last >= epoch:
                last, self._kept = self._first - 1, {}
                memo = {id(self._shared): self._shared}
                self._current = copy.deepcopy(self._sampler, memo)
            for number in range(last + 1, epoch + 1):
                newest = sorted(self._kept.items())[-1:]
                self._kept = dict([*newest, (number, self._draw(number))])
        return self._kept[epoch]

    def state_of(self, epoch: int) -> dict[str, str]:
        """Returns a digest of the draws of an epoch, see `ChunkedSource`."""
        return {"draws of the sampler": digest(self(epoch))}

    def are_alike(self) -> bool:
        """Whether another copy of the sampler draws the same."""
        other = SeededDraws(self._sampler, self._seed, self._first, self._shared)
        epochs = range(self._first, self._first + REHEARSED)
        found = all(self.state_of(e) == other.state_of(e) for e in epochs)
        self._kept, self._current = {}, None
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": {}, "_current": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Folders of older runs do not contain the first epoch.
        vars(self).update({"_first": 0, "_shared": None, "_current": None, **state})

    def _draw(self, epoch: int) -> list[Any]:
        inner = getattr(self._current, "sampler", self._current)
        with _seeded_torch(self._seed, epoch, getattr(inner, "generator", None)):
            for sampler in (self._current, inner):
                if hasattr(sampler, "set_epoch"):  # as for DistributedSampler
                    sampler.set_epoch(epoch)
                    break
            return list(self._current)


@contextmanager
def _seeded_torch(seed: int, epoch: int, generator: Any) -> Generator[None]:
    """Seeds like `seeded`, for torch too; everything is restored afterwards."""
    import torch

    before = None if generator is None else generator.get_state()
    with seeded(seed, epoch) as wide, torch.random.fork_rng(devices=[]):
        torch.manual_seed(wide)
        if generator is not None:
            generator.manual_seed(wide)
        try:
            yield
        finally:
            if generator is not None:
                generator.set_state(before)


@final
class _WorkerShards:
    """Makes the stream of a shard, like a loader's process with its number.

    Args:
        loader: Loader over a stream.
    """

    def __init__(self, loader: Any) -> None:
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        self._batch_size, self._drop_last = loader.batch_size, loader.drop_last

    def __call__(self, shard: Shard) -> Iterator[Any]:
        from torch.utils.data import DataLoader
        from torch.utils.data._utils import worker

        # A process of a loader has a copy as well: several streams are open at once.
        dataset = copy.deepcopy(self._dataset)
        stream = DataLoader(
            dataset,
            self._batch_size,
            collate_fn=self._collate,
            drop_last=self._drop_last,
        )
        known: Any = worker
        info = known.WorkerInfo(
            id=shard.index,
            num_workers=shard.count,
            seed=shard.seed + shard.epoch,
            dataset=dataset,
        )
        batches = None
        while True:
            # Only this makes get_worker_info return the shard.
            before, known._worker_info = known._worker_info, info
            try:
                batches = iter(stream) if batches is None else batches
                batch = next(batches, None)
            finally:
                known._worker_info = before
            if batch is None:
                return
            yield batch
