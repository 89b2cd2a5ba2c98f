"""Ray's object store, as what carries a run's data to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import ray
from ray.exceptions import RayError

from shoal.launchers.data_broadcast import Carrier
from shoal.launchers.ray_agents import WORK


@final
class Store(Carrier):
    """Ray's object store: a piece is put once, and each node fetches it once."""

    def put(self, piece: Any) -> Any:
        """Puts a piece."""
        return ray.put(piece)

    def write(self, agent: Any, offset: int, piece: Any) -> Any:
        """Has an agent write it."""
        bound = agent.write.options(concurrency_group=WORK)
        return bound.remote(offset, piece)

    def wait(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, bool]:
        """Looks which calls are over."""
        given = list(calls)
        ready, _ = ray.wait(given, num_returns=len(given), timeout=timeout_s)
        return {call: _went_well(call) for call in ready}


def _went_well(call: Any) -> bool:
    try:
        ray.get(call)
    except RayError:
        return False
    return True
