"""`keras.utils.PyDataset`: batches that a user's class gives by number.

This file decides how the methods that Keras calls around an epoch are called where
every worker has a copy of the data set.
"""

from __future__ import annotations

import copy
from typing import Any, final

from shoal.data.batches import Packing
from shoal.data.draws import SEED, seeded
from shoal.data.numbered import NumberedBatches
from shoal.data.travelling import check_travels
from shoal.errors import ConfigError, DataError


def py_dataset_source(
    dataset: Any, packing: Packing, steps_per_epoch: int | None = None
) -> NumberedBatches:
    """Makes a source of a `keras.utils.PyDataset`: one batch, one chunk.

    Shuffling changes the order of batches, as in Keras. `on_epoch_begin` and
    `on_epoch_end` run in every worker, on its own copy, once for each epoch; the
    random numbers of Python and NumPy are seeded for them, so that all copies draw
    alike. The data set of the caller is read and not changed. Its `workers` and
    `use_multiprocessing` mean nothing here.

    Args:
        dataset: The data set. It has to be one that cloudpickle takes.
        packing: How batches are made into chunks.
        steps_per_epoch: Needed where `num_batches` is None, that is infinite; the
            second epoch then goes on where the first ended.

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
    count = dataset.num_batches
    is_endless = count is None
    if is_endless:
        count = steps_per_epoch
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
    return NumberedBatches(
        _Copies(dataset, count if is_endless else 0),
        count=count,
        packing=packing,
        mixing="nothing" if is_endless else "chunks",
    )


@final
class _Copies:
    """A data set as it was given, and as it is in the epoch that is read.

    Args:
        dataset: As the user gave it; stays so where epochs change it.
        stride: Batches that an epoch goes on by; 0 where all epochs have the same.
    """

    def __init__(self, dataset: Any, stride: int) -> None:
        self._dataset, self._stride = dataset, stride
        self._current: tuple[int, Any] | None = None

    def __call__(self, index: int, epoch: int) -> Any:
        return self._in(epoch)[index + epoch * self._stride]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_current": None}

    def _in(self, epoch: int) -> Any:
        """The data set in an epoch; epochs in between are gone through."""
        if not _is_changing(self._dataset):
            return self._dataset
        if self._current is None or self._current[0] > epoch:
            self._current = 0, copy.deepcopy(self._dataset)
            _call(self._current[1], "on_epoch_begin", 0)
        reached, dataset = self._current
        for past in range(reached, epoch):
            _call(dataset, "on_epoch_end", past)
            _call(dataset, "on_epoch_begin", past + 1)
        self._current = epoch, dataset
        return dataset


def _call(dataset: Any, method: str, epoch: int) -> None:
    """Calls a method that Keras calls around an epoch, where there is one."""
    with seeded(SEED, epoch, len(method)):
        getattr(dataset, method, lambda: None)()


def _is_changing(dataset: Any) -> bool:
    """Whether the user's class does anything around an epoch."""
    import keras

    plain: Any = keras.utils.PyDataset
    return any(
        getattr(type(dataset), name, None) is not getattr(plain, name, None)
        for name in ("on_epoch_begin", "on_epoch_end")
    )
