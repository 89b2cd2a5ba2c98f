"""Written copies of DataFrames that several calls use.

This file decides how long a copy lives: one that a plan has had written, until the next
`fit` of the same frame object; one of a frame that is cached, or precached, until
`unpersist`, the end of the frame object or of its session. PySpark is not imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary, ref

from shoal.data.frame_folders import FrameFolder

if TYPE_CHECKING:  # it imports pyarrow
    from shoal.data.frame_writing import Written


@final
@dataclass(frozen=True, eq=False)
class FrameCopy:
    """What executors have written of a frame.

    Args:
        told: What each task has written.
        folder: Folder of the files.
        is_far: Whether workers on other machines see them.
        notes: Sentences that the user should read.
        options: Options of the store of the files.
    """

    told: tuple[Written, ...]
    folder: FrameFolder
    is_far: bool
    notes: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None


@final
@dataclass(eq=False)
class _Entry:
    """Copies of a frame, by what was asked for."""

    copies: dict[Hashable, FrameCopy] = field(default_factory=dict[Hashable, FrameCopy])
    was_cached: bool = False
    least_workers: int = 1
    factor: int = 1
    lock: threading.RLock = field(default_factory=threading.RLock)


_ENTRIES: WeakKeyDictionary[Any, _Entry] = WeakKeyDictionary()
_LOCK = threading.RLock()


def _entry(frame: Any) -> _Entry:
    with _LOCK:
        return _ENTRIES.setdefault(frame, _Entry())


def copy_of(
    frame: Any, asked: Hashable, write: Callable[[], FrameCopy], *, is_plan: bool
) -> tuple[FrameCopy, bool]:
    """Returns a copy of a frame, and whether it is kept after its use.

    Two threads that train on the same cached frame have it written once.

    Args:
        frame: The frame.
        asked: What identifies the copy among those of the frame.
        write: Writes one.
        is_plan: Whether the copy is for a plan.
    """
    drop_released()
    entry = _entry(frame)
    is_kept = is_cached(frame)
    if not is_kept and not is_plan:
        return entry.copies.pop(asked, None) or write(), False
    with entry.lock:
        found = entry.copies.get(asked) or write()
        if not is_kept:  # a plan's copy takes the place of another plan's
            entry.copies.clear()
        entry.copies[asked] = found
        entry.was_cached = is_kept
        return found, True


def is_cached(frame: Any) -> bool:
    """Whether a frame object is cached or precached, and its session lives."""
    return bool(getattr(frame, "is_cached", False)) and _is_alive(frame)


def _is_alive(frame: Any) -> bool:
    session = getattr(frame, "sparkSession", None)
    context = getattr(session, "sparkContext", None)
    return context is None or getattr(context, "_jsc", None) is not None


def drop_released() -> None:
    """Removes the copies of frames that are not cached any more."""
    with _LOCK:
        found = [
            _ENTRIES.pop(frame)
            for frame, entry in list(_ENTRIES.items())
            if entry.was_cached and not is_cached(frame)
        ]
    for entry in found:
        _close(entry)


def _close(entry: _Entry) -> None:
    with entry.lock:
        for copy in entry.copies.values():
            copy.folder.close()
        entry.copies.clear()


def keep(frame: Any, num_workers: int) -> None:
    """Has copies of a frame kept until its `unpersist`, as if it were cached.

    Args:
        frame: A frame object that nobody else has.
        num_workers: Number of workers that have enough groups of rows.
    """
    _entry(frame).least_workers = num_workers
    frame.is_cached = True
    frame.unpersist = _Unpersist(frame)


@final
class _Unpersist:
    """The `unpersist` of a frame that is kept."""

    def __init__(self, frame: Any) -> None:
        self._frame = ref(frame)

    def __call__(self, blocking: bool = False) -> Any:
        """Removes the copies; returns the frame."""
        frame: Any = self._frame()
        if frame is not None:
            del frame.unpersist
            frame.unpersist(blocking)
            drop_released()
        return frame


@contextmanager
def cut_finer(frame: Any, factor: int) -> Generator[None]:
    """Has the rows of a frame cut into smaller groups while the context lasts.

    Args:
        frame: The frame.
        factor: Factor by which they are smaller.
    """
    entry = _entry(frame)
    before, entry.factor = entry.factor, factor
    try:
        yield
    finally:
        entry.factor = before


def shares_of(frame: Any, workers: int) -> int:
    """Returns the number of workers that groups of rows are cut for.

    Args:
        frame: The frame.
        workers: Largest number of workers that train.
    """
    entry = _entry(frame)
    return max(workers, entry.least_workers) * entry.factor
