"""The interface of a provider: it turns a spec into hosts, and releases them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeAlias, final

from pydantic import JsonValue

from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.doctor import Finding
from shoal.clusters.host_setup import Installation
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.spec_file import Spec
from shoal.errors import ConfigError

Tell: TypeAlias = Callable[[str, str], None]
"""Called with the name of a machine, or of another resource, and its present step."""


@final
@dataclass(frozen=True, kw_only=True)
class Instance:
    """A machine, as its provider describes it.

    Args:
        id: The provider's id of it.
        address: Address in the hosts of `acquire`; "" before it has one.
        state: State in the provider's words, such as "pending" or "terminated".
        is_running: Whether it can be, or become, a node.
    """

    id: str
    address: str
    state: str
    is_running: bool


@final
@dataclass(frozen=True, kw_only=True)
class LogText:
    """A log that a machine wrote while it was made.

    Args:
        machine: Id of the machine.
        name: Name of the log.
        text: Its text so far.
    """

    machine: str
    name: str
    text: str


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """A table of a preview.

    Args:
        title: Its title.
        columns: Names of its columns.
        rows: Its rows.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@final
@dataclass(frozen=True, kw_only=True)
class Preview:
    """What `up` would make, and what it costs.

    Args:
        sections: Tables, for people.
        closing: Sentences below them.
        details: The same for programs, as JSON.
    """

    sections: Sequence[Section] = ()
    closing: Sequence[str] = ()
    details: Mapping[str, object]


def _agree(preview: Preview) -> None:
    """Agrees to any price."""


