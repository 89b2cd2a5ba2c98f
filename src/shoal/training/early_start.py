"""Starts the processes of a run early: they import while the plan is made.

A wrong guess costs nothing: the plan decides, and
processes that do not fit it are ended before they are given anything.
"""

from __future__ import annotations

import math
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
from shoal.models.multiplications import multiplications_of
from shoal.plan.gpus import Place
from shoal.plan.pace import fastest
from shoal.plan.request import BATCH_SIZE, MOST_AUTO_WORKERS
from shoal.plan.variables import environment
from shoal.strategies.auto import Auto
from shoal.training.fit_call import FitCall


def preload_for(backend: str, module: str) -> Preload:
    """Returns the imports of processes that will run a module with a backend."""
    entry = BACKENDS.get(backend)
    if entry is None:
        return Preload(modules=(module, "keras"))
    compute = entry.target.partition(":")[0]
    return Preload(modules=(module, compute), without=entry.unused, later=entry.later)


def worker_environment_of(
    backend: str, workers: int, threads: int, places: Sequence[Place] = ()
) -> WorkerEnvironment:
    """Returns what workers of a backend need before they know their role.

    Args:
        backend: Name of the Keras backend.
        workers: Processes.
        threads: Compute threads of each.
        places: Their GPUs; empty if they compute on the CPU.
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
    """Returns a backend's default variables that the user has not set."""
    entry = BACKENDS.get(backend)
    return {} if entry is None else _unsaid(entry.environment)


def place_variables(backend: str, place: Place) -> dict[str, str]:
    """Returns the variables of a process on a GPU: it sees no other one.

    On a cluster, the cluster itself sets the GPU.

    Args:
        backend: Name of the Keras backend.
        place: Its GPU, and its share of the memory.
    """
    wanted = BACKENDS[backend].gpu_environment
    filled = {n: text.format(share=place.share) for n, text in wanted.items()}
    seen = {"CUDA_VISIBLE_DEVICES": place.name} if place.name else {}
    return {**seen, **_unsaid(filled)}


def _unsaid(wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name not in os.environ}


@contextmanager
def early_pool(call: FitCall) -> Generator[ProcessPool | None]:
    """Starts processes for a call of `fit`, whose arguments are unchecked.

    Yields:
        A process pool that ends with this context; None if one would be useless.
    """
    worker_environment = guess(call)
    pool = None if worker_environment is None else ProcessPool(worker_environment)
    try:
        yield pool
    finally:
        if pool is not None:
            with undisturbed():
                pool.close()


def guess(call: FitCall) -> WorkerEnvironment | None:
    """Returns what workers of a call will probably need; None for no workers."""
    strategy, threads = call.request.strategy, call.request.threads
    workers: Any = call.workers
    keras: Any = sys.modules.get("keras")
    if call.cluster != "local" or strategy.is_independent or keras is None:
        return None
    backend = keras.config.backend()
    machine = read_machine(backend)
    if machine.gpus:  # their free memory depends on the model of this process
        return None
    if workers == "auto":
        workers = environment().workers or "auto"
    if workers == "auto":
        most = min(machine.cores, MOST_AUTO_WORKERS)
        workers = min(most, strategy.max_workers or most)
        is_open = isinstance(strategy, Auto) and not strategy.same_curve
        if strategy.exchanges == "gradients" and not is_open:
            workers = _fastest(call, workers, machine.cores)
    if isinstance(workers, tuple) and workers:
        workers = workers[-1]
    if not isinstance(workers, int) or not 1 <= workers <= machine.cores:
        return None
    if not isinstance(threads, int) or threads < 1:
        threads = max(1, machine.cores // workers)
    return (
        worker_environment_of(backend, workers, threads)
        if backend in BACKENDS
        else None
    )


def _fastest(call: FitCall, most: int, cores: int) -> int:
    """Returns the number of workers that the plan will probably choose."""
    try:
        work = multiplications_of(call.model, None)
        parameters = sum(math.prod(v.shape) for v in call.model.trainable_variables)
        rows = int(call.request.batch_size or getattr(call.x, "batch_size", BATCH_SIZE))
    except Exception:  # a callable, a model that is not built, a data set
        return 1
    return fastest(work, parameters, rows, most=most, cores=cores)
