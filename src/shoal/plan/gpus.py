"""Decides the GPU of each worker, and its share of the GPU's memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from shoal.errors import PlanError
from shoal.facts import Gpu

MOST = 0.9
"""Share of a GPU's memory for all its workers; the rest is left to this process."""
CONTEXT_MIB = 512  # memory of CUDA itself in each process
LEAST_MIB = 512  # with less a worker cannot do anything useful
FULL = 0.75  # share of a GPU that JAX takes when it first computes there


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """The device of a worker.

    Args:
        number: Number of the GPU in nvidia-smi.
        name: Its name in CUDA_VISIBLE_DEVICES; empty if a cluster sets that.
        share: Share of its memory that this worker may take.
        workers: Number of workers on this GPU.
    """

    number: int
    name: str
    share: float
    workers: int = 1


def places(gpus: Sequence[Gpu], workers: int) -> tuple[Place, ...]:
    """Assigns a GPU to each worker, in turn, with an even share of the memory.

    Args:
        gpus: Usable GPUs; none means that workers compute on the CPU.
        workers: Number of workers; if there are fewer GPUs, they are shared.

    Raises:
        PlanError: A GPU has too little memory left for its workers.

    Example:
        >>> gpus = [Gpu(number=0, name="0", total_mib=80000, free_mib=80000)]
        >>> [place.share for place in places(gpus, 2)]
        [0.45, 0.45]
    """
    found: list[Place] = []
    for worker in range(workers if gpus else 0):
        at = worker % len(gpus)
        sharers = len(range(at, workers, len(gpus)))
        share = _share(gpus[at], sharers)
        gpu = gpus[at]
        place = Place(number=gpu.number, name=gpu.name, share=share, workers=sharers)
        found.append(place)
    return tuple(found)


def places_of_cluster(gpus_each: float, workers: int) -> tuple[Place, ...]:
    """Returns places for a cluster, which itself assigns a GPU to each worker.

    Args:
        gpus_each: GPUs of a worker, or a fraction of one; 0 for the CPU.
        workers: Number of workers.

    Example:
        >>> places_of_cluster(0.5, 1)
        (Place(number=0, name='', share=0.45, workers=1),)
    """
    if not gpus_each:
        return ()
    share = math.floor(1000 * MOST * min(1.0, gpus_each)) / 1000
    return tuple(Place(number=n, name="", share=share) for n in range(workers))


def _share(gpu: Gpu, workers: int) -> float:
    """Returns the share of one of a GPU's workers, rounded down to a thousandth."""
    if not gpu.total_mib:  # unknown: treated as empty
        return math.floor(1000 * MOST / workers) / 1000
    free_mib = gpu.free_mib / workers - CONTEXT_MIB
    if free_mib < LEAST_MIB:
        least = workers * (LEAST_MIB + CONTEXT_MIB)
        raise PlanError(
            f"GPU {gpu.number} has {gpu.free_mib:,} of {gpu.total_mib:,} MiB of memory "
            f"free, for workers={workers} on it. Expected at least {least:,}. "
            f"{_who(gpu)}; or pass fewer workers, or hide this GPU with "
            "CUDA_VISIBLE_DEVICES."
        )
    return math.floor(1000 * min(MOST / workers, free_mib / gpu.total_mib)) / 1000


def _who(gpu: Gpu) -> str:
    """Returns the remedy when other programs hold the memory of a GPU."""
    return (
        f"End what else computes there. If it is this process itself (JAX takes "
        f"{FULL:.0%} of a GPU when it first computes), set "
        "XLA_PYTHON_CLIENT_PREALLOCATE=false before Keras is imported"
    )


def gpu_warnings(gpus: Sequence[Gpu], found: Sequence[Place]) -> list[str]:
    """Returns warnings about GPUs whose memory other programs mostly use.

    Example:
        >>> gpus = [Gpu(number=0, name="0", total_mib=80000, free_mib=19000)]
        >>> gpu_warnings(gpus, places(gpus, 1))[0].partition(":")[0]
        'GPU 0 has 19,000 of 80,000 MiB of memory free'
    """
    shares = {place.number: place for place in found}
    told: list[str] = []
    for gpu in gpus:
        place = shares.get(gpu.number)
        if place is not None and place.share * place.workers < MOST / 2:
            told.append(
                f"GPU {gpu.number} has {gpu.free_mib:,} of {gpu.total_mib:,} MiB of "
                f"memory free: each of its workers takes at most {place.share:.1%} of "
                f"it. {_who(gpu)}."
            )
    return told
