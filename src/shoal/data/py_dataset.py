"""`keras.utils.PyDataset`: batches that a user's class gives by number.

This file decides which process reads such a data set. Workers do, each from its own
copy, if the methods that Keras calls around an epoch have the same effect on every
copy. Otherwise one process calls them and reads: the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from shoal.data.batches import Packing
from shoal.data.chunks import ChunkedSource
from shoal.data.generators import FedSource
from shoal.data.hooked import (
    Hooked,
    begun,
    changing_hooks,
    differing,
)
from shoal.data.numbered import NumberedBatches
from shoal.data.reading import Reading
from shoal.data.travelling import check_travels
from shoal.errors import ConfigError, DataError


def py_dataset_source(
    dataset: Any, packing: Packing, reading: Reading | None = None
) -> ChunkedSource:
    """Makes a source of a `keras.utils.PyDataset`: one batch, one chunk.

    Shuffling changes the order of batches, as in Keras. `on_epoch_begin` and
    `on_epoch_end` run in every worker, on its own copy, when Keras would call them;
    the random numbers of Python, NumPy and torch are seeded for them, so that all
    copies draw alike. Methods that create a new generator each time, or that
    read the clock, leave copies that differ: then this process alone calls them,
    on one copy, and hands the batches to the workers. The caller's data set is
    read and not changed. Its `workers` and `use_multiprocessing` are ignored.

    Args:
        dataset: The data set; cloudpickle must be able to pickle it.
        packing: How batches are made into chunks.
        reading: Options of `fit`. `steps_per_epoch` is needed if `num_batches`
            is None, that is infinite; the second epoch then continues where the first
            ended.

    Raises:
        ConfigError: It is infinite and `steps_per_epoch` is None.
        DataError: It is empty, cannot be pickled, or gives batches of several sizes.

    Example:
        >>> import keras, numpy as np
        >>> class Ones(keras.utils.PyDataset):
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, index):
        ...         return np.ones((2, 1)), np.full(2, index)
        >>> packing = Packing(kind="PyDataset", floatx="float32")
        >>> py_dataset_source(Ones(), packing).take(np.array([0, 5]))[1]
        array([0, 2])
    """
    reading = reading or Reading()
    count = dataset.num_batches
    is_endless = count is None
    if is_endless:
        count = reading.steps_per_epoch
    if count is None:
        raise ConfigError(
            f"{packing.steps_name}=None, but num_batches of the {packing.kind} is "
            f"None: it has no end ({packing.where}). Expected the number of batches in "
            f"a pass. Pass {packing.steps_name}."
        )
    if count < 1:
        raise DataError(
            f"The {packing.kind} has {count} batches ({packing.where}). "
            "Expected at least one. Check how it was made."
        )
    check_travels(
        dataset,
        packing.kind,
        packing.where,
        "Open files and locks in __getitem__ rather than in __init__.",
    )
    stride = count if is_endless else 0
    hooks = changing_hooks(dataset)
    if hooks:
        first, is_training = reading.epochs.start, reading.is_training
        names = differing(dataset, first, is_training=is_training)
        if names:
            driven = _Driven(dataset, count, stride, reading)
            return driven.source(packing, _note(packing.kind, hooks, names))
    first = reading.epochs.start if hooks else None
    return NumberedBatches(
        _Copies(dataset, stride, first, is_training=reading.is_training),
        count=count,
        packing=packing,
        mixing="nothing" if is_endless else "chunks",
    )


def _note(kind: str, hooks: list[str], names: list[str]) -> str:
    """Returns the reason why workers do not read such a data set by themselves."""
    return (
        f"{' and '.join(hooks)} of the {kind} would leave another "
        f"{', '.join(f'self.{name}' for name in names[:3])} in each worker's copy, so "
        "this process calls it and reads the batches for all workers. To let workers "
        "read by themselves, draw from a generator that __init__ makes with a seed, "
        "such as self.rng = np.random.default_rng(7), and from it in no other method."
    )


@final
class _Copies:
    """A data set as it was given, and its state in the epoch that is read.

    Args:
        dataset: The user's data set; it is not changed.
        stride: Batches between the starts of epochs; 0 if all epochs have the same.
        first: The first epoch; None if no method is called around epochs.
        is_training: Whether `fit` reads it.
    """

    def __init__(
        self, dataset: Any, stride: int, first: int | None, *, is_training: bool
    ) -> None:
        self._dataset, self._stride, self._first = dataset, stride, first
        self._is_training = is_training
        self._current: Hooked | None = None

    def __call__(self, index: int, epoch: int) -> Any:
        dataset = self._dataset
        if self._first is not None:
            dataset = self._in(max(epoch, self._first), self._first).dataset
        return dataset[index + epoch * self._stride]

    def state_of(self, epoch: int) -> dict[str, str]:
        """Returns digests of the changes for an epoch, the same for all copies."""
        if self._first is None:
            return {}
        found = self._in(max(epoch, self._first), self._first).changed
        return {f"self.{name}": digest for name, digest in found.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_current": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Folders of older runs do not contain the first epoch.
        vars(self).update({"_is_training": False, **state})
        if "_first" not in state:
            self._first = 0 if changing_hooks(self._dataset) else None

    def _in(self, epoch: int, first: int) -> Hooked:
        """Returns the data set in an epoch; runs through the epochs in between."""
        if self._current is None or self._current.epoch > epoch:
            self._current = begun(self._dataset, first, is_training=self._is_training)
        current, self._current = self._current, None
        while current.epoch < epoch:
            current.go_on()  # if it raises, everything starts again
        self._current = current
        return current


@final
class _Driven:
    """A copy of a data set that the driver reads for all workers, pass after pass.

    Args:
        dataset: The user's data set.
        count: Batches of a pass.
        stride: Batches between the starts of epochs; 0 if all epochs have the same.
        reading: Options of `fit`.
    """

    def __init__(self, dataset: Any, count: int, stride: int, reading: Reading) -> None:
        self._dataset, self._count, self._stride = dataset, count, stride
        self._reading = reading
        self._hooked: Hooked | None = None

    def source(self, packing: Packing, note: str) -> FedSource:
        """Makes the source."""
        name = f"batch {self._count - 1:,}"

        def expect(rows: int) -> list[int]:
            last_rows = packing.rows_of(self._last_batch(), name)
            if last_rows > rows:
                raise packing.odd_size(name, last_rows, rows)
            return [rows] * (self._count - 1) + [last_rows]

        is_endless = self._stride > 0
        steps = None if is_endless else self._reading.steps_per_epoch
        return FedSource.of_passes(
            self._begin_pass,
            packing=packing,
            steps_per_epoch=steps,
            epochs=self._reading.epochs,
            expect=expect,
            notes=(note,),
        )

    def _last_batch(self) -> Any:
        """Returns the last batch of the first pass, which has begun."""
        if self._hooked is None:
            raise RuntimeError("the rows of a pass are asked for after its first batch")
        return self._hooked.dataset[self._count - 1 + self._hooked.epoch * self._stride]

    def _begin_pass(self) -> Iterator[Any]:
        """Calls the methods as Keras would, and yields the batches of a pass."""
        if self._hooked is None:
            reading = self._reading
            self._hooked = begun(
                self._dataset, reading.epochs.start, is_training=reading.is_training
            )
        else:
            self._hooked.go_on()
        epoch, dataset = self._hooked.epoch, self._hooked.dataset
        order = np.arange(self._count) + epoch * self._stride
        if self._reading.shuffle and not self._stride:
            # The last batch may be short, and stays at the position where that is
            # expected.
            words = np.random.SeedSequence([self._reading.seed, epoch])
            np.random.default_rng(words).shuffle(order[:-1])
        for index in order.tolist():
            yield dataset[index]
