"""A cluster on hosts of one's own: up, status, health, down; each safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from shoal.clusters.bring_up import STOP_LIMIT_S, BringUp, end, look, on_all
from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.health import NodeHealth, examine
from shoal.clusters.host_setup import HostSetup, Tell
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.pins import pins_here
from shoal.clusters.remote_call import ask


def _silent(address: str, what: str) -> None:
    """Tells nobody."""


@final
@dataclass(frozen=True, kw_only=True)
class Standing:
    """What an `up` came to.

    Args:
        state: Of the cluster.
        running: Nodes that run, the head first.
        failed: Address of a host -> why it is none of them.
    """

    state: ClusterState
    running: tuple[NodeState, ...]
    failed: Mapping[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """How a node is.

    Args:
        number: Of the node.
        address: For OpenSSH.
        private: For the other nodes.
        is_head: It is the one that the others follow.
        state: "runs"; "lost" when Ray does not have it, "down" when nothing of it
            runs, "not reached".
        processes: Of Ray, on it.
        cpus: That Ray gives out there.
        gpus: As well.
        why: In words, where it does not run.
    """

    number: int
    address: str
    private: str
    is_head: bool
    state: str
    processes: int = 0
    cpus: float = 0.0
    gpus: float = 0.0
    why: str = ""


def _status_of(
    node: NodeStatus,
    found: Mapping[str, Any] | None,
    ray: Mapping[str, Any] | None,
    lost: str,
) -> NodeStatus:
    """How a node is, from what its host and Ray's head say of it."""
    if found is None:
        return node
    node = replace(node, processes=found["processes"])
    if not found["is_alive"]:
        why = "Ray's raylet does not run; `shoal cluster up` starts it again"
        return replace(node, state="down", why=why)
    if ray is None:
        why = f"{lost}; `shoal cluster up` starts it again"
        return replace(node, state="lost", why=why)
    return replace(node, state="runs", cpus=ray["cpus"], gpus=ray["gpus"])


@final
@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a `down` came to.

    Args:
        processes: Address of a host -> how many were ended there.
        failed: Address of a host that could not be asked -> why.
    """

    processes: Mapping[str, int] = field(default_factory=dict[str, int])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


@final
class HostCluster:
    """A cluster by its name, in this session or a later one.

    Args:
        name: Of the cluster.
        store: Where it is known.
    """

    def __init__(self, name: str, store: ClusterStore) -> None:
        self._name, self._store = name, store

    def up(self, hosts: HostsFile, backend: str, tell: Tell = _silent) -> Standing:
        """Brings it up, or what is missing of it.

        Args:
            hosts: What it is to be.
            backend: Of Keras, that hosts get.
            tell: Is told what hosts do.

        Raises:
            ConfigError: This machine lacks what hosts are to have.
            ClusterError: Fewer hosts than `min_workers` are there.
        """
        hosts = hosts.model_copy(update={"name": self._name})
        pins = pins_here(backend, hosts.environment.packages)
        with self._store.lock(self._name):
            state = self._store.read(self._name) or ClusterState.new(hosts, backend)
            preparer = HostSetup(hosts, pins, tell)
            raising = BringUp(state, hosts, preparer, self._store, tell)
            running = raising.run()
            return Standing(
                state=raising.state, running=tuple(running), failed=raising.failed
            )

    def status(self) -> list[NodeStatus]:
        """How its nodes are, the head first.

        Raises:
            ConfigError: It is not known.
        """
        state = self._store.get(self._name)
        found, failed = on_all(
            state.nodes,
            lambda node: look(state, node, asks_ray=node == state.head),
        )
        said = found.get(state.head, {}).get("nodes", [])
        alive = {one["address"]: one for one in said if one["is_alive"]}
        lost = "the head does not have it" if said else "Ray's head does not answer"
        return [
            _status_of(
                NodeStatus(
                    number=node.number, address=node.address, private=node.private,
                    is_head=node == state.head and state.port is not None,
                    state="not reached",
                    why=failed.get(node, ""),
                ),
                found.get(node), alive.get(node.private), lost,
            )
            for node in state.nodes
        ]  # fmt: skip

    def health(self) -> list[NodeHealth]:
        """Looks at every node and between them, the head first.

        Raises:
            ConfigError: It is not known.
        """
        return examine(self._store.get(self._name))

    def down(
        self,
        hosts: HostsFile | None = None,
        *,
        removes_environment: bool = False,
        backend: str = "jax",
    ) -> Ended:
        """Ends it, and nothing else; what no longer is there, is no error.

        Args:
            hosts: Where to look, when nobody here knows of it any more.
            removes_environment: The environment that was installed goes, too.
            backend: That it was made with, where nobody here knows any more.

        Raises:
            ConfigError: It is not known here, and `hosts` is None.
        """
        if hosts is None and self._name not in self._store.names():
            return Ended()
        with self._store.lock(self._name):
            state = self._store.read(self._name)
            if state is None:
                if hosts is None:
                    return Ended()
                named = hosts.environment
                is_ours = removes_environment and named.python is None
                pins = pins_here(backend, named.packages) if is_ours else None
                return self._end_unknown(hosts, None if pins is None else pins.digest)
            done, failed = on_all(
                state.nodes,
                lambda node: end(state, node, removes_environment=removes_environment),
            )
            left = tuple(node for node in state.nodes if node in failed)
            if left:
                self._store.write(
                    state.model_copy(update={"nodes": left, "port": None})
                )
            else:
                self._store.remove(self._name)
            return Ended(
                processes={node.address: count for node, count in done.items()},
                failed={node.address: why for node, why in failed.items()},
            )

    def _end_unknown(self, hosts: HostsFile, environment: str | None) -> Ended:
        """Ends what the hosts themselves know of a cluster of this name.

        Args:
            hosts: That may have a part of it.
            environment: To remove, None for none.
        """
        python = hosts.environment.python or hosts.environment.base
        request = {"name": self._name, "marks": [], "environment": environment}
        pythons = [*([python] if python else []), "python3"]
        done, failed = on_all(
            hosts.hosts,
            lambda host: ask(
                hosts.way_to(host), pythons, "stop", request, limit_s=STOP_LIMIT_S
            )["ended"],
        )
        return Ended(
            processes={host.address: count for host, count in done.items()},
            failed={host.address: why for host, why in failed.items()},
        )