@final
@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the caller of `up` wants beside the file.

    Args:
        confirm: Called with what would be made and paid for; raises to refuse.
        opens: Whether machines may be reached by everybody.
        keeps_failed: Whether machines of an `up` that fails are kept, to look at.
    """

    confirm: Callable[[Preview], None] = _agree
    opens: bool = False
    keeps_failed: bool = False


@final
class Acquisition:
    """Arguments of `acquire`: the state of the cluster, and a place for facts.

    Args:
        state: Known state; for a new cluster its name, its id and the spec.
        store: Stores the facts.
        tell: Called with the progress of machines.
        wishes: What the caller wants beside the file.
    """

    def __init__(
        self,
        state: ClusterState,
        store: ClusterStore,
        tell: Tell,
        wishes: Wishes | None = None,
    ) -> None:
        self._state, self._store, self._tell = state, store, tell
        self.wishes = wishes or Wishes()
        self._is_kept = False

    @property
    def folder(self) -> Path:
        """Returns the folder of the states of clusters, for files beside them."""
        return self._store.folder

    @property
    def state(self) -> ClusterState:
        """Returns the present state; its spec is of the last `up` to reach hosts."""
        return self._state

    @property
    def is_kept(self) -> bool:
        """Tells whether an error of `acquire` ends nothing of what it has begun.

        So it is if the cluster has nodes, if the caller wishes it, and after `keep`.
        """
        return self._is_kept or self.wishes.keeps_failed or bool(self._state.nodes)

    def keep(self) -> None:
        """Keeps what has begun, whatever error `acquire` raises now.

        For a provider that cannot be asked at present, and makes the machines without
        this process: the same command follows it later.
        """
        self._is_kept = True

    def note(self, **facts: JsonValue) -> None:
        """Stores facts at once: `release` has them, however this process ends.

        Note the name of a resource that costs money before requesting it.
        """
        known = {**self._state.facts, **facts}
        self._state = self._state.model_copy(update={"facts": known})
        self._store.write(self._state)

    def set_token(self, token: str) -> None:
        """Stores the token of Ray, of a provider that makes one itself."""
        self._state = self._state.model_copy(update={"token": token})
        self._store.write(self._state)

    def tell(self, name: str, step: str) -> None:
        """Shows the present step of a machine or another resource."""
        self._tell(name, step)


class Provider(ABC, Generic[Spec]):
    """The origin of a cluster's machines; it has no state of its own.

    `shoal cluster up FILE` asks the provider that the file names. A package
    adds a provider with a class and one line of its metadata:

        [project.entry-points."shoal.providers"]
        lab = "my_package.lab:Lab"

    Everything else of a cluster (environment, Ray, jobs, health, the end of processes
    on its hosts) is the same for all providers.
    """

    name: ClassVar[str]
    """Name of the provider in files."""

    makes_machines: ClassVar[bool] = True
    """Whether machines are made for the cluster, and removed with it. An interrupted
    `up` releases them then, and so does `down` even if one cannot be reached."""

    goes_on: ClassVar[bool] = False
    """Whether the provider itself completes, and ends, what an interrupted `up` has
    begun: it is kept then, and the same command follows it."""

    @property
    @abstractmethod
    def spec(self) -> type[Spec]:
        """Returns the class of the fields in a file of this provider."""

    def preview(self, spec: Spec) -> Preview | None:
        """Returns what `up` would make, for `up --dry-run`; asks nobody.

        Default: None, for a provider that cannot tell.

        Args:
            spec: Fields of the file.

        Raises:
            ShoalError: `up` would refuse the file.
        """
        del spec
        return None

    @abstractmethod
    def acquire(self, spec: Spec, acquisition: Acquisition) -> HostsFile:
        """Makes the machines, or the missing ones, and waits until ssh reaches them.

        It is safe to repeat: `up` calls it each time. `release` knows the noted facts.

        Args:
            spec: Fields of the file.
            acquisition: State of the cluster, and the place for facts.

        Returns:
            The hosts, the head first.

        Raises:
            ProvisionError: The provider gives too few.
            CredentialsError: It refuses the credentials.
        """

    def begin(self, spec: Spec, acquisition: Acquisition) -> str:
        """Asks for what `acquire` would make, without waiting for it; returns its id.

        `acquire` follows it later. Default: an error, for a provider that cannot.

        Args:
            spec: Fields of the file.
            acquisition: State of the cluster, and the place for facts.

        Raises:
            ConfigError: The provider itself does nothing while nobody waits.
            ProvisionError: It refuses.
        """
        del spec, acquisition
        raise ConfigError(
            f"the provider {self.name!r} cannot make machines with --detach. "
            "Expected `shoal cluster up` to wait for them. Leave --detach out."
        )

    def came_up(self, state: ClusterState, installation: Installation | None) -> None:
        """Called at the end of each `up` that has brought up nodes.

        Default: nothing.

        Args:
            state: State of the cluster, with its nodes.
            installation: The environment that hosts got; None for the user's own.

        Raises:
            ClusterError: It has failed; the cluster stays up.
        """
        del state, installation

    @abstractmethod
    def instances(self, state: ClusterState) -> Sequence[Instance]:
        """Returns the machines of a cluster, including those that are not nodes.

        Raises:
            ClusterError: The provider cannot be asked.
        """

    def refresh(self, state: ClusterState, folder: Path) -> ClusterState:
        """Returns the state of a cluster with the present addresses of its machines.

        Default: the state unchanged, for machines whose addresses stay.

        Args:
            state: State as last seen.
            folder: Folder of the states of clusters, for files beside them.

        Raises:
            ClusterError: The provider cannot be asked.
        """
        del folder
        return state

    def findings(self, state: ClusterState) -> Mapping[str, Sequence[Finding]]:
        """Returns what `health` tells of nodes beside the checks of any host.

        Default: nothing.

        Args:
            state: State of the cluster.

        Returns:
            Address of a node -> findings.

        Raises:
            ClusterError: The provider cannot be asked.
        """
        del state
        return {}

    def notes(self, state: ClusterState) -> Sequence[str]:
        """Returns sentences about a cluster for `up` and `status`; asks nobody.

        Default: none.

        Args:
            state: State of the cluster.
        """
        del state
        return ()

    def logs(self, state: ClusterState, instance: str) -> Iterable[LogText]:
        """Returns logs of machines while they were made, also of those that are gone.

        Default: none.

        Args:
            state: State of the cluster; without facts if this machine has lost it.
            instance: Id of a machine; "" for all.

        Raises:
            ClusterError: The provider cannot be asked.
        """
        del state, instance
        return ()

    @abstractmethod
    def release(self, state: ClusterState) -> Sequence[str] | None:
        """Releases everything that `acquire` made; missing parts are not an error.

        It is called once for a cluster, and again only if it has raised. `acquire`
        may have been interrupted anywhere, also before it noted anything.

        Args:
            state: State of the cluster, with the noted `facts` and the spec.

        Returns:
            Sentences about what stays on purpose; None for nothing.

        Raises:
            ClusterError: A part is left; the cluster then stays known.
        """

    def remove_storage(self, state: ClusterState) -> Sequence[str]:
        """Removes what `release` has kept on purpose; called after it.

        Default: nothing, for a provider that keeps nothing.

        Args:
            state: State of the cluster before `release`; without facts if this machine
                has lost it.

        Returns:
            Sentences about what was removed, and what stays.

        Raises:
            ClusterError: A part is left; it can be repeated.
        """
        del state
        return ()
