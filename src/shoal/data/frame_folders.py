"""Folders of a frame's files: who removes them, and who may take them over.

Files go when their run has ended well. Those of a run that was broken off stay for
`shoal.resume`: in a store for any process, on this machine's disk for this process, and
after its end for the first one that resumes the run.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, final

from shoal.data.frame_stores import StoreFolder
from shoal.errors import CheckpointError
from shoal.host.scratch import Scratch

Remove: TypeAlias = Callable[[], object]
Reopen: TypeAlias = "Callable[[bool], FrameFolder | None]"


@final
class FrameFolder:
    """The folder of a frame's files, until `close` or the end of the process.

    Args:
        name: Its path or URL.
        remove: Removes it; called once, in this process.
        reopen: Takes over the files that a broken-off run has left, in another process
            as well; is told whether others may use them too. It can be pickled.
        leave: Leaves the files for other processes; default None: this process keeps
            them until its end.
    """

    def __init__(
        self, name: str, remove: Remove, reopen: Reopen, leave: Remove | None = None
    ) -> None:
        self._name, self._leave, self.reopen = name, leave, reopen
        self._remove: weakref.finalize[Any, Any] = weakref.finalize(
            self, _in_process, os.getpid(), remove
        )

    @property
    def is_open(self) -> bool:
        """Whether its files were not removed yet."""
        return self._remove.alive

    def close(self) -> None:
        """Removes the files, in the process that had them written."""
        self._remove()

    def leave(self) -> None:
        """Leaves the files of a run that was broken off."""
        if self._leave is None:
            _LEFT[self._name] = self
        elif self._remove.detach() is not None:
            self._leave()


_LEFT: dict[str, FrameFolder] = {}
"""Folders that broken-off runs of this process have left, by name."""


def _in_process(owner: int, remove: Remove) -> None:
    if os.getpid() == owner:  # and not in a fork
        remove()


def _left(name: str) -> FrameFolder | None:
    """Takes a folder that this process has left, if it is still there."""
    found = _LEFT.pop(name, None)
    return found if found is not None and found.is_open else None


def in_store(place: StoreFolder, *, is_kept: bool = False) -> FrameFolder:
    """Returns a folder that all machines see.

    Args:
        place: Folder in a store.
        is_kept: Whether its end leaves it there.
    """
    remove = place.leave if is_kept else place.remove
    reopen = partial(_reopen_store, place.url)
    return FrameFolder(place.url, remove, reopen, place.leave)


def _reopen_store(url: str, is_kept: bool) -> FrameFolder | None:
    place = StoreFolder.take_over(url)
    return None if place is None else in_store(place, is_kept=is_kept)


def in_scratch(scratch: Scratch) -> FrameFolder:
    """Returns a folder on this machine, where all workers are.

    Args:
        scratch: The folder.
    """
    path = str(scratch.path)
    return FrameFolder(path, scratch.close, partial(_reopen_scratch, path))


def _reopen_scratch(path: str, is_kept: bool) -> FrameFolder | None:
    del is_kept  # a cached frame that may use it is this process's
    found = _left(path)
    if found is not None:
        return found
    scratch = Scratch.take_over(Path(path))
    return None if scratch is None else in_scratch(scratch)


def of_driver(root: str, remove: Remove) -> FrameFolder:
    """Returns a folder of this process, which serves its files.

    Args:
        root: URL of its server.
        remove: Ends the server, and removes the files.
    """
    return FrameFolder(root, remove, partial(_reopen_driver, root))


def _reopen_driver(root: str, is_kept: bool) -> FrameFolder:
    del is_kept
    found = _left(root)
    if found is None:
        raise CheckpointError(
            "the rows of this run were on the disk of its driver (store='driver'), and "
            "went with that process. Expected a store that outlives it. Call fit "
            "again, with cluster=shoal.clusters.Spark(store='s3://bucket/prefix') for "
            "runs that can be resumed after that."
        )
    return found
