"""Agents on the nodes of a Ray cluster, one in each bundle of a placement group.

Workers for which there was no room are asked for outside of the group, where an
autoscaler hears of them.
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
from shoal.launchers.ray_bundles import Bundle, Group
from shoal.launchers.versions import versions

ALONE_S = 60.0  # without the cluster an agent and its process end
ALONE_LOOK_S = 5.0
ALONE = 67  # its exit status then
REPORTS, WORK = "reports", "work"  # of an agent's methods: each has a thread


class RayNodeAgent(NodeAgent):
    """An agent that Ray has placed."""

    def arrive(self, backend: str) -> Arrival:
        """Says where it is, and what is installed there."""
        threading.Thread(target=_stay, daemon=True).start()
        return Arrival(
            node=ray.util.get_node_ip_address(),
            node_id=ray.get_runtime_context().get_node_id(),
            versions=versions(backend, RayCarrier.engine),
            memory=self.memory,
        )


def _stay() -> None:
    """Ends an agent, and its process with it, whose cluster is out of its reach.

    Ray would leave them on a node whose cable is out for as long as that lasts.
    """
    seen = [time.monotonic()]

    def look() -> None:
        while True:
            with suppress(Exception):  # whatever Ray raises: it is not seen
                ray.util.list_named_actors()
                seen[0] = time.monotonic()
            time.sleep(ALONE_LOOK_S)

    threading.Thread(target=look, daemon=True).start()
    while time.monotonic() - seen[0] < ALONE_S:
        time.sleep(ALONE_LOOK_S)
    os._exit(ALONE)


@final
class RayCarrier(Carrier):
    """Carries calls to actors of the cluster that this process is connected to.

    Args:
        number: The descriptor that processes know the data by.
        bundle: What each worker is to have.
        group: Room that is set aside; whoever made it closes it.
    """

    engine: ClassVar[str] = "ray"
    advice: ClassVar[str] = (
        "Install them there, or name them in pip=... of shoal.clusters.Ray."
    )
    advice_for_data: ClassVar[str] = (
        "Give the nodes of the cluster more memory for objects (ray start "
        "--object-store-memory), or pass files."
    )

    def __init__(self, number: int, bundle: Bundle, group: Group) -> None:
        self._number, self._bundle, self._group = number, bundle, group
        as_actor: Any = ray.remote  # whose types leave these options out
        groups = {REPORTS: 1, WORK: 1}
        self._kind: Any = as_actor(concurrency_groups=groups)(RayNodeAgent)
        self._bundle_of: dict[Any, int | None] = {}

    @property
    def node_id(self) -> str:
        """This machine, by Ray's name of it."""
        return ray.get_runtime_context().get_node_id()

    @property
    def room(self) -> str:
        """What a worker takes, by Ray's names."""
        return str(self._bundle.bundle)

    def request_agents(
        self, avoided: Collection[str], *, is_patient: bool
    ) -> Sequence[RequestedAgent]:
        """Asks in a bundle that nobody is in, and where a node is gone also elsewhere.

        Until Ray knows of that, the bundle is still on the node.
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
            found.append(self._open(free[0], scheduling_strategy=place))
        if not free or avoided:
            found.append(self._ask_anywhere(avoided))
        return found

    def _ask_anywhere(self, avoided: Collection[str]) -> RequestedAgent:
        """Asks outside of what is set aside; an autoscaler hears of it."""
        where: dict[str, Any] = {}
        if avoided:
            words = ",".join(sorted(avoided))
            where["label_selector"] = {"ray.io/node-id": f"!in({words})"}
        if self._bundle.placement == "SPREAD":
            where["scheduling_strategy"] = "SPREAD"
        return self._open(None, **where)

    def _open(self, place: int | None, **options: Any) -> RequestedAgent:
        """Asks Ray for an agent; what is set aside needs no room, but Ray."""
        bundle = self._bundle
        kind = self._kind.options(num_cpus=bundle.cpus, num_gpus=bundle.gpus, **options)
        agent = kind.remote(self._number)
        self._bundle_of[agent] = place
        first = agent.arrive.options(concurrency_group=WORK).remote(bundle.backend)
        limit_s = max(bundle.start_s, bundle.wait_s if place is None else 0.0)
        return RequestedAgent(agent=agent, arrival=first, limit_s=limit_s)

    def call(self, agent: Any, method: str, *arguments: Any) -> Any:
        """Calls the actor; its reports have a thread of their own."""
        group = REPORTS if method == "report" else WORK
        return (
            getattr(agent, method).options(concurrency_group=group).remote(*arguments)
        )

    def ready(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, CallResult]:
        """Looks which calls are over; none where Ray itself cannot be asked."""
        found: Sequence[Any] = ()
        with suppress(RayError):
            found, _ = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
        return {call: _result_of(call) for call in found}

    def put(self, piece: Any) -> Any:
        """Puts a piece into the object store, which each node fetches once."""
        return ray.put(piece)

    def release(self, agent: Any) -> None:
        """Has Ray kill the actor."""
        self._bundle_of.pop(agent, None)
        with suppress(RayError):
            ray.kill(agent)


def _result_of(call: Any) -> CallResult:
    """What came of a call that is over."""
    try:
        return CallResult(value=ray.get(call))
    except RayTaskError as error:
        return CallResult(error=str(getattr(error, "cause", None) or error))
    except (RayError, RuntimeError) as error:
        why, is_node = why_gone(error)
        return CallResult(lost=why, is_node=is_node)


def why_gone(error: Exception) -> tuple[str, bool]:
    """What Ray says of a loss, in a line, and whether all of the node is lost."""
    text = str(error)
    if "its node has died" in text:
        return "died, as Ray says", True
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[-1].partition(". ")[0] if lines else type(error).__name__
    return f"lost its agent: {said}", False
