"""The resources of each worker on a Ray cluster, and room for all of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, final

from ray._private.state import available_resources_per_node
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group


@final
@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The resources and settings of each worker.

    Args:
        cpus: CPUs by Ray's count.
        gpus: GPUs by Ray's count.
        placement: "SPREAD" over nodes or "PACK" on few, as far as possible.
        wait_s: Seconds that a worker may wait for room.
        start_s: Seconds that an agent may take to start where there is room, with the
            installation of requirements.
        backend: Keras backend; its version is checked.
        variables: Name -> value, for the worker's environment.
    """

    cpus: float
    gpus: float
    placement: str
    wait_s: float
    start_s: float
    backend: str
    variables: Mapping[str, str]

    @property
    def bundle(self) -> dict[str, float]:
        """Returns the resources of one worker, by Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        return {name: amount for name, amount in wanted.items() if amount}


@final
class PlacementGroup:
    """A placement group: room for workers, in one piece.

    Args:
        room: Resources of each worker.
        workers: Number of workers.
    """

    def __init__(self, room: Bundle, workers: int) -> None:
        self.workers = workers
        self.bundles: Any = placement_group(
            [room.bundle] * workers, strategy=room.placement
        )

    def wait(self, timeout_s: float) -> bool:
        """Waits until Ray has reserved all of it."""
        return bool(self.bundles.wait(timeout_s))

    def close(self) -> None:
        """Releases it; safe to repeat."""
        bundles, self.bundles = self.bundles, None
        if bundles is not None:
            with suppress(RayError):
                remove_placement_group(bundles)


@contextmanager
def asking(room: Bundle, workers: int) -> Generator[None]:
    """Asks an autoscaler, if there is one, for nodes with that much room."""
    request_resources(bundles=[room.bundle] * workers)
    try:
        yield
    finally:
        request_resources(bundles=[])


def room_now(room: Bundle) -> int:
    """Returns how many workers have room now, by Ray's count."""
    rooms = [
        min(int(node.get(name, 0.0) // amount) for name, amount in room.bundle.items())
        for node in available_resources_per_node().values()
    ]
    return sum(rooms)
