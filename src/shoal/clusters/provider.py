"""What a provider of machines is: it turns a spec into hosts, and takes them back."""

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
"""Is told the name of a machine, or of another resource, and what it does now."""


@final
@dataclass(frozen=True, kw_only=True)
class Instance:
    """A machine, as its provider tells of it.

    Args:
        id: The provider's own name of it.
        address: As in the hosts that `acquire` gave; "" before it has one.
        state: In the provider's words, such as "pending" or "terminated".
        is_running: It can be, or become, a node.
    """

    id: str
    address: str
    state: str
    is_running: bool


@final
class Acquisition:
    """What `acquire` knows of its cluster, and where it notes what it makes.

    Args:
        state: What is known; of a new cluster its name, its id and the spec.
        store: Keeps what is noted.
        tell: Is told what machines do.
    """

    def __init__(self, state: ClusterState, store: ClusterStore, tell: Tell) -> None:
        self._state, self._store, self._tell = state, store, tell

    @property
    def state(self) -> ClusterState:
        """What is known now. Its spec is that of the last `up` that came to hosts."""
        return self._state

    def note(self, **facts: JsonValue) -> None:
        """Keeps facts at once: `release` has them, whatever ends this process.

        Note the name of what costs money before it is asked for.
        """
        known = {**self._state.facts, **facts}
        self._state = self._state.model_copy(update={"facts": known})
        self._store.write(self._state)

    def tell(self, name: str, step: str) -> None:
        """Shows what a machine or another resource does now."""
        self._tell(name, step)


class Provider(ABC, Generic[Spec]):
    """Where the machines of a cluster come from; no state of its own.

    `shoal cluster up FILE` asks the one that the file names as `provider`. A package
    adds a provider with a class and one line of its metadata:

        [project.entry-points."shoal.providers"]
        lab = "my_package.lab:Lab"

    Everything else of a cluster (environment, Ray, jobs, health, the end of what runs
    on its hosts) is the same for all providers.
    """

    name: ClassVar[str]
    """What files call it."""

    makes_machines: ClassVar[bool] = True
    """Whether machines are made for the cluster, and go with it. Then an `up` that is
    broken off gives them back, and `down` does although one cannot be reached."""

    @property
    @abstractmethod
    def spec(self) -> type[Spec]:
        """What a file of this provider may say."""

    @abstractmethod
    def acquire(self, spec: Spec, acquisition: Acquisition) -> HostsFile:
        """Makes the machines, or those that are missing, until ssh can reach them.

        Safe to repeat: `up` calls it each time. What it notes is what `release` knows.

        Args:
            spec: What the file asks for.
            acquisition: What is known of the cluster, and where facts are noted.

        Returns:
            The hosts, the head first.

        Raises:
            ProvisionError: The provider gives too few.
            CredentialsError: It does not know us.
        """

    @abstractmethod
    def instances(self, state: ClusterState) -> Sequence[Instance]:
        """Returns the machines of a cluster, also those that are no nodes of it.

        Raises:
            ClusterError: The provider cannot be asked.
        """

    @abstractmethod
    def release(self, state: ClusterState) -> None:
        """Gives back all that `acquire` made; what is gone already is no error.

        It is called once for a cluster, and again only where it has raised. `acquire`
        may have been broken off anywhere, also before it noted anything.

        Args:
            state: Of the cluster: `facts` that were noted, and the spec.

        Raises:
            ClusterError: Something is left; the cluster then stays known.
        """
