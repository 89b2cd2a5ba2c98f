"""Keras' batch hooks for exchanges: which callbacks want them, and their indices.

In step with the workers, where each step waits for the hooks, they are called as Keras
calls them: `on_train_batch_begin` before the step that it is of.

This file decides what a batch is to a callback. Keras under `steps_per_execution`
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

# Keras' own that override a batch hook and never look at a weight there, as long as
# they were not asked to save every few batches.
BLIND = frozenset(
    {"BackupAndRestore", "ModelCheckpoint", "ProgbarLogger", "TensorBoard",
     "TerminateOnNaN"}
)  # fmt: skip


@final
class BatchHooks:
    """Calls the batch hooks of callbacks, once an exchange.

    The messages of one round are one exchange. Hooks follow the run at a distance
    of about a tenth of a second: the weights they see are the newest, the step and
    the logs they get are those of their exchange.

    Args:
        callbacks: A Keras `CallbackList`.
        batch_size: Samples of one step as the user means it.
        every: Steps of one call, as `compile(steps_per_execution=...)` says. An
            exchange of more steps is a call of its own, whatever this is.
    """

    def __init__(self, callbacks: Any, batch_size: int, every: int = 1) -> None:
        self._callbacks, self._batch_size = callbacks, batch_size
        self._every = every
        wanting = [c for c in callbacks.callbacks if _has_batch_hook(c)]
        self.are_wanted = bool(wanting)
        """Whether any callback has a batch hook."""
        self.read_weights = any(_reads_weights(c) for c in wanting)
        """Whether a batch hook may look at the weights."""
        self.may_set = any(not _is_blind(c) for c in wanting)
        """Whether a batch hook may change anything."""
        self.count_steps = any(_counts_steps(c) for c in wanting)
        """Whether a batch hook may do something else when it is called less often."""
        self._steps = self._next = self._samples = 0
        self._has_begun = False
        self._count: Callable[[int], int] = lambda rows: 0

    def begin_epoch(self, rows: int, count: Callable[[int], int] | None = None) -> None:
        """Starts to count again.

        Args:
            rows: Samples of the epoch.
            count: From samples of the epoch to the steps that they make, where the
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
            records: Of one epoch; those of one round follow each other.
            logs_of: The logs after an exchange.
            prepare: Called before each pair of hooks with the steps that are done;
                False ends the calls.
        """
        for _, group in groupby(records, key=lambda record: record.version):
            messages = list(group)
            self._samples += sum(record.samples for record in messages)
            first = max(0, min(self._next, self._steps - 1))
            last = min(self._count(self._samples), self._steps) - 1
            last = max(first, last)
            if last + 1 - first < self._every and last + 1 < self._steps:
                continue  # an execution goes on
            self._next = last + 1
            if not prepare(self._next):
                return
            if not self._has_begun:
                self._callbacks.on_train_batch_begin(first)
            self._has_begun = False
            # Keras names the last step of an execution even where the epoch ends
            # before it.
            last = max(last, first + self._every - 1)
            self._callbacks.on_train_batch_end(last, logs_of(messages[-1]))


def steps_of(rows: int, batch_size: int) -> int:
    """Steps that so many samples make, a short one included.

    Example:
        >>> steps_of(65, batch_size=32)
        3
    """
    return -(-rows // batch_size)


def _has_batch_hook(callback: Any) -> bool:
    """Whether a callback overrides one; Keras marks its own empty ones."""
    return any(
        not getattr(getattr(callback, hook), "_is_default", False)
        for hook in BATCH_HOOKS
    )


def _reads_weights(callback: Any) -> bool:
    """Whether a batch hook may look at the weights: yes, unless it is known not to."""
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
    """Whether it is one of Keras' own that change nothing, and look at no weight."""
    kind = type(callback)
    return kind.__name__ in BLIND and kind.__module__.startswith("keras.")
