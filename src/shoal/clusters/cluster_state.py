"""State of clusters that are up: one file each, for later sessions."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, model_validator

from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.spec_file import ClusterSpec
from shoal.clusters.ssh import SSH, Way
from shoal.errors import ClusterError, ConfigError
from shoal.paths import fault_of, one_inside
from shoal.registry import did_you_mean

LOCK_LIMIT_S = 10.0
VERSION = 2
RUNS_FOLDER = "shoal-runs"


@final
class NodeState(BaseModel):
    """A host that is, or was, a node of a cluster.

    Args:
        number: Its permanent number in the cluster.
        address: Its name for OpenSSH.
        private: Its address for the other hosts.
        python: Its Python interpreter.
        path: Its PATH under ssh.
        gpus: Its GPUs.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    address: str
    private: str = ""
    python: str = ""
    path: str = ""
    gpus: tuple[str, ...] = ()


@final
class ClusterState(BaseModel):
    """A cluster: its wanted and its present state.

    Args:
        version: Version of this format.
        name: Name of the cluster.
        id: Unique id, independent of the name.
        created: Seconds since 1970.
        token: Token that Ray requires.
        backend: Keras backend of its hosts.
        environment: Name of the environment that was installed; None for the user's.
        port: Port of Ray's head.
        nodes: Nodes, the head first.
        provider: Name of the provider of its machines.
        spec: The file's fields for the provider, in the last `up` that reached hosts.
        facts: Facts that the provider noted about its resources.
        hosts: Hosts from the provider; None before it has returned any.
    """

    model_config = ConfigDict(frozen=True)

    version: int = VERSION
    name: str
    id: str
    created: float
    token: str
    backend: str
    environment: str | None = None
    port: int | None = None
    nodes: tuple[NodeState, ...] = ()
    provider: str
    spec: Mapping[str, JsonValue]
    facts: Mapping[str, JsonValue] = {}
    hosts: HostsFile | None = None

    @classmethod
    def new(cls, provider: str, spec: ClusterSpec, backend: str) -> ClusterState:
        """Returns the state of a new cluster."""
        return cls(
            name=spec.name, id=secrets.token_hex(4), created=time.time(),
            token=secrets.token_hex(32), backend=backend, provider=provider,
            spec=spec.model_dump(mode="json"),
        )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _of_this_form(cls, fields: Any) -> Any:
        """Reads form 1, which had only the user's own hosts."""
        if not isinstance(fields, dict):
            return fields
        version = fields.get("version")
        if version == 1:
            more = {"provider": "hosts", "spec": fields.get("hosts")}
            return {**fields, **more, "version": VERSION}
        if isinstance(version, int) and version > VERSION:
            raise ValueError(
                f"it has form {version}, and this Shoal knows {VERSION} at most"
            )
        return fields

    @property
    def head(self) -> NodeState:
        """Returns the node that the others connect to.

        Raises:
            ClusterError: There is no node yet.
        """
        if not self.nodes:
            raise ClusterError(
                f"the cluster {self.name} has no node: its `shoal cluster up` ended "
                "before it made one. Expected a cluster that is up. Run it again, "
                f"or `shoal cluster down {self.name}`."
            )
        return self.nodes[0]

    @property
    def address(self) -> str:
        """Returns Ray's address for the hosts."""
        return f"{self.head.private}:{self.port}"

    @property
    def shared(self) -> str | None:
        """Returns the folder that all hosts share."""
        return None if self.hosts is None else self.hosts.shared

    @property
    def runs(self) -> str | None:
        """Returns the folder or URL of the runs of jobs; None for that of each job."""
        if self.hosts is not None and self.hosts.runs:
            return self.hosts.runs
        return None if self.shared is None else f"{self.shared}/{RUNS_FOLDER}"

    @property
    def trainers(self) -> tuple[NodeState, ...]:
        """Returns the nodes on which workers of a run may be."""
        leaves_out = self.hosts is not None and not self.hosts.head_trains
        return self.nodes[1:] if leaves_out else self.nodes

    @property
    def ssh(self) -> tuple[str, ...]:
        """Returns the command that reaches hosts."""
        return SSH if self.hosts is None else tuple(shlex.split(self.hosts.ssh))

    def mark_of(self, node: NodeState) -> str:
        """Returns the mark of all processes of a node."""
        return f"{self.id}-{node.number}"

    def way_to(self, node: NodeState) -> Way:
        """Returns the way to reach a node."""
        if self.hosts is not None:
            for host in self.hosts.hosts:
                if host.address == node.address:
                    return self.hosts.way_to(host)
        raise ClusterError(f"{node.address} is not a host of {self.name}")

    def find(self, said: str) -> NodeState:
        """Finds a node by number, or by one of its addresses.

        Raises:
            ConfigError: There is no such node.
        """
        for node in self.nodes:
            if said in (str(node.number), node.address, node.private):
                return node
        known = ", ".join(f"{node.number} {node.address}" for node in self.nodes)
        raise ConfigError(
            f"{said!r} is not a host of cluster {self.name}. Expected a number or an "
            f"address. Known: {known}."
        )


