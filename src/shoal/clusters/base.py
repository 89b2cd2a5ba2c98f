"""What a cluster is: it tells what its machines have free, and gives a launcher."""

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
    """What a run wants of a cluster.

    Args:
        least: Workers it needs.
        most: Workers it can use.
        threads: Of each.
        backend: Of Keras.
    """

    least: int
    most: int
    threads: int
    backend: str


@final
@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a cluster has set aside for a run.

    Args:
        workers: That have room.
        growth: More of them that come when there is room: the launcher waits for it.
        host: Address of this machine at which workers reach it.
        open_launcher: Makes the launcher of these workers, which are to share a blob.
    """

    workers: int
    host: str
    open_launcher: Callable[[SharedBlob], Launcher]
    growth: int = 0


class Cluster(ABC):
    """Where workers may be, other than this machine: a frozen value.

    What it starts for a run it ends with the run. A package adds a kind with a class
    and one line of its metadata:

        [project.entry-points."shoal.clusters"]
        slurm = "my_package.slurm:Slurm"

    `fit(cluster="slurm")` makes one without arguments; `fit(cluster=Slurm(...))` takes
    any.
    """

    name: ClassVar[str]
    """What users call its kind, and the `cluster` of a request."""

    @property
    def is_remote(self) -> bool:
        """Whether a call of `fit` is sent there as a job."""
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
        """Returns what is free now; starts nothing.

        Args:
            backend: Of Keras.

        Raises:
            PlanError: It cannot be used from here.
            ClusterError: It cannot be reached.
        """

    @abstractmethod
    def open(self, asked: ResourceRequest) -> AbstractContextManager[Allocation]:
        """Sets room aside, waits for it where it has to, and gives it back at the end.

        Raises:
            ClusterError: There is not room for the least.
        """
