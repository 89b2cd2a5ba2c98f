"""A run's machines on a cluster: reserved once its plan is made."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shoal.clusters.base import Allocation, Cluster, ResourceRequest
from shoal.clusters.finding import find_cluster
from shoal.clusters.local import read_machine
from shoal.engine.controller.process_pool import ProcessPool, WorkerEnvironment
from shoal.facts import MachineFacts
from shoal.interruption import undisturbed
from shoal.launchers.shared import SharedBlob
from shoal.plan import Plan, resolve
from shoal.plan.machine_cautions import room_warnings
from shoal.training.early_start import worker_environment_of


def look(given: Any, backend: str) -> MachineFacts:
    """Returns the facts about a run's machines that `plan` needs.

    Args:
        given: The `cluster` argument of `fit`.
        backend: Name of the Keras backend.
    """
    cluster = find_cluster(given)
    if isinstance(cluster, Cluster):
        return cluster.look(backend)
    return read_machine(backend)


@contextmanager
def opened(given: Any, plan: Plan) -> Generator[tuple[Plan, Allocation | None]]:
    """Reserves machines, and fits the plan to the workers for which there is room.

    Others join when there is room for them, up to the original plan.

    Yields:
        The plan, and None if workers are processes of this machine.
    """
    cluster = find_cluster(given)
    if not isinstance(cluster, Cluster):
        yield plan, None
        return
    asked = ResourceRequest(
        least=plan.min_workers,
        most=plan.workers,
        threads=plan.threads,
        backend=plan.backend,
    )
    with cluster.open(asked) as allocation:
        if allocation.workers < plan.workers:
            plan = grown(_for(allocation.workers, plan), plan, allocation.growth)
        yield plan, allocation


def _for(workers: int, asked: Plan) -> Plan:
    """A plan for fewer workers; its request stays the one that was made."""
    limits = (asked.min_workers, workers)
    some = replace(asked.request, workers=limits, threads=asked.threads)
    plan = resolve(some, asked.model, asked.data, asked.machine)
    return replace(plan, request=asked.request)


def grown(plan: Plan, asked: Plan, growth: int) -> Plan:
    """Returns a plan for few workers, which more may join.

    Args:
        plan: Plan for the workers that have room.
        asked: Plan for all of them; a round that continues without late ones counts
            all.
        growth: Missing workers, which may come.
    """
    if not growth:
        return plan
    text = (
        f"the cluster has room for {plan.workers} of {asked.workers} workers; others "
        "join as soon as there is room for them."
    )
    old = room_warnings(plan.workers, plan.threads, plan.machine)
    kept = (line for line in plan.warnings if line not in old)
    return replace(plan, growth=growth, quorum=asked.quorum, warnings=(*kept, text))


@contextmanager
def staged(
    plan: Plan, allocation: Allocation | None, blob: SharedBlob | None = None
) -> Generator[ProcessPool | None]:
    """Starts the processes of a run on other machines, which end with this context.

    Yields:
        A process pool; None without other machines.
    """
    if allocation is None:
        yield None
        return
    pool = ProcessPool(
        worker_environment_for(plan),
        blob,
        address=(allocation.host, allocation.port),
        open_launcher=allocation.open_launcher,
    )
    try:
        yield pool
    finally:
        with undisturbed():
            pool.close()


def worker_environment_for(plan: Plan) -> WorkerEnvironment:
    """Returns what workers of a plan need before they know their role."""
    worker_environment = worker_environment_of(
        plan.backend, plan.workers, plan.threads, plan.places
    )
    if not plan.machine.nodes:
        return worker_environment
    # Programs compiled here are for this processor, in a local folder.
    return replace(
        worker_environment,
        environment=_elsewhere(plan.backend, worker_environment.environment),
    )


def _elsewhere(backend: str, here: Mapping[str, str]) -> dict[str, str]:
    """Returns those variables of this machine that are valid anywhere."""
    kept = {n: v for n, v in here.items() if "COMPILATION_CACHE" not in n}
    return {**kept, "KERAS_BACKEND": backend}
