"""The interface of a provider: it turns a spec into hosts, and releases them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeAlias, final

from pydantic import JsonValue

from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.spec_file import Spec

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
class Acquisition:
    """Arguments of `acquire`: the state of the cluster, and a place for facts.

    Args:
        state: Known state; for a new cluster its name, its id and the spec.
        store: Stores the facts.
        tell: Called with the progress of machines.
    """

    def __init__(self, state: ClusterState, store: ClusterStore, tell: Tell) -> None:
        self._state, self._store, self._tell = state, store, tell

    @property
    def state(self) -> ClusterState:
        """Returns the present state; its spec is of the last `up` to reach hosts."""
        return self._state

    def note(self, **facts: JsonValue) -> None:
        """Stores facts at once: `release` has them, however this process ends.

        Note the name of a resource that costs money before requesting it.
        """
        known = {**self._state.facts, **facts}
        self._state = self._state.model_copy(update={"facts": known})
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

    @property
    @abstractmethod
    def spec(self) -> type[Spec]:
        """Returns the class of the fields in a file of this provider."""

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

    @abstractmethod
    def instances(self, state: ClusterState) -> Sequence[Instance]:
        """Returns the machines of a cluster, including those that are not nodes.

        Raises:
            ClusterError: The provider cannot be asked.
        """

    @abstractmethod
    def release(self, state: ClusterState) -> None:
        """Releases everything that `acquire` made; missing parts are not an error.

        It is called once for a cluster, and again only if it has raised. `acquire`
        may have been interrupted anywhere, also before it noted anything.

        Args:
            state: State of the cluster, with the noted `facts` and the spec.

        Raises:
            ClusterError: A part is left; the cluster then stays known.
        """
