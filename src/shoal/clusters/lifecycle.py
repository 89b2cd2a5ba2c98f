"""The life of a cluster: up, status, health, down; each safe to repeat."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, final

from shoal.clusters.bring_up import STOP_LIMIT_S, BringUp, end, look, on_all
from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.doctor import Finding
from shoal.clusters.health import NodeHealth, examine
from shoal.clusters.host_setup import HostReport, HostSetup, Tell
from shoal.clusters.hosts import OwnHosts
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.pins import pins_here
from shoal.clusters.provider import Acquisition, Instance, Provider, Wishes
from shoal.clusters.providers import ClusterFile, provider_of
from shoal.clusters.refreshing import refreshed
from shoal.clusters.remote_call import ask
from shoal.clusters.spec_file import ClusterSpec
from shoal.errors import ClusterError, PlanError, ShoalError


def _silent(address: str, what: str) -> None:
    """Ignores progress."""


@final
@dataclass(frozen=True, kw_only=True)
class Standing:
    """Result of an `up`.

    Args:
        state: State of the cluster.
        running: Nodes that run, the head first.
        failed: Address of a host -> why it is not a running node.
    """

    state: ClusterState
    running: tuple[NodeState, ...]
    failed: Mapping[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class Examination:
    """What the hosts of a file have.

    Args:
        reports: Hosts that can be nodes.
        failed: Address of a host -> why it cannot.
        environment: The environment that `up` installs; None for the user's own.
        requirements: Its packages, for pip.
    """

    reports: tuple[HostReport, ...]
    failed: Mapping[str, str]
    environment: str | None
    requirements: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """State of a node.

    Args:
        number: Number of the node; None for a machine that is not a node.
        address: Address for OpenSSH.
        private: Address for the other nodes.
        is_head: Whether it is the head.
        state: "runs"; "lost" when Ray does not have it, "down" without any process
            of it, "not reached"; for a machine that is not a node, its provider's word.
        processes: Number of its Ray processes.
        cpus: CPUs that Ray assigns there.
        gpus: GPUs that Ray assigns there.
        why: Reason why it does not run.
        instance: The provider's id of its machine.
    """

    number: int | None
    address: str
    private: str
    is_head: bool
    state: str
    processes: int = 0
    cpus: float = 0.0
    gpus: float = 0.0
    why: str = ""
    instance: str = ""


def _status_of(
    node: NodeStatus,
    found: Mapping[str, Any] | None,
    ray: Mapping[str, Any] | None,
    lost: str,
) -> NodeStatus:
    """Returns the state of a node, from its host and Ray's head."""
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


def _with_instances(
    nodes: Sequence[NodeStatus], instances: Sequence[Instance]
) -> list[NodeStatus]:
    """Adds the provider's state of machines, and machines that are not nodes."""
    known = {one.address: one for one in instances if one.address}
    found: list[NodeStatus] = []
    for node in nodes:
        machine = known.pop(node.address, None)
        if machine is not None:
            node = replace(node, instance=machine.id)
            if not machine.is_running:
                node = replace(node, why=f"its machine is {machine.state}")
        found.append(node)
    others = [one for one in instances if not one.address or one.address in known]
    return [
        *found,
        *(
            NodeStatus(
                number=None, address=one.address, private="", is_head=False,
                state=one.state, instance=one.id,
                why="no node; `shoal cluster up` takes it in" * one.is_running,
            )
            for one in others
        ),
    ]  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Ended:
    """Result of a `down`.

    Args:
        processes: Address of a host -> number of processes ended there.
        failed: Address of a host that could not be asked -> reason.
        released: The provider that released the machines; "" for the user's own hosts.
        kept: Sentences about what stays on purpose.
    """

    processes: Mapping[str, int] = field(default_factory=dict[str, int])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    released: str = ""
    kept: tuple[str, ...] = ()