@final
class ClusterStore:
    """The folder of these files.

    Args:
        folder: Path; made when something is written.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()

    @property
    def folder(self) -> Path:
        """Returns the folder."""
        return self._folder

    def names(self) -> list[str]:
        """Returns the names of all clusters with a file."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def read(self, name: str) -> ClusterState | None:
        """Returns the state of a cluster, None if it is unknown.

        Raises:
            ClusterError: The file belongs to another user, or is broken.
        """
        if fault_of(name) or "/" in name:  # no known cluster has such a name
            return None
        path = self._path(name)
        try:
            found = ClusterState.model_validate_json(path.read_bytes())
            if found.name != name:
                raise OSError(f"it is of a cluster called {found.name!r}")
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise ClusterError(
                f"the state of the cluster {name} cannot be read from {path}: "
                f"{_why(error)}. Expected a file that `shoal cluster "
                "up` wrote. Remove it, then `shoal cluster down NAME --hosts "
                "hosts.yaml` ends what still runs."
            ) from error

    def get(self, name: str) -> ClusterState:
        """Returns the state of a cluster.

        Raises:
            ConfigError: The cluster is unknown.
        """
        found = self.read(name)
        if found is None:
            raise ConfigError(
                f"{did_you_mean('cluster', name, self.names())} Expected one that has "
                f"a file in {self._folder}. Bring one up: shoal cluster up hosts.yaml."
            )
        return found

    def seen(self, name: str) -> float:
        """Returns when the state of a known cluster was written, seconds since 1970."""
        return self._path(name).stat().st_mtime

    def write(self, state: ClusterState) -> None:
        """Writes a state atomically, to a private file."""
        path = self._path(state.name)
        new = path.with_suffix(f".{os.getpid()}.new")
        text = json.dumps(state.model_dump(mode="json"), indent=2)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        new.replace(path)

    def remove(self, name: str) -> None:
        """Removes the state of a cluster."""
        self._path(name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, name: str, limit_s: float | None = None) -> Generator[None]:
        """Prevents other processes from changing a cluster at the same time.

        Args:
            name: Name of the cluster.
            limit_s: Seconds to wait for another process; default ten.

        Raises:
            ClusterError: Another process is changing it.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = one_inside(self._folder, f".{name}.lock")
        with path.open("w") as file:
            limit_s = LOCK_LIMIT_S if limit_s is None else limit_s
            until = time.monotonic() + limit_s
            while not _locked(file.fileno()):
                if time.monotonic() > until:
                    raise ClusterError(
                        f"the cluster {name} is being changed by another process: it "
                        f"holds {path}. Expected one `up` or `down` of a cluster at a "
                        "time. Wait until the other one has ended."
                    )
                time.sleep(0.05)
            yield

    def _path(self, name: str) -> Path:
        return one_inside(self._folder, f"{name}.json")


def _why(error: OSError | ValidationError) -> str:
    """Returns the fault of a file, in a line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"][:1])
        return where + first["msg"].removeprefix("Value error, ")
    return str(error).splitlines()[0]


def _locked(descriptor: int) -> bool:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
