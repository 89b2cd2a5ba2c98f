"""Starts the processes of a run early: while the plan is made, they import.

What is guessed here costs nothing when it was wrong: the plan decides, and
processes that do not suit it are ended before they were given anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from shoal.backends import BACKENDS
from shoal.backends.compile_cache import cache_variables
from shoal.clusters.local import read_machine
from shoal.engine.controller.process_pool import ProcessPool, WorkerEnvironment
from shoal.interruption import undisturbed
from shoal.launchers.base import Preload
from shoal.plan.gpus import Place
from shoal.plan.request import MOST_AUTO_WORKERS
from shoal.plan.variables import environment
from shoal.strategies.base import Strategy


def preload_for(backend: str, module: str) -> Preload:
    """What processes import that will run a module with a backend of Keras."""
    entry = BACKENDS.get(backend)
    if entry is None:
        return Preload(modules=(module, "keras"))
    compute = entry.target.partition(":")[0]
    return Preload(modules=(module, compute), without=entry.unused, later=entry.later)


def cast_of(
    backend: str, workers: int, threads: int, places: Sequence[Place] = ()
) -> WorkerEnvironment:
    """What workers of a backend need before they know their part.

    Args:
        backend: Of Keras.
        workers: Processes.
        threads: Compute threads of each.
        places: Their GPUs; none where they compute on the CPU.
    """
    return WorkerEnvironment(
        workers=workers,
        threads=threads,
        preload=preload_for(backend, "shoal.engine.worker.factories"),
        environment={
            **cache_variables(backend, environment().cache),
            **_variables(backend),
        },
        places=tuple(place_variables(backend, place) for place in places),
    )


def _variables(backend: str) -> dict[str, str]:
    """What a backend wishes for, where the user has not said otherwise."""
    entry = BACKENDS.get(backend)
    return {} if entry is None else _unsaid(entry.environment)


def place_variables(backend: str, place: Place) -> dict[str, str]:
    """What a process on a GPU is told by its environment: it sees no other one.

    Which one that is a cluster says itself.

    Args:
        backend: Of Keras.
        place: Its GPU, and its share of that.
    """
    wanted = BACKENDS[backend].gpu_environment
    filled = {n: text.format(share=place.share) for n, text in wanted.items()}
    seen = {"CUDA_VISIBLE_DEVICES": place.name} if place.name else {}
    return {**seen, **_unsaid(filled)}


def _unsaid(wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name not in os.environ}


@contextmanager
def early_stage(
    strategy: Strategy, cluster: Any, workers: Any, threads: Any
) -> Generator[ProcessPool | None]:
    """Processes for a run of `fit` with these arguments, good or bad ones.

    Args:
        strategy: Of the run.
        cluster: As given to `fit`, not checked yet; so are the others.
        workers: Processes.
        threads: Compute threads of each.

    Yields:
        A stage that ends with this context; None where one would be of no use.
    """
    cast = guess(strategy, cluster, workers, threads)
    pool = None if cast is None else ProcessPool(cast)
    try:
        yield pool
    finally:
        if pool is not None:
            with undisturbed():
                pool.close()


def guess(
    strategy: Strategy, cluster: Any, workers: Any, threads: Any
) -> WorkerEnvironment | None:
    """What workers of such a run will probably need; None where there are none."""
    keras: Any = sys.modules.get("keras")
    if cluster != "local" or strategy.is_independent or keras is None:
        return None
    backend = keras.config.backend()
    machine = read_machine(backend)
    if (
        machine.gpus
    ):  # what is free of their memory depends on the model of this process
        return None
    if workers == "auto":
        workers = environment().workers or "auto"
    if workers == "auto":
        most = min(machine.cores, MOST_AUTO_WORKERS)
        workers = min(most, strategy.max_workers or most)
    if isinstance(workers, tuple) and workers:
        workers = workers[-1]
    if not isinstance(workers, int) or not 1 <= workers <= machine.cores:
        return None
    if not isinstance(threads, int) or threads < 1:
        threads = max(1, machine.cores // workers)
    return cast_of(backend, workers, threads) if backend in BACKENDS else None
