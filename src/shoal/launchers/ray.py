"""Agents on the nodes of a Ray cluster, one in each bundle of a placement group.

Workers for which there was no room are requested outside of the group, where an
autoscaler sees the demand.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, ClassVar, final

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shoal.launchers.carrier import CallResult, Carrier, RequestedAgent
from shoal.launchers.node_agent import Arrival, NodeAgent
from shoal.launchers.ray_bundles import Bundle, PlacementGroup
from shoal.launchers.versions import versions

ALONE_S = 60.0  # after this time without the cluster an agent and its process end
ALONE_LOOK_S = 5.0
ALONE = 67  # its exit status then
REPORTS, WORK = (
    "reports",
    "work",
)  # concurrency groups of an agent's methods: each has a thread


class RayNodeAgent(NodeAgent):
    """An agent as an actor of Ray."""

    def arrive(self, backend: str) -> Arrival:
        """Returns its node, and the versions installed there."""
        threading.Thread(target=_stay, daemon=True).start()
        return Arrival(
            node=ray.util.get_node_ip_address(),
            node_id=ray.get_runtime_context().get_node_id(),
            versions=versions(backend, RayCarrier.engine),
            memory=self.memory,
        )


def _stay() -> None:
    """Ends an agent and its process when the cluster is out of reach.

    Ray would leave them on a node whose network link is broken.
    """
    seen = [time.monotonic()]

    def look() -> None:
        while True:
            with suppress(Exception):  # after any error the cluster counts as not seen
                ray.util.list_named_actors()
                seen[0] = time.monotonic()
            time.sleep(ALONE_LOOK_S)

    threading.Thread(target=look, daemon=True).start()
    while time.monotonic() - seen[0] < ALONE_S:
        time.sleep(ALONE_LOOK_S)
    os._exit(ALONE)


@final
class RayCarrier(Carrier):
    """Carries calls to actors of the cluster that this process has joined.

    Args:
        number: Number of the data's descriptor in processes.
        bundle: Resources of each worker.
        group: Reserved room; its maker closes it.
    """

    engine: ClassVar[str] = "ray"
    advice: ClassVar[str] = (
        "Install them there, or name them in pip=... of shoal.clusters.Ray."
    )
    advice_for_start: ClassVar[str] = (
        "look at the load of its nodes, where Ray's processes have the niceness 15 "
        "unless RAY_worker_niceness=0 is set before ray start"
    )
    advice_for_data: ClassVar[str] = (
        "Give the nodes of the cluster more memory for objects (ray start "
        "--object-store-memory), or pass files."
    )

    def __init__(self, number: int, bundle: Bundle, group: PlacementGroup) -> None:
        self._number, self._bundle, self._group = number, bundle, group
        as_actor: Any = ray.remote  # Ray's types lack these options
        groups = {REPORTS: 1, WORK: 1}
        self._kind: Any = as_actor(concurrency_groups=groups)(RayNodeAgent)
        self._bundle_of: dict[Any, int | None] = {}

    @property
    def node_id(self) -> str:
        """Returns Ray's id of this machine."""
        return ray.get_runtime_context().get_node_id()

    @property
    def room(self) -> str:
        """Returns the resources of a worker, by Ray's names."""
        return str(self._bundle.bundle)

    def request_agents(
        self, avoided: Collection[str], *, is_patient: bool
    ) -> Sequence[RequestedAgent]:
        """Requests an agent in a free bundle, and elsewhere too if a node is lost.

        Until Ray knows of the loss, the bundle is still on the lost node.
        """
        if is_patient:
            return [self._ask_anywhere(avoided)]
        taken = set(self._bundle_of.values())
        free = [n for n in range(self._group.workers) if n not in taken]
        found: list[RequestedAgent] = []
        if free:
            place: Any = PlacementGroupSchedulingStrategy(
                self._group.bundles, placement_group_bundle_index=free[0]
            )
            found.append(
                self._open(free[0], has_room=not avoided, scheduling_strategy=place)
            )
        if not free or avoided:
            found.append(self._ask_anywhere(avoided))
        return found

    def _ask_anywhere(self, avoided: Collection[str]) -> RequestedAgent:
        """Requests an agent outside of the reserved room; an autoscaler sees it."""
        where: dict[str, Any] = {}
        if avoided:
            words = ",".join(sorted(avoided))
            where["label_selector"] = {"ray.io/node-id": f"!in({words})"}
        if self._bundle.placement == "SPREAD":
            where["scheduling_strategy"] = "SPREAD"
        return self._open(None, **where)

    def _open(
        self, place: int | None, *, has_room: bool = False, **options: Any
    ) -> RequestedAgent:
        """Requests an agent from Ray; within reserved room it needs no resources."""
        bundle = self._bundle
        kind = self._kind.options(num_cpus=bundle.cpus, num_gpus=bundle.gpus, **options)
        agent = kind.remote(self._number)
        self._bundle_of[agent] = place
        first = agent.arrive.options(concurrency_group=WORK).remote(bundle.backend)
        limit_s = max(bundle.start_s, bundle.wait_s if place is None else 0.0)
        return RequestedAgent(
            agent=agent, arrival=first, limit_s=limit_s, has_room=has_room
        )

    def call(self, agent: Any, method: str, *arguments: Any) -> Any:
        """Calls the actor; its reports have a thread of their own."""
        group = REPORTS if method == "report" else WORK
        return (
            getattr(agent, method).options(concurrency_group=group).remote(*arguments)
        )

    def ready(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, CallResult]:
        """Returns the calls that are done; none if Ray itself cannot be asked."""
        found: Sequence[Any] = ()
        with suppress(RayError):
            found, _ = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
        return {call: _result_of(call) for call in found}

    def put(self, piece: Any) -> Any:
        """Puts a piece into the object store, from which each node fetches it once."""
        return ray.put(piece)

    def release(self, agent: Any) -> None:
        """Has Ray kill the actor."""
        self._bundle_of.pop(agent, None)
        with suppress(RayError):
            ray.kill(agent)


def _result_of(call: Any) -> CallResult:
    """Returns the result of a call that is done."""
    try:
        return CallResult(value=ray.get(call))
    except RayTaskError as error:
        return CallResult(error=str(getattr(error, "cause", None) or error))
    except (RayError, RuntimeError) as error:
        why, is_node = why_gone(error)
        return CallResult(lost=why, is_node=is_node)


def why_gone(error: Exception) -> tuple[str, bool]:
    """Returns Ray's reason of a loss, in a line, and whether the whole node is lost."""
    text = str(error)
    if "its node has died" in text:
        return "died, as Ray says", True
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[-1].partition(". ")[0] if lines else type(error).__name__
    return f"lost its agent: {said}", False
