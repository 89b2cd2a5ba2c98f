"""Keras' batch hooks for exchanges: which callbacks have them, and their indices.

If workers wait for the hooks after each step, they are called as Keras
calls them: `on_train_batch_begin` before its step.

This file decides which steps are a batch for a callback. Keras under
`steps_per_execution`
calls `on_train_batch_begin` with the first step of an execution and
`on_train_batch_end` with its last one; here an exchange is such an execution, and
steps are counted in the user's batch size over all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, final

from shoal.engine.server.records import Record

BATCH_HOOKS = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)

# Keras' own callbacks with a batch hook that never reads a weight there, unless
# they were asked to save every few batches.
BLIND = frozenset(
    {"BackupAndRestore", "ModelCheckpoint", "ProgbarLogger", "TensorBoard",
     "TerminateOnNaN"}
)  # fmt: skip


@final
class BatchHooks:
    """Calls the batch hooks of callbacks, once an exchange.

    The messages of one round are one exchange. Hooks follow the run with a delay
    of about a tenth of a second: the weights they see are the newest, the step and
    the logs they get are those of their exchange.

    Args:
        callbacks: A Keras `CallbackList`.
        batch_size: Samples of one step as the user means it.
        every: Steps of one call, from `compile(steps_per_execution=...)`. An
            exchange of more steps is a call of its own.
    """

    def __init__(self, callbacks: Any, batch_size: int, every: int = 1) -> None:
        self._callbacks, self._batch_size = callbacks, batch_size
        self._every = every
        wanting = [c for c in callbacks.callbacks if _has_batch_hook(c)]
        self.are_wanted = bool(wanting)
        """Whether any callback has a batch hook."""
        self.read_weights = any(_reads_weights(c) for c in wanting)
        """Whether a batch hook may read the weights."""
        self.may_set = any(not _is_blind(c) for c in wanting)
        """Whether a batch hook may change anything."""
        self.count_steps = any(_counts_steps(c) for c in wanting)
        """Whether the effect of a batch hook may depend on the number of calls."""
        self._steps = self._next = self._samples = 0
        self._has_begun = False
        self._count: Callable[[int], int] = lambda rows: 0

    def begin_epoch(self, rows: int, count: Callable[[int], int] | None = None) -> None:
        """Resets the counts.

        Args:
            rows: Samples of the epoch.
            count: Maps samples of the epoch to steps, if the
                data has batches of its own.
        """
        self._count = count or (lambda rows: steps_of(rows, self._batch_size))
        self._steps = self._count(rows)
        self._next = self._samples = 0
        self._has_begun = False

    def begin_step(self) -> None:
        """Calls the hook before the next step, if there is one."""
        if not self._has_begun and self._next < self._steps:
            self._has_begun = True
            self._callbacks.on_train_batch_begin(self._next)

    def call(
        self,
        records: Iterable[Record],
        logs_of: Callable[[Record], dict[str, float]],
        prepare: Callable[[int], bool],
    ) -> None:
        """Calls the hooks for exchanges of the current epoch, oldest first.

        Args:
            records: Records of one epoch; those of one round follow each other.
            logs_of: Returns the logs after an exchange.
            prepare: Called before each pair of hooks with the number of done steps;
                False ends the calls.
        """
        for _, group in groupby(records, key=lambda record: record.version):
            messages = list(group)
            self._samples += sum(record.samples for record in messages)
            first = max(0, min(self._next, self._steps - 1))
            last = min(self._count(self._samples), self._steps) - 1
            last = max(first, last)
            if last + 1 - first < self._every and last + 1 < self._steps:
                continue  # the execution is not complete
            self._next = last + 1
            if not prepare(self._next):
                return
            if not self._has_begun:
                self._callbacks.on_train_batch_begin(first)
            self._has_begun = False
            # Keras names the last step of an execution even if the epoch ends
            # before it.
            last = max(last, first + self._every - 1)
            self._callbacks.on_train_batch_end(last, logs_of(messages[-1]))


def steps_of(rows: int, batch_size: int) -> int:
    """Returns the steps of so many samples, a short one included.

    Example:
        >>> steps_of(65, batch_size=32)
        3
    """
    return -(-rows // batch_size)


def _has_batch_hook(callback: Any) -> bool:
    """Whether a callback overrides a batch hook; Keras marks its own empty ones."""
    return any(
        not getattr(getattr(callback, hook), "_is_default", False)
        for hook in BATCH_HOOKS
    )


def _reads_weights(callback: Any) -> bool:
    """Whether a batch hook may read the weights: yes, unless it is known not to."""
    return not _is_blind(callback) or isinstance(
        getattr(callback, "save_freq", None), int
    )


def _counts_steps(callback: Any) -> bool:
    """Whether a batch hook counts its calls: yes, unless it is known not to."""
    if not _is_blind(callback):
        return True
    every = [getattr(callback, name, None) for name in ("save_freq", "update_freq")]
    return any(isinstance(steps, int) for steps in every)


def _is_blind(callback: Any) -> bool:
    """Whether it is one of Keras' own callbacks that change and read nothing here."""
    kind = type(callback)
    return kind.__name__ in BLIND and kind.__module__.startswith("keras.")
