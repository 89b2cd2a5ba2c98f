"""Writes checkpoints in a thread during a run, and removes them at its end.

One thread writes the newest; checkpoints that come meanwhile wait, and only the last
of them is kept. Storage that fails costs checkpoints, not training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import final

from shoal.errors import CheckpointError
from shoal.interruption import Deadline
from shoal.runs.checkpoints import Checkpoint, CheckpointStore
from shoal.runs.folder import Folder
from shoal.training.inputs import INPUTS

CHECKPOINTS = "checkpoints"
LONGEST_END_S = 30.0

Write = Callable[[], None]


class CannotBegin(Exception):
    """This run cannot be resumed; it trains all the same."""


@final
class CheckpointWriter:
    """The checkpoints of a run during training.

    Args:
        folder: Folder of the run.
        warn: Called with one line when checkpoints begin to fail, and when they
            recover.
        first: Number of the first checkpoint.
        store: An open store, None to open one.
        tell: Called with the kind and the fields of an event for each checkpoint that
            was written, or could not be.
    """

    def __init__(
        self,
        folder: Folder,
        warn: Callable[[str], None],
        *,
        first: int = 0,
        store: CheckpointStore | None = None,
        tell: Callable[..., None] = lambda kind, **fields: None,
    ) -> None:
        self._folder, self._warn, self._tell = folder, warn, tell
        self._number = first
        self._store = store
        self._began = self._saved = time.monotonic()
        self._is_failing = False
        self._refusal: CheckpointError | None = None
        self._before: Write | None = None
        self._newest: Checkpoint | None = None
        self._is_over = False
        self._change = threading.Condition()
        self._thread = threading.Thread(
            target=self._work, name="shoal-checkpoints", daemon=True
        )
        self._thread.start()

    def begin(self, write: Write) -> None:
        """Writes the constant part before the first checkpoint.

        Args:
            write: Writes it; called in the thread, again after an `OSError`.
        """
        with self._change:
            self._before = write
            self._change.notify_all()

    def keep(self, checkpoint: Checkpoint) -> None:
        """Has a checkpoint written soon, unless a newer one replaces it.

        Args:
            checkpoint: Its number is ignored. Its arrays must not change.

        Raises:
            CheckpointError: Another process has resumed this run.
        """
        if self._refusal is not None:
            raise self._refusal
        with self._change:
            self._newest = checkpoint
            self._change.notify_all()

    @property
    def has_saved(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self._number > 0

    def close(self) -> None:
        """Waits, with a limit, for pending writes, and ends. Safe to repeat."""
        with self._change:
            self._is_over = True
            self._change.notify_all()
        Deadline(LONGEST_END_S).wait(self._is_done)

    def _is_done(self, limit_s: float) -> bool:
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Checks that no other process has resumed the run; silent storage passes.

        This process may have been suspended, and was taken for lost.

        Raises:
            CheckpointError: Another one has: it writes the run from then on.
        """
        folder = self._folder.child(CHECKPOINTS)
        with suppress(OSError):
            (self._store or CheckpointStore(folder, complain=self._warn)).check()

    @property
    def is_taken(self) -> bool:
        """Whether another process has resumed the run; see `check`."""
        try:
            self.check()
        except CheckpointError:
            return True
        return False

    def discard(self) -> None:
        """Ends, and removes the checkpoints: the run has ended well.

        Those of another process that has resumed the run stay.
        """
        with self._change:
            self._before = self._newest = None
        self.close()
        try:
            self.check()
        except CheckpointError as error:
            self._warn(str(error))
            return
        for name in (CHECKPOINTS, INPUTS):
            folder = self._folder.child(name)
            try:
                if folder.exists():
                    folder.remove()
            except Exception as error:  # a file system of fsspec may raise anything
                self._warn(
                    f"{folder.url} cannot be removed ({type(error).__name__}: {error})."
                    " It is not needed any more. Remove it by hand."
                )

    def _work(self) -> None:
        while True:
            with self._change:
                while not (self._before or self._newest or self._is_over):
                    self._change.wait()
                before, newest = self._before, self._newest
                self._newest = None
            if before is None and newest is None:
                return
            try:
                self._begin(before)
                self._save(newest)
            except CannotBegin as error:
                self._warn(str(error))
                return
            except CheckpointError as error:
                self._refusal = error
                self._warn(str(error))
                return
            except Exception as error:  # a file system of fsspec may raise anything
                self._tell(
                    "checkpoint_failed",
                    number=self._number,
                    reason=f"{type(error).__name__}: {error}",
                    **({} if newest is None else _place(newest)),
                )
                self._failed(error)
                if self._is_over:
                    return
                self._wait_for_another(newest)

    def _begin(self, before: Write | None) -> None:
        if before is None:
            return
        try:
            before()
        except CheckpointError as error:
            raise CannotBegin(str(error)) from error
        with self._change:
            self._before = None

    def _save(self, newest: Checkpoint | None) -> None:
        if newest is not None:
            if self._store is None:
                store = CheckpointStore(
                    self._folder.child(CHECKPOINTS), complain=self._warn
                )
                self._store = store.open()
            began = time.monotonic()
            self._store.save(replace(newest, number=self._number))
            self._tell(
                "checkpoint_written",
                number=self._number,
                seconds=round(time.monotonic() - began, 6),
                bytes=newest.size_bytes,
                **_place(newest),
            )
            self._number += 1
        self._saved = time.monotonic()
        if self._is_failing:
            self._is_failing = False
            self._warn(f"checkpoints are written to {self._folder.url} again")

    def _wait_for_another(self, newest: Checkpoint | None) -> None:
        """Waits for the next checkpoint, or tries this one again at the end."""
        with self._change:
            while not (self._newest or self._is_over):
                self._change.wait()
            self._newest = self._newest or newest

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            age = time.monotonic() - self._saved
            last = (
                f"the last good one is {age:.0f} s old"
                if self._saved > self._began
                else "there is none yet"
            )
            self._warn(
                f"no checkpoint can be written to {self._folder.url} "
                f"({type(error).__name__}: {error}); {last}. Training goes on, and "
                "each later checkpoint tries again."
            )


def _place(checkpoint: Checkpoint) -> dict[str, int]:
    """Returns the next epoch and the committed samples of a checkpoint, if it has."""
    diary = checkpoint.document.get("diary") or {}
    found = {name: diary.get(name) for name in ("epoch", "samples")}
    return {name: value for name, value in found.items() if value is not None}
