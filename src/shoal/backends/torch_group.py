"""Groups of torch.distributed: gloo where workers compute on the CPU, else NCCL.

They are made directly and not as torch's default group: that one belongs to the
process, and a `train_step` of the user's may need it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as distributed

from shoal.backends.group import LIMIT_S, GroupBroken, NativeGroup
from shoal.vectors import Vector

_LIMIT = timedelta(seconds=LIMIT_S)


def open_group(path: Path, place: int, size: int, library: str) -> NativeGroup:
    """Forms a group; returns when all members are there.

    Args:
        path: Path of a file by which members find each other; used by this group alone.
        place: Index of this member, from 0.
        size: Number of members.
        library: "gloo" or "nccl".

    Raises:
        GroupBroken: A member did not come in time.
    """
    with _told():
        store: Any = distributed.FileStore(str(path), size)  # pyright: ignore
        store.set_timeout(_LIMIT)
        group = _gloo if library == "gloo" else _nccl
        return TorchGroup(group(store, place, size), library)


def _gloo(store: Any, place: int, size: int) -> Any:
    kind: Any = distributed.ProcessGroupGloo
    options = kind._Options()
    options._timeout = _LIMIT
    # All workers are on this machine; the name of a host may resolve to another
    # address.
    options._devices = [kind.create_device(hostname="127.0.0.1")]
    return kind(store, place, size, options)


def _nccl(store: Any, place: int, size: int) -> Any:
    kind: Any = distributed.ProcessGroupNCCL  # pyright: ignore
    options = kind.Options()
    options._timeout = _LIMIT
    return kind(store, place, size, options)


@contextmanager
def _told() -> Generator[None]:
    """Turns torch's errors about a lost member into `GroupBroken`."""
    try:
        yield
    except RuntimeError as error:
        raise GroupBroken(str(error).partition("\n")[0]) from error


@final
class TorchGroup(NativeGroup):
    """See `NativeGroup`.

    Args:
        group: A group of torch that is formed.
        library: "gloo" or "nccl".
    """

    def __init__(self, group: Any, library: str) -> None:
        self._group: Any = group
        self._device = "cpu" if library == "gloo" else "cuda"

    def add(self, vector: Vector, mass: float) -> float:
        """Adds the vectors of all members; on a GPU through its memory."""
        with _told():
            mine = torch.from_numpy(vector).to(self._device)
            # A tensor of its own, as the mean is divided by it: float32 counts to 16
            # million.
            masses = torch.tensor([mass], dtype=torch.float64, device=self._device)
            works = [self._group.allreduce([part]) for part in (mine, masses)]
            for work in works:
                work.wait(_LIMIT)
            if self._device != "cpu":
                vector[:] = mine.cpu().numpy()
            return float(masses)

    def close(self) -> None:
        """Releases the group: its connections are closed with the object."""
        group: Any = self._group
        self._group = None
        if hasattr(group, "abort"):  # NCCL would wait for lost members
            with suppress(RuntimeError):
                group.abort()
