"""The mean of a step from the workers' own group, instead of the server's.

This file decides when a group is formed and left. If the group fails, the server makes
the mean, so nothing in here is an error of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from shoal.backends.group import LIMIT_S, GroupBroken, NativeGroup
from shoal.engine.coordination.instructions import Group
from shoal.engine.worker.client import ServerClient
from shoal.engine.worker.collective import (
    Collective,
    CollectiveSpec,
    StepPart,
    through_server,
)
from shoal.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class NativeAllReduceSpec(CollectiveSpec):
    """The choice of a worker to form groups.

    Args:
        open_group: Forms a group from a path, a place in it, its size and a library.
        folder: Folder through which members find each other.
        library: Library that adds, for example "gloo".
    """

    open_group: Callable[[Path, int, int, str], NativeGroup]
    folder: Path
    library: str

    group_s = 2 * LIMIT_S  # for forming a group, and for adding in it

    def open(self, client: ServerClient) -> Collective:
        """See `CollectiveSpec`."""
        return NativeAllReduce(self, client.local.size)


@final
class NativeAllReduce(Collective):
    """Averages gradients in groups, one group after the other.

    Args:
        spec: Spec of the groups.
        size: Floats of the vectors.
    """

    def __init__(self, spec: NativeAllReduceSpec, size: int) -> None:
        self._spec = spec
        self._sum = np.empty(size, np.float32)
        self._group: NativeGroup | None = None
        self._name = ""

    def mean(self, client: ServerClient, part: StepPart) -> Vector | None:
        """See `Collective`. The group comes first: the push tells its result."""
        progress, began = client.progress, client.environment.clock()
        mean = None
        if progress.group is not None:
            who = progress.group, progress.lineage, client.rank
            mean = self.add(*who, part.gradient, part.weight.mass)
            client.times.exchange_s += client.environment.clock() - began
        return through_server(client, part, mean)

    def add(
        self, group: Group, lineage: int, rank: int, gradient: Vector, mass: float
    ) -> Vector | None:
        """Returns the mean of a step of all members, None if it failed.

        Args:
            group: The group that averages the step.
            lineage: Lineage of the run; a new server counts groups from the start.
            rank: Rank of this worker.
            gradient: Sum over its samples; it is not changed.
            mass: Weight of the gradient.
        """
        name = f"{lineage}-{group.generation}"
        try:
            if name != self._name:
                self.close()
                self._name, place = name, group.ranks.index(rank)
                spec, size = self._spec, len(group.ranks)
                path = spec.folder / name
                self._group = spec.open_group(path, place, size, spec.library)
                self._note(f"formed by {size} workers, with {spec.library}")
            if self._group is None:  # it broke
                return None
            self._sum[:] = gradient
            total = self._group.add(self._sum, mass)
        except GroupBroken as error:
            self.close()
            self._note(f"broke: {error}")
            return None
        # If all weights are zero, so are the gradients; the mean must not be NaN.
        np.divide(self._sum, total if total > 0 else 1.0, out=self._sum)
        return self._sum

    def _note(self, text: str) -> None:
        """Writes to the worker's log."""
        print(f"group {self._name} {text}", flush=True)  # noqa: T201

    def close(self) -> None:
        """Leaves the group, if there is one."""
        group, self._group = self._group, None
        if group is not None:
            group.close()
