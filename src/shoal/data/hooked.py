"""Data sets with methods of the user's that change them around an epoch.

This file calls these methods when Keras would call them, and finds out
whether they have the same effect on every copy of a data set.
"""

from __future__ import annotations

import copy
import sys
from importlib import import_module
from typing import Any, final

from shoal.data.digests import digest
from shoal.data.draws import SEED, seeded

BEGIN, END = "on_epoch_begin", "on_epoch_end"
HOOKS = (BEGIN, END)
REHEARSED = 2
"""Number of epochs rehearsed to find the effects of a data set's methods."""


def changing_hooks(dataset: Any) -> list[str]:
    """Names the methods around an epoch that the user has overridden.

    Example:
        >>> import keras
        >>> changing_hooks(keras.utils.PyDataset())
        []
    """
    plain: Any = import_module("keras").utils.PyDataset
    kind = type(dataset)
    own = [n for n in HOOKS if getattr(kind, n, None) is not getattr(plain, n, None)]
    return own + [n for n in HOOKS if n in getattr(dataset, "__dict__", {})]


@final
class Hooked:
    """A data set in an epoch, which can go on to the next epoch.

    Keras' `fit` also calls `on_epoch_end` once before the first epoch: it reads a
    batch to build the model, and begins again.

    Args:
        dataset: A copy of the data set; it is changed.
        epoch: The first one.
        is_training: Whether `fit` reads it.

    Attributes:
        state: Digests of all attributes after the last calls, by name.
        changed: Names of attributes that the last calls changed.
    """

    def __init__(self, dataset: Any, epoch: int, *, is_training: bool) -> None:
        self.dataset, self.epoch = dataset, epoch
        self.state: dict[str, str] = {}
        self.changed: dict[str, str] = {}
        before: tuple[str, ...] = ()
        if is_training:
            has_built = import_module("keras").backend.backend() != "tensorflow"
            before = (BEGIN, END) if has_built else (END,)
        self._call(*before, BEGIN, epoch=epoch)

    def go_on(self) -> None:
        """Ends the epoch and begins the next one."""
        self._call(END, BEGIN, epoch=self.epoch + 1)
        self.epoch += 1

    def _call(self, *names: str, epoch: int) -> None:
        before = _state(self.dataset)
        for place, name in enumerate(names):
            with seeded(SEED, epoch, place):
                getattr(self.dataset, name, lambda: None)()
        self.state = after = _state(self.dataset)
        self.changed = {n: d for n, d in after.items() if before.get(n) != d}


def begun(dataset: Any, epoch: int, *, is_training: bool) -> Hooked:
    """Returns a copy of a data set at the beginning of an epoch.

    Args:
        dataset: The user's data set; it is not changed.
        epoch: The first one.
        is_training: Whether `fit` reads it.
    """
    had_torch = "torch" in sys.modules
    hooked = Hooked(copy.deepcopy(dataset), epoch, is_training=is_training)
    if had_torch or "torch" not in sys.modules:
        return hooked
    # The first call imported a library, and drew before that could be seeded.
    return Hooked(copy.deepcopy(dataset), epoch, is_training=is_training)


def differing(dataset: Any, epoch: int, *, is_training: bool) -> list[str]:
    """Names the attributes that differ when an epoch begins again on another copy.

    Two copies run through the first epochs; a batch of one is read in between, because
    reading may draw from the same generator as a method.

    Args:
        dataset: The user's data set; it is not changed.
        epoch: The first one.
        is_training: Whether `fit` reads it.

    Example:
        >>> import keras, numpy as np
        >>> class Shuffled(keras.utils.PyDataset):
        ...     def __getitem__(self, index):
        ...         return np.ones((1, 1)) * self.order[index]
        ...     def on_epoch_begin(self):
        ...         self.order = np.random.default_rng().permutation(9)
        >>> differing(Shuffled(), 0, is_training=True)
        ['order']
    """
    one = _rehearse(dataset, epoch, is_training=is_training, is_read=False)
    other = _rehearse(dataset, epoch, is_training=is_training, is_read=True)
    names = {
        name
        for (mine, changed), (theirs, too) in zip(one, other, strict=True)
        for name in changed | too
        if mine.get(name) != theirs.get(name)
    }
    return sorted(names)


def _rehearse(
    dataset: Any, epoch: int, *, is_training: bool, is_read: bool
) -> list[tuple[dict[str, str], set[str]]]:
    """Returns the states of a copy in its first epochs, and the names that changed."""
    hooked = begun(dataset, epoch, is_training=is_training)
    found = [(hooked.state, set(hooked.changed))]
    for _ in range(REHEARSED):
        if is_read:
            hooked.dataset[0]
        hooked.go_on()
        found.append((hooked.state, set(hooked.changed)))
    return found


def _state(dataset: Any) -> dict[str, str]:
    return {name: digest(value) for name, value in vars(dataset).items()}
