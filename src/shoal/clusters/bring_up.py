"""Brings up a cluster on hosts, or its missing parts: steps, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, final

from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.host_setup import SPARE_S, HostReport, HostSetup, Tell
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.remote_call import ask
from shoal.errors import ClusterError, PlanError

START_LIMIT_S = 90.0  # `ray start` would wait forever for a hung head
LOOK_LIMIT_S = 45.0
STOP_LIMIT_S = 60.0
MOST_AT_ONCE = 64

Key = TypeVar("Key")
Value = TypeVar("Value")


def on_all(
    keys: Iterable[Key], do: Callable[[Key], Value]
) -> tuple[dict[Key, Value], dict[Key, str]]:
    """Runs an action for all at once; returns the results, and errors of the failed."""
    done: dict[Key, Value] = {}
    failed: dict[Key, str] = {}
    listed = list(keys)
    with ThreadPoolExecutor(min(MOST_AT_ONCE, max(1, len(listed)))) as pool:
        futures = {key: pool.submit(do, key) for key in listed}
        for key, future in futures.items():
            try:
                done[key] = future.result()
            except ClusterError as error:
                failed[key] = str(error)
    return done, failed


def look(state: ClusterState, node: NodeState, *, asks_ray: bool) -> dict[str, Any]:
    """Returns which processes of a node run.

    Args:
        state: State of its cluster.
        node: Node to check.
        asks_ray: Whether it also asks Ray's head about all nodes.

    Raises:
        ClusterError: The node cannot be asked.
    """
    request = {
        "mark": state.mark_of(node),
        "ask": state.address if asks_ray else None,
        "is_head": node == state.head,
    }
    return ask(state.way_to(node), [node.python], "look", request, limit_s=LOOK_LIMIT_S)


def end(
    state: ClusterState, node: NodeState, *, removes_environment: bool = False
) -> int:
    """Ends a node; returns how many processes it had.

    Raises:
        ClusterError: The node cannot be reached, or its processes do not end.
    """
    request = {
        "name": state.name,
        "marks": [state.mark_of(node)],
        "environment": state.environment if removes_environment else None,
    }
    pythons = [node.python, "python3"]
    found = ask(state.way_to(node), pythons, "stop", request, limit_s=STOP_LIMIT_S)
    return found["ended"]


@final
class BringUp:
    """One run of `up`.

    Args:
        state: Known state; for a new cluster, only its name.
        hosts: Wanted hosts.
        preparer: Prepares hosts.
        store: Stores the state.
        tell: Called with the progress of hosts.

    Attributes:
        state: State known now.
        failed: Address of a host -> why it is not a node.
    """

    def __init__(
        self,
        state: ClusterState,
        hosts: HostsFile,
        preparer: HostSetup,
        store: ClusterStore,
        tell: Tell,
    ) -> None:
        self.state, self.failed = state, dict[str, str]()
        self._hosts, self._preparer, self._store = hosts, preparer, store
        self._tell = tell
        self._is_new = not state.nodes

    def run(self) -> list[NodeState]:
        """Returns the nodes that run, the head first.

        Raises:
            ClusterError: There are fewer nodes than are needed.
        """
        self._refuse_other_environment()
        self._end_dropped()
        ready = self._prepare()
        self._require(len(ready), "no node of Ray was started")
        alive = self._alive(ready)
        if alive is None:
            alive = self._start_head(ready)
        followers = [node for node in ready if node.address != self.state.head.address]
        started, failed = on_all(
            followers, lambda node: self._start(node, again=node.private not in alive)
        )
        self._note_failures({node.address: why for node, why in failed.items()})
        running = [self.state.head, *started]
        then = "those are ended again" if self._is_new else "those that run still do"
        self._require(len(running), then)
        return running

    def examine(self) -> list[HostReport]:
        """Returns the hosts that `run` would make nodes of; changes nothing.

        Raises:
            PlanError: Running nodes have another environment.
        """
        self._refuse_other_environment()
        found, failed = on_all(self._hosts.hosts, self._preparer.examine)
        self._note_failures({host.address: why for host, why in failed.items()})
        return list(found.values())

    def _refuse_other_environment(self) -> None:
        """Refuses other versions for running nodes: Ray needs the same everywhere."""
        own = self.state.hosts and self.state.hosts.environment.python
        before = (self.state.environment, own)
        now = (self._preparer.environment, self._hosts.environment.python)
        if not self._is_new and before != now:
            raise PlanError(
                f"the hosts of cluster {self.state.name} use the Python environment "
                f"{before[0] or before[1]}, and this machine and the file now ask for "
                f"{now[0] or now[1]}. Expected one environment while the cluster is "
                f"up. Run `shoal cluster down {self.state.name}`, then `up`."
            )

    def _require(self, count: int, then: str) -> None:
        if count >= self._hosts.min_workers:
            return
        why = "\n".join(f"  {address}: {said}" for address, said in self.failed.items())
        raise ClusterError(
            f"{count} of {len(self._hosts.hosts)} hosts of the cluster "
            f"{self.state.name} are there; {then}. Expected at least min_workers="
            f"{self._hosts.min_workers}. Repair the others, then `shoal cluster "
            f"up` again.\n{why}"
        )

    def _note_failures(self, failed: Mapping[str, str]) -> None:
        for address, why in failed.items():
            self.failed[address] = why
            self._tell(address, f"failed: {why}")

    def _end_dropped(self) -> None:
        """Ends nodes on hosts that the file no longer names."""
        named = {host.address for host in self._hosts.hosts}
        dropped = [node for node in self.state.nodes if node.address not in named]
        _, failed = on_all(dropped, lambda node: end(self.state, node))
        self._note_failures({node.address: why for node, why in failed.items()})
        kept = [node for node in self.state.nodes if node.address in named]
        has_head = not dropped or dropped[0] != self.state.head
        self.state = self.state.model_copy(
            update={
                "hosts": self._hosts,
                "nodes": tuple(kept),
                "port": self.state.port if has_head else None,
                "environment": self._preparer.environment,
            }
        )

    def _prepare(self) -> list[NodeState]:
        known = {node.address: node for node in self.state.nodes}
        free = max([node.number for node in known.values()], default=-1) + 1
        numbers = {address: node.number for address, node in known.items()}
        for host in self._hosts.hosts:
            if host.address not in numbers:
                numbers[host.address] = free
                free += 1
        found, failed = on_all(
            self._hosts.hosts,
            lambda host: self._preparer.prepare(host, numbers[host.address]),
        )
        self._note_failures({host.address: why for host, why in failed.items()})
        ready = list(found.values())
        nodes = known | {node.address: node for node in ready}
        # The head stays first; nodes that cannot be reached now are kept.
        self._keep(list(nodes.values()))
        return ready

    def _keep(self, nodes: list[NodeState], port: int | None = None) -> None:
        told = {"nodes": tuple(nodes), "port": port or self.state.port}
        self.state = self.state.model_copy(update=told)
        if nodes:
            self._store.write(self.state)

    def _alive(self, ready: list[NodeState]) -> set[str] | None:
        """Returns private addresses of the nodes that Ray has; None without its head.

        A head that only this machine cannot reach still serves the others: one of
        them is asked then, before anything is ended.
        """
        if self.state.port is None:
            return None
        head = self.state.head
        here = [node for node in ready if node.address == head.address]
        asked, _ = on_all(
            here or ready, lambda node: look(self.state, node, asks_ray=True)
        )
        for found in asked.values():
            if "nodes" in found:
                nodes = found["nodes"]
                return {one["address"] for one in nodes if one["is_alive"]}
        return None

    def _start_head(self, ready: list[NodeState]) -> set[str]:
        """Starts a head; without one, other running nodes are useless."""
        on_all(ready, lambda node: end(self.state, node))
        known = {node.address: node for node in self.state.nodes}
        port = self._hosts.ray_port
        self.state = self.state.model_copy(update={"port": None})
        first = sorted(ready, key=lambda n: n.address != self.state.head.address)
        for node in first:
            others = [n for n in known.values() if n.address != node.address]
            self._keep([node, *others])
            try:
                found = self._start(node, again=True, port=port)
            except ClusterError as error:
                self._note_failures({node.address: str(error)})
                ready.remove(node)
                continue
            self._keep([node, *others], found["port"])
            return {node.private}
        self._require(0, "no node of Ray runs")
        raise AssertionError("a minimum below one")

    def _start(
        self, node: NodeState, *, again: bool, port: int | None = None
    ) -> dict[str, Any]:
        is_head = node.address == self.state.head.address
        self._tell(node.address, "starts the head" if is_head else "joins the head")
        size_mib = self._hosts.object_store_mib
        options = [f"--object-store-memory={size_mib << 20}"] if size_mib else []
        if is_head and not self._hosts.head_trains:
            options += ["--num-cpus=0", "--num-gpus=0"]  # Ray puts no worker there
        request = {
            "name": self.state.name,
            "mark": self.state.mark_of(node),
            "token": self.state.token,
            "private": node.private,
            "head": None if is_head else self.state.head.private,
            "port": port if is_head else self.state.port,
            "again": again,
            "variables": {"KERAS_BACKEND": self.state.backend},
            "limit_s": START_LIMIT_S,
            "options": options,
        }
        limit_s = START_LIMIT_S + SPARE_S
        found = ask(
            self.state.way_to(node), [node.python], "start", request, limit_s=limit_s
        )
        self._tell(node.address, "runs" if found["is_new"] else "ran already")
        return found
