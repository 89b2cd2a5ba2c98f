"""The interface of a cluster: its free resources, and a launcher for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, final

from shoal.clusters.remote_jobs import RemoteJobs
from shoal.errors import ConfigError
from shoal.facts import MachineFacts
from shoal.launchers.base import Launcher
from shoal.launchers.shared import SharedBlob


@final
@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """Resources that a run asks of a cluster.

    Args:
        least: Workers that are needed, at least 1.
        most: Workers at most, at least `least`.
        threads: Compute threads of each worker, at least 1.
        backend: Name of the Keras backend.

    Example:
        >>> asked = ResourceRequest(least=1, most=4, threads=2, backend="jax")
        >>> asked.most
        4
    """

    least: int
    most: int
    threads: int
    backend: str


@final
@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Resources that a cluster has reserved for a run.

    Args:
        workers: Workers that have room, at least 1.
        port: Port at which servers beside the driver listen, or the next free one; 0
            is any free port.
        growth: More workers, at least 0, that join when there is room: the launcher
            waits for it.
        host: Address of this machine for the workers.
        open_launcher: Opens the launcher of these workers, which share a blob.

    Example:
        >>> from shoal.launchers.process import ProcessLauncher
        >>> room = Allocation(
        ...     workers=2,
        ...     host="127.0.0.1",
        ...     open_launcher=lambda blob: ProcessLauncher((blob.descriptor,)),
        ... )
        >>> room.workers, room.growth
        (2, 0)
    """

    workers: int
    host: str
    open_launcher: Callable[[SharedBlob], Launcher]
    growth: int = 0
    port: int = 0


class Cluster(ABC):
    """A place for workers other than this machine: a frozen value.

    Everything it starts for a run it ends with the run. A package adds a kind with a
    class and one line of its metadata:

        [project.entry-points."shoal.clusters"]
        slurm = "my_package.slurm:Slurm"

    `fit(cluster="slurm")` makes one without arguments; `fit(cluster=Slurm(...))` takes
    any.

    Example:
        A cluster whose workers are two processes of this machine.

        >>> from contextlib import contextmanager
        >>> from shoal.launchers.process import ProcessLauncher
        >>> class Pair(Cluster):
        ...     name = "pair"
        ...
        ...     def look(self, backend):
        ...         return MachineFacts(cores=2)
        ...
        ...     @contextmanager
        ...     def open(self, asked):
        ...         yield Allocation(
        ...             workers=min(2, asked.most),
        ...             host="127.0.0.1",
        ...             open_launcher=lambda blob: ProcessLauncher((blob.descriptor,)),
        ...         )
        >>> asked = ResourceRequest(least=1, most=4, threads=1, backend="jax")
        >>> with Pair().open(asked) as room:
        ...     room.workers
        2
    """

    name: ClassVar[str]
    """Name of its kind for users, and for the `cluster` of a request."""

    @property
    def is_remote(self) -> bool:
        """Whether a call of `fit` is sent there as a job."""
        return False

    @property
    def shared_folder(self) -> str | None:
        """Returns a folder or URL that all workers see; None if none is known.

        Rows that have to be written for a run go there.
        """
        return None

    @property
    def port_here(self) -> int:
        """Returns the first port at which this process listens for workers; 0: any."""
        return 0

    @property
    def is_here(self) -> bool:
        """Whether all workers are on this machine, and see its files."""
        return False

    def jobs(self) -> RemoteJobs:
        """Returns the jobs of a remote cluster.

        Raises:
            ConfigError: Calls are not sent to this kind of cluster.
        """
        raise ConfigError(
            f"cluster {self.name!r} takes no jobs. Expected a cluster that calls of "
            "`fit` are sent to. Name one that `shoal cluster up` made."
        )

    def inside(self) -> Cluster:
        """Returns the same cluster for a process that runs on one of its machines."""
        return self

    @abstractmethod
    def look(self, backend: str) -> MachineFacts:
        """Returns the resources that are free now; starts nothing.

        Args:
            backend: Name of the Keras backend.

        Raises:
            PlanError: It cannot be used from here.
            ClusterError: It cannot be reached.
        """

    @abstractmethod
    def open(self, asked: ResourceRequest) -> AbstractContextManager[Allocation]:
        """Reserves room, waits for it if necessary, and releases it at the end.

        Raises:
            ClusterError: There is no room for the minimum.
        """
