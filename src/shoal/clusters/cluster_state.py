"""What is known of clusters that are up: one file each, for later sessions."""

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


@final
class NodeState(BaseModel):
    """A host that is, or was, a node of a cluster.

    Args:
        number: Its own among those of the cluster, for good.
        address: Its name for OpenSSH.
        private: That the other hosts know it by.
        python: Its interpreter.
        path: Of the PATH that ssh gives there.
        gpus: Found on it.
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
    """A cluster: what it is to be, and what it is.

    Args:
        version: Of this form.
        name: Of the cluster.
        id: Of its own, whatever its name.
        created: Seconds since 1970.
        token: That Ray asks for.
        backend: Of Keras, that its hosts have.
        environment: Name of the environment that was installed; None for the user's.
        port: Of Ray's head.
        nodes: The head first.
        provider: Name of the provider of its machines.
        spec: What the file said to the provider, in the last `up` that came to hosts.
        facts: What the provider has noted of what it made.
        hosts: What the provider gave; None before it has given any.
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
        """A cluster that is to be."""
        return cls(
            name=spec.name, id=secrets.token_hex(4), created=time.time(),
            token=secrets.token_hex(32), backend=backend, provider=provider,
            spec=spec.model_dump(mode="json"),
        )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _of_this_form(cls, fields: Any) -> Any:
        """Reads form 1, which had hosts of one's own only."""
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
        """The node that the others follow.

        Raises:
            ClusterError: There is no node yet.
        """
        if not self.nodes:
            raise ClusterError(
                f"the cluster {self.name} has no node: its `up` did not come so far. "
                "Expected one that is up. Run `shoal cluster up` with its file again, "
                f"or `shoal cluster down {self.name}`."
            )
        return self.nodes[0]

    @property
    def address(self) -> str:
        """Of Ray, on the hosts."""
        return f"{self.head.private}:{self.port}"

    @property
    def shared(self) -> str | None:
        """Folder that all hosts share."""
        return None if self.hosts is None else self.hosts.shared

    @property
    def ssh(self) -> tuple[str, ...]:
        """The command that reaches hosts."""
        return SSH if self.hosts is None else tuple(shlex.split(self.hosts.ssh))

    def mark_of(self, node: NodeState) -> str:
        """What all processes of a node carry."""
        return f"{self.id}-{node.number}"

    def way_to(self, node: NodeState) -> Way:
        """How a node is reached."""
        if self.hosts is not None:
            for host in self.hosts.hosts:
                if host.address == node.address:
                    return self.hosts.way_to(host)
        raise ClusterError(f"{node.address} is no host of {self.name}")

    def find(self, said: str) -> NodeState:
        """A node by number, or by one of its addresses.

        Raises:
            ConfigError: There is none.
        """
        for node in self.nodes:
            if said in (str(node.number), node.address, node.private):
                return node
        known = ", ".join(f"{node.number} {node.address}" for node in self.nodes)
        raise ConfigError(
            f"{said!r} is no host of the cluster {self.name}. Expected a number or an "
            f"address. Known: {known}."
        )


@final
class ClusterStore:
    """The folder of these files.

    Args:
        folder: Where; made when something is written.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()

    def names(self) -> list[str]:
        """Of all clusters there are files of."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def read(self, name: str) -> ClusterState | None:
        """What is known of a cluster, None for nothing.

        Raises:
            ClusterError: The file is not ours, or broken.
        """
        if fault_of(name) or "/" in name:  # what has such a name is not known
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
                f"what is known of the cluster {name} cannot be read from {path}: "
                f"{_why(error)}. Expected a file that `shoal cluster "
                "up` wrote. Remove it, then `shoal cluster down NAME --hosts "
                "hosts.yaml` ends what still runs."
            ) from error

    def get(self, name: str) -> ClusterState:
        """What is known of a cluster.

        Raises:
            ConfigError: Nothing is.
        """
        found = self.read(name)
        if found is None:
            raise ConfigError(
                f"{did_you_mean('cluster', name, self.names())} Expected one that has "
                f"a file in {self._folder}. Bring one up: shoal cluster up hosts.yaml."
            )
        return found

    def write(self, state: ClusterState) -> None:
        """Keeps what is known: the file is the old or the new one, and only ours."""
        path = self._path(state.name)
        new = path.with_suffix(f".{os.getpid()}.new")
        text = json.dumps(state.model_dump(mode="json"), indent=2)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        new.replace(path)

    def remove(self, name: str) -> None:
        """Forgets a cluster."""
        self._path(name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, name: str) -> Generator[None]:
        """Keeps others from changing a cluster at the same time.

        Raises:
            ClusterError: Somebody else does.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = one_inside(self._folder, f".{name}.lock")
        with path.open("w") as file:
            until = time.monotonic() + LOCK_LIMIT_S
            while not _locked(file.fileno()):
                if time.monotonic() > until:
                    raise ClusterError(
                        f"the cluster {name} is being changed by another process: it "
                        f"has {path}. Expected to be alone. Wait until it is done."
                    )
                time.sleep(0.05)
            yield

    def _path(self, name: str) -> Path:
        return one_inside(self._folder, f"{name}.json")


def _why(error: OSError | ValidationError) -> str:
    """What is wrong with a file, in a line."""
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