@final
class ManagedCluster:
    """A cluster by its name, in this session or a later one.

    Args:
        name: Name of the cluster.
        store: Store of its state.
    """

    def __init__(self, name: str, store: ClusterStore) -> None:
        self._name, self._store = name, store

    # ------------------------------------------------------------------- up

    def up(
        self,
        asked: ClusterFile,
        backend: str,
        tell: Tell = _silent,
        wishes: Wishes | None = None,
    ) -> Standing:
        """Brings up the cluster, or its missing parts.

        Args:
            asked: Its file.
            backend: Keras backend for the hosts.
            tell: Called with the progress of hosts.
            wishes: What the caller wants beside the file.

        Raises:
            ConfigError: This machine lacks packages that hosts should have.
            PlanError: The cluster is one of another provider, or runs another
                environment.
            ClusterError: The provider gives no machines, or fewer hosts than
                `min_workers` are up. Machines made for a new cluster have been
                released, unless the provider cannot be asked and makes them without
                this process; if it failed, a note of the error says so.
        """
        with self._making(asked, backend, tell, wishes) as (spec, acquisition):
            hosts = asked.provider.acquire(spec, acquisition)
            told = {"spec": spec.model_dump(mode="json")}
            made = acquisition.state.model_copy(update=told)
            hosts = hosts.model_copy(update={"name": self._name})
            pins = pins_here(backend, hosts.environment.packages, hosts.runs)
            preparer = HostSetup(hosts, pins, tell)
            raising = BringUp(made, hosts, preparer, self._store, tell)
            running = raising.run()
            try:
                asked.provider.came_up(raising.state, preparer.installation)
            except ShoalError as error:
                tell(self._name, f"runs, but its provider does not know that: {error}")
            return Standing(
                state=raising.state, running=tuple(running), failed=raising.failed
            )

    def examine_hosts(
        self, hosts: HostsFile, backend: str, tell: Tell = _silent
    ) -> Examination:
        """Asks the user's own hosts what `up` would find; changes nothing anywhere.

        Args:
            hosts: The file of the cluster.
            backend: Keras backend for the hosts.
            tell: Called with the progress of hosts.

        Raises:
            ConfigError: This machine lacks packages that hosts should have.
            PlanError: The cluster is up in another environment.
        """
        pins = pins_here(backend, hosts.environment.packages, hosts.runs)
        preparer = HostSetup(hosts, pins, tell)
        known = self._store.read(self._name)
        state = known or ClusterState.new(OwnHosts.name, hosts, backend)
        bring_up = BringUp(state, hosts, preparer, self._store, tell)
        reports = bring_up.examine()
        is_own = preparer.environment is None
        return Examination(
            reports=tuple(reports),
            failed=bring_up.failed,
            environment=preparer.environment,
            requirements=() if is_own else tuple(pins.requirements),
        )

    def begin(
        self,
        asked: ClusterFile,
        backend: str,
        tell: Tell = _silent,
        wishes: Wishes | None = None,
    ) -> tuple[str, ClusterState]:
        """Asks for the machines and does not wait; `up` follows them later.

        Args: As for `up`.

        Returns:
            The provider's id of what is being made, and the state.

        Raises:
            ConfigError: The provider makes nothing while nobody waits.
            PlanError: The cluster is one of another provider.
            ClusterError: The provider refuses; what was made has been released.
        """
        with self._making(asked, backend, tell, wishes) as (spec, acquisition):
            return asked.provider.begin(spec, acquisition), acquisition.state

    @contextmanager
    def _making(
        self, asked: ClusterFile, backend: str, tell: Tell, wishes: Wishes | None
    ) -> Generator[tuple[ClusterSpec, Acquisition]]:
        """Keeps the cluster to this process; undoes a first attempt that fails."""
        wishes = wishes or Wishes()
        pins_here(backend)  # before anything costs money
        spec = asked.spec.model_copy(update={"name": self._name})
        if self._name in self._store.names():  # nodes may have joined by themselves
            refreshed(self._store, self._name)
        with self._store.lock(self._name):
            known = self._store.read(self._name)
            state = known or ClusterState.new(asked.provider.name, spec, backend)
            if state.provider != asked.provider.name:
                raise self._another_provider(state, asked)
            self._store.write(state)
            acquisition = Acquisition(state, self._store, tell, wishes)
            try:
                yield spec, acquisition
            except BaseException as error:
                if not acquisition.is_kept:
                    self._undo(asked.provider, error)
                raise

    def _another_provider(self, state: ClusterState, asked: ClusterFile) -> PlanError:
        return PlanError(
            f"the cluster {self._name} is up with the provider {state.provider!r}, and "
            f"the file says {asked.provider.name!r}. Expected one provider until the "
            f"cluster is down. Run `shoal cluster down {self._name}` first, or give "
            "the new cluster another name."
        )

    def _undo(self, provider: Provider[Any], error: BaseException) -> None:
        """Ends and releases what an `up` of a new cluster has begun.

        After Ctrl-C nothing is undone where it costs nothing, and the same command
        continues, so that hosts need not install everything again.
        """
        state = self._store.read(self._name)
        if state is None:
            return
        if isinstance(error, Exception):
            on_all(state.nodes, lambda node: end(state, node))
        elif provider.goes_on or (state.nodes and not provider.makes_machines):
            return
        try:
            self._release(provider, state)
        except ShoalError as why:
            error.add_note(str(why))

    def _release(self, provider: Provider[Any], state: ClusterState) -> tuple[str, ...]:
        """Releases machines, and forgets the cluster when nothing of it is left.

        Returns sentences about what stays on purpose.
        """
        advice = (
            f"The cluster stays known, and may still cost. Run `shoal cluster down "
            f"{self._name}` to try again."
        )
        try:
            kept = tuple(provider.release(state) or ())
        except Exception as error:
            raise ClusterError(
                f"the machines of the cluster {self._name} could not be released: "
                f"{error}. Expected the provider {provider.name!r} to take them. "
                f"{advice}"
            ) from error
        except BaseException as error:
            error.add_note(f"Machines were being released. {advice}")
            raise
        self._store.remove(self._name)
        return kept

    # -------------------------------------------------------------- looking

    def status(self) -> list[NodeStatus]:
        """Returns the state of its nodes, the head first; then other machines.

        If its provider cannot be asked, the nodes are those that were last seen.

        Raises:
            ConfigError: The cluster is unknown.
        """
        state = refreshed(self._store, self._name)
        head = state.nodes[0] if state.nodes else None
        found, failed = on_all(
            state.nodes,
            lambda node: look(state, node, asks_ray=node == head),
        )
        said = found[head].get("nodes", []) if head in found else []
        alive = {one["address"]: one for one in said if one["is_alive"]}
        lost = "the head does not have it" if said else "Ray's head does not answer"
        nodes = [
            _status_of(
                NodeStatus(
                    number=node.number, address=node.address, private=node.private,
                    is_head=node == head and state.port is not None,
                    state="not reached",
                    why=failed.get(node, ""),
                ),
                found.get(node), alive.get(node.private), lost,
            )
            for node in state.nodes
        ]  # fmt: skip
        return _with_instances(nodes, _instances_of(state))

    def last_seen(self) -> list[NodeStatus]:
        """Returns its nodes as they were last seen, the head first; asks nobody.

        Raises:
            ConfigError: The cluster is unknown.
        """
        state = self._store.get(self._name)
        return [
            NodeStatus(
                number=node.number, address=node.address, private=node.private,
                is_head=place == 0 and state.port is not None, state="last seen",
            )
            for place, node in enumerate(state.nodes)
        ]  # fmt: skip

    def health(self) -> list[NodeHealth]:
        """Checks every node and the connections between them, the head first.

        Raises:
            ConfigError: The cluster is unknown.
            ClusterError: It has no nodes.
        """
        state = refreshed(self._store, self._name)
        found = examine(state, _instances_of(state))
        more: Mapping[str, Sequence[Finding]] = {}
        with suppress(ShoalError):  # it was said when the state was refreshed
            more = provider_of(state).findings(state)
        return [
            replace(node, findings=(*node.findings, *more.get(node.address, ())))
            for node in found
        ]

    # ----------------------------------------------------------------- down

    def down(
        self,
        asked: ClusterFile | None = None,
        *,
        removes_environment: bool = False,
        backend: str = "jax",
    ) -> Ended:
        """Ends the cluster and nothing else; missing parts are not an error.

        `remove_storage` of its provider removes what stays on purpose.

        Args:
            asked: File with its hosts, if this machine has lost the state.
            removes_environment: Whether the installed environment is removed, too.
            backend: Keras backend it was made with, if this machine has lost the state.

        Raises:
            ClusterError: Machines could not be released; the cluster stays known.
        """
        is_known = self._name in self._store.names()
        if asked is None and not is_known:
            return Ended()
        if is_known:  # machines that are gone are not waited for
            refreshed(self._store, self._name)
        with self._store.lock(self._name):
            state = self._store.read(self._name)
            if state is not None:
                return self._end(state, removes_environment=removes_environment)
            if asked is None:
                return Ended()
            return self._end_forgotten(
                asked, removes_environment=removes_environment, backend=backend
            )

    def _end(self, state: ClusterState, *, removes_environment: bool) -> Ended:
        provider = provider_of(state)
        done, failed = on_all(
            state.nodes,
            lambda node: end(state, node, removes_environment=removes_environment),
        )
        processes = {node.address: count for node, count in done.items()}
        left = tuple(node for node in state.nodes if node in failed)
        if left and not provider.makes_machines:
            self._store.write(state.model_copy(update={"nodes": left, "port": None}))
            why = {node.address: why for node, why in failed.items()}
            return Ended(processes=processes, failed=why)
        kept = self._release(provider, state)
        return Ended(processes=processes, released=_released_by(provider), kept=kept)

    def _end_forgotten(
        self, asked: ClusterFile, *, removes_environment: bool, backend: str
    ) -> Ended:
        """Ends a cluster that only its provider, or its hosts, know."""
        provider = asked.provider
        spec = asked.spec.model_copy(update={"name": self._name})
        if isinstance(spec, HostsFile):
            named = spec.environment
            is_ours = removes_environment and named.python is None
            pins = pins_here(backend, named.packages, spec.runs) if is_ours else None
            return self._end_unknown(spec, None if pins is None else pins.digest)
        state = ClusterState.new(provider.name, spec, backend)
        kept = self._release(provider, state)
        return Ended(released=_released_by(provider), kept=kept)

    def _end_unknown(self, hosts: HostsFile, environment: str | None) -> Ended:
        """Ends what the hosts themselves know of a cluster of this name.

        Args:
            hosts: Hosts that may have a part of it.
            environment: Environment to remove, None for none.
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


def _instances_of(state: ClusterState) -> Sequence[Instance]:
    """Returns the machines, none if their provider cannot be asked."""
    with suppress(ShoalError):  # it was said when the state was refreshed
        return provider_of(state).instances(state)
    return ()


def _released_by(provider: Provider[Any]) -> str:
    return provider.name if provider.makes_machines else ""
