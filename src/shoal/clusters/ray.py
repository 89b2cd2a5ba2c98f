"""A Ray cluster: the one that this machine is part of, or one for this run alone.

This file decides which cluster that is, which of its resources are free, and which are
requested for a run. Ray is imported when it is needed.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import psutil

from shoal.clusters.base import Allocation, Cluster, ResourceRequest
from shoal.clusters.carried import carried
from shoal.clusters.gpus import reaches_gpus, usable_gpus
from shoal.clusters.local import usable_cores
from shoal.clusters.ray_joining import (
    CALL_S,
    first_line,
    import_ray,
    import_with_token,
    is_connected,
    own_sigterm,
    ray_environment,
    reach,
    require_ray,
    token,
)
from shoal.clusters.remote_jobs import RemoteJobs
from shoal.errors import ClusterError, ConfigError, PlanError
from shoal.facts import MachineFacts, NodeFacts
from shoal.host.temporary import temporary_folder
from shoal.launchers.base import Launcher
from shoal.launchers.shared import SharedBlob

START_S = 120.0  # for Ray to start a process, which is slow on a busy node
INSTALL_S = 600.0  # the same, with requirements to install first
LONGEST_FOLDER = 32  # characters: paths of Ray's sockets in it have at most 107
LOOPBACK = "127.0.0.1"
CLIENT = "ray://"
LAST_RAY = Path("/tmp/ray/ray_current_cluster")


@final
@dataclass(frozen=True, kw_only=True)
class Ray(Cluster):
    """Workers on a Ray cluster; pass it to `fit` as `cluster=`.

    `cluster="ray"` is `Ray()` and `cluster="10.0.0.7:6379"` is
    `Ray(address="10.0.0.7:6379")`. Either this machine is one of the cluster's, or
    the address is that of Ray Client: then `fit` is sent there, and followed.

    Args:
        address: Address of its head, "host:port" or "ray://host:10001". Default None
            means $RAY_ADDRESS, else the cluster that this machine is part of, else one
            of this machine alone that ends with the run.
        working_dir: Folder whose files go to each node, where workers can import them.
        pip: Requirements that Ray installs on each node for this run.
        variables: Name -> value, for the environment of workers.
        placement: "spread" workers over nodes, or "pack" them on few.
        cpus: Ray's CPUs reserved for each worker, at least 0.01, default None: as many
            as it has threads.
        gpus: GPUs of each worker, or a fraction of one, at least 0, default None: one,
            if the cluster has GPUs that the backend can compute on.
        wait_s: Seconds to wait for room at the start of a run, and (but no less than
            120) for a replaced worker, at least 0; take minutes if an autoscaler has
            to start nodes.

    Raises:
        ConfigError: A value cannot be used.

    Example:
        >>> from shoal.clusters import Ray
        >>> Ray(placement="pack", pip=("scikit-learn",)).name
        'ray'
    """

    name: ClassVar[str] = "ray"

    address: str | None = None
    working_dir: str | None = None
    pip: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    placement: Literal["spread", "pack"] = "spread"
    cpus: float | None = None
    gpus: float | None = None
    wait_s: float = 60.0

    def __post_init__(self) -> None:
        if self.placement not in ("spread", "pack"):
            raise ConfigError(
                f"placement={self.placement!r} cannot be used. Expected 'spread' or "
                "'pack'. Leave it out to spread workers over nodes."
            )
        for name, least in (("cpus", 0.01), ("gpus", 0), ("wait_s", 0)):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float))
            if value is not None and not (is_number and least <= value < math.inf):
                raise ConfigError(
                    f"{name}={value!r} cannot be used. Expected a number of at least "
                    f"{least}. Correct it, or leave {name} out."
                )
        if isinstance(self.pip, str):
            raise ConfigError(
                f"pip={self.pip!r} cannot be used. Expected a tuple or a list. "
                f"Write pip=({self.pip!r},)."
            )

    @property
    def is_remote(self) -> bool:
        """Whether it is reached by Ray Client, from outside."""
        return (self.address or "").startswith(CLIENT)

    def jobs(self) -> RemoteJobs:
        """Returns the jobs that were sent to it.

        Raises:
            ConfigError: Ray is not installed.
        """
        require_ray()
        found: Any = import_module("shoal.clusters.ray_jobs")
        return found.RayJobs(self)

    def inside(self) -> Ray:
        """Returns the same cluster for a process that runs on one of its machines."""
        folder = None if self.working_dir is None else "."
        return replace(self, address=None, working_dir=folder)

    # -------------------------------------------------------------- looking

    def look(self, backend: str) -> MachineFacts:
        """Returns the free resources; those of this machine if no Ray runs."""
        self._refuse()
        is_gpu = reaches_gpus(backend)
        with self._joined() as ray:
            found = _here(is_gpu) if ray is None else _nodes(ray)
        nodes = tuple(node for node in found if node.cores >= 1)
        if not nodes:
            raise ClusterError(
                f"no node of the Ray cluster has a free CPU ({_listed(found)}). "
                "Expected room for one worker at least. End other programs, or add "
                "nodes: see `ray status`."
            )
        has_gpus = is_gpu and any(node.gpus for node in nodes)
        gpus = self.gpus if self.gpus is not None else float(has_gpus)
        known = [node.memory_bytes for node in nodes if node.memory_bytes]
        return MachineFacts(
            cores=min(node.cores for node in nodes),
            memory_bytes=min(known, default=0),
            nodes=nodes,
            gpus_each=gpus,
        )

    def _refuse(self) -> None:
        """Refuses addresses of clusters that this machine is not part of."""
        address = self._address() or ""
        if "://" in address:
            raise PlanError(
                f"cluster={address!r} is the address of Ray Client, from which only "
                "shoal.fit can be sent to the cluster. Expected shoal.fit, or a call "
                "on a machine of the cluster. Submit the script: ray job submit "
                "--address http://HEAD:8265 --working-dir . -- python SCRIPT, with "
                "cluster='ray' in it."
            )

    def _address(self) -> str | None:
        """Returns the address of the head; None if there is no cluster yet."""
        for found in (self.address, os.environ.get("RAY_ADDRESS")):
            if found and found not in ("auto", "local"):
                return found
        with suppress(OSError, ClusterError):
            found = _noted(LAST_RAY)
            reach(found)
            return found
        return None

    # -------------------------------------------------------------- joining

    @property
    def needs(self) -> dict[str, Any]:
        """Returns Ray's runtime environment."""
        wanted = {
            "working_dir": self.working_dir,
            "pip": list(self.pip),
            "env_vars": dict(self.variables),
        }
        return {name: value for name, value in wanted.items() if value}

    @contextmanager
    def _joined(self) -> Generator[Any]:
        """Yields Ray, connected to the cluster; None if there is none."""
        if is_connected():
            if self.needs:
                raise ConfigError(
                    f"this process is connected to Ray already, and {self.needs} "
                    "would come too late. Expected them in its own ray.init. "
                    "Pass them there, or leave ray.init to fit."
                )
            yield import_ray()
            return
        address = self._address()
        if address is None:
            yield None
            return
        reach(address)
        with ray_environment({}):
            ray = import_ray()
            yield from self._join(ray, address)

    def _join(self, ray: Any, address: str) -> Generator[Any]:
        try:
            self._connect(ray, address=address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterError(
                f"this machine cannot join the Ray cluster at {address}: "
                f"{first_line(error)}. Expected a node of that cluster: it has to be "
                "started here as well. Run `ray start --address=HEAD:6379`, or submit "
                "the script with `ray job submit`."
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()

    def _connect(self, ray: Any, **options: Any) -> None:
        with own_sigterm(), warnings.catch_warnings():
            # Ray's start forks, but executes a program at once.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(
                runtime_env=self.needs or None,
                log_to_driver=False,
                logging_level="ERROR",
                **options,
            )

    @contextmanager
    def _own(self) -> Generator[Any]:
        """Yields Ray on this machine alone, which ends with this context."""
        ray = import_with_token()
        folder = str(temporary_folder())
        if len(folder) > LONGEST_FOLDER:
            folder = "/tmp"
        folder = tempfile.mkdtemp(prefix="shoal-ray-", dir=folder)
        options = {
            "address": "local",
            "num_cpus": usable_cores(),
            "include_dashboard": False,
            "_temp_dir": folder,
        }
        try:
            with ray_environment({**token(), "RAY_USAGE_STATS_ENABLED": "0"}):
                self._connect(ray, **options)
                try:
                    yield ray
                finally:
                    ray.shutdown()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -------------------------------------------------------------- opening

    @contextmanager
    def open(self, asked: ResourceRequest) -> Generator[Allocation]:
        """Connects, reserves a bundle for each worker, and waits for room."""
        self._refuse()
        with self._joined() as joined:
            if joined is not None:
                with self._opened(joined, asked, is_own=False) as allocation:
                    yield allocation
                return
        with self._own() as ray, self._opened(ray, asked, is_own=True) as allocation:
            yield allocation

    @contextmanager
    def _opened(
        self, ray: Any, asked: ResourceRequest, *, is_own: bool
    ) -> Generator[Allocation]:
        carriers: Any = import_module("shoal.launchers.ray")
        remote: Any = import_module("shoal.launchers.remote")
        gpus = self.gpus
        if gpus is None:
            has_gpus = any(node.gpus for node in _nodes(ray))
            gpus = float(has_gpus and reaches_gpus(asked.backend))
        room = import_module("shoal.launchers.ray_bundles").Bundle(
            cpus=float(asked.threads if self.cpus is None else self.cpus),
            gpus=gpus,
            placement=self.placement.upper(),
            wait_s=self.wait_s,
            start_s=INSTALL_S if self.needs else START_S,
            backend=asked.backend,
            variables=carried(os.environ, self.variables),
        )
        group = self._set_aside(room, asked)
        host = LOOPBACK if is_own else ray.util.get_node_ip_address()

        def open_launcher(blob: SharedBlob) -> Launcher:
            carrier = carriers.RayCarrier(blob.descriptor, room, group)
            return remote.RemoteLauncher(carrier, blob, room.backend, room.variables)

        try:
            yield Allocation(
                workers=group.workers,
                host=host,
                open_launcher=open_launcher,
                growth=asked.most - group.workers,
            )
        finally:
            group.close()

    def _set_aside(self, room: Any, asked: ResourceRequest) -> Any:
        """Waits for the maximum, and takes the available part after the limit."""
        launching: Any = import_module("shoal.launchers.ray_bundles")
        group = launching.PlacementGroup(room, asked.most)
        try:
            if group.wait(CALL_S):
                return group
            with launching.asking(room, asked.most):
                if group.wait(self.wait_s):
                    return group
                group.close()
                count = min(group.workers - 1, launching.room_now(room))
                while count >= asked.least:
                    # No resource is being freed or started any more: bundles that fit,
                    # fit at once.
                    group = launching.PlacementGroup(room, count)
                    if group.wait(CALL_S):
                        return group
                    group.close()
                    count = min(count - 1, launching.room_now(room))
        except BaseException:  # mostly Ctrl-C
            group.close()
            raise
        raise ClusterError(
            f"the Ray cluster has room for {launching.room_now(room)} worker(s) of "
            f"{room.bundle}, after {self.wait_s:g} s. Expected room for {asked.least} "
            "at least. Add nodes, pass fewer workers or cpus=..., or raise wait_s of "
            "shoal.clusters.Ray if an autoscaler needs longer."
        )


def _nodes(ray: Any) -> tuple[NodeFacts, ...]:
    """Returns the free resources of live nodes, by Ray's count."""
    free: Mapping[str, Mapping[str, float]] = import_module(
        "ray._private.state"
    ).available_resources_per_node()
    return read_nodes(ray.nodes(), free)


def read_nodes(
    nodes: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]
) -> tuple[NodeFacts, ...]:
    """Reads Ray's list of nodes; dead ones are left out.

    Args:
        nodes: Result of `ray.nodes`.
        free: Id of a node -> its free resources.

    Example:
        >>> node = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.7",
        ...         "Resources": {"CPU": 8.0}}
        >>> read_nodes([node], {"a": {"CPU": 6.0}})
        (NodeFacts(name='10.0.0.7', cores=6, gpus=0, memory_bytes=0),)
    """
    found: list[NodeFacts] = []
    for node in nodes:
        if not node["Alive"]:
            continue
        whole: Mapping[str, float] = node["Resources"]
        left = free.get(node["NodeID"], whole)
        found.append(
            NodeFacts(
                name=node["NodeManagerAddress"],
                cores=int(left.get("CPU", 0)),
                gpus=int(left.get("GPU", 0)),
                memory_bytes=int(whole.get("memory", 0)),
            )
        )
    return tuple(sorted(found, key=lambda node: node.name))


def _here(is_gpu: bool) -> tuple[NodeFacts, ...]:
    """Returns this machine, of which a cluster would be made."""
    return (
        NodeFacts(
            name=LOOPBACK,
            cores=usable_cores(),
            gpus=len(usable_gpus()) if is_gpu else 0,
            memory_bytes=int(psutil.virtual_memory().available),
        ),
    )


def _listed(nodes: Sequence[NodeFacts]) -> str:
    return ", ".join(node.name for node in nodes) or "it has no nodes"


def _noted(path: Path) -> str:
    """Reads where Ray runs, if this user or the administrator wrote it.

    Other users can write there as well, and the cluster joined gets models and code.

    Raises:
        OSError: The file does not exist, or is another user's.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        if os.fstat(file.fileno()).st_uid not in (os.getuid(), 0):
            raise PermissionError(f"{path} belongs to another user")
        return file.read().strip()
