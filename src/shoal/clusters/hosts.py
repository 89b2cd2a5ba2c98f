"""The user's own hosts: the provider that makes no machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from shoal.clusters.cluster_state import ClusterState
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.provider import Acquisition, Instance, Provider


@final
class OwnHosts(Provider[HostsFile]):
    """Hosts that exist before the cluster and after it."""

    name: ClassVar[str] = "hosts"
    makes_machines: ClassVar[bool] = False

    @property
    def spec(self) -> type[HostsFile]:
        """Returns the fields of hosts.yaml."""
        return HostsFile

    def acquire(self, spec: HostsFile, acquisition: Acquisition) -> HostsFile:
        """Returns the hosts of the file."""
        del acquisition
        return spec

    def instances(self, state: ClusterState) -> Sequence[Instance]:
        """Returns nothing: only the hosts themselves know their state."""
        del state
        return ()

    def release(self, state: ClusterState) -> None:
        """Does nothing: the hosts stay."""
