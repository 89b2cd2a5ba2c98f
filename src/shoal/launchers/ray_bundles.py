"""What each worker is to have of a Ray cluster, and room for all of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, final

from ray._private.state import available_resources_per_node
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group


@final
@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What each worker is to have.

    Args:
        cpus: As Ray counts.
        gpus: The same.
        placement: "SPREAD" over nodes or "PACK" on few, as far as can be.
        wait_s: Seconds that a worker may wait for room.
        start_s: The same for an agent to start where there is room, with what Ray has
            to install before.
        backend: Of Keras; its version counts.
        variables: Name -> value, of its environment.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    placement: str = "SPREAD"
    wait_s: float = 60.0
    start_s: float = 30.0
    backend: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of one worker, by Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        return {name: amount for name, amount in wanted.items() if amount}


@final
class Group:
    """A placement group: room for workers, in one piece.

    Args:
        room: Of each.
        workers: How many.
    """

    def __init__(self, room: Bundle, workers: int) -> None:
        self.workers = workers
        self.bundles: Any = placement_group(
            [room.bundle] * workers, strategy=room.placement
        )

    def wait(self, timeout_s: float) -> bool:
        """Waits until Ray has found all of it."""
        return bool(self.bundles.wait(timeout_s))

    def close(self) -> None:
        """Gives it back; safe to repeat."""
        bundles, self.bundles = self.bundles, None
        if bundles is not None:
            with suppress(RayError):
                remove_placement_group(bundles)


@contextmanager
def asking(room: Bundle, workers: int) -> Generator[None]:
    """Asks an autoscaler, where there is one, for nodes with so much room."""
    request_resources(bundles=[room.bundle] * workers)
    try:
        yield
    finally:
        request_resources(bundles=[])


def room_now(room: Bundle) -> int:
    """Workers that have room now, as Ray counts."""
    rooms = [
        min(int(node.get(name, 0.0) // amount) for name, amount in room.bundle.items())
        for node in available_resources_per_node().values()
    ]
    return sum(rooms)
