"""Prepares a host to be a node: installs its environment, checks versions."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

from shoal.clusters.cluster_state import NodeState
from shoal.clusters.hosts_file import Host, HostsFile
from shoal.clusters.pins import Pins, differences
from shoal.clusters.remote_call import ask
from shoal.clusters.ssh import Way
from shoal.clusters.wheel import build_wheel, wheel_name
from shoal.errors import ClusterError, ConfigError

FACTS_LIMIT_S = 45.0  # loading a GPU's driver takes seconds
INSTALL_LIMIT_S = 1800.0
SPARE_S = 15.0
ENVIRONMENTS = ".shoal/environments"  # in the home directory, where ssh starts

Tell: TypeAlias = Callable[[str, str], None]
"""Called with the address of a host and its present step."""


@final
@dataclass(frozen=True, kw_only=True)
class Installation:
    """An environment, and what a host needs to install it.

    Args:
        name: Its name.
        payload: Returns wheels, as one archive.
        requirements: Requirements for pip.
        options: Options of pip.
        files: Names of wheels in the archive to install.
    """

    name: str
    payload: Callable[[], bytes]
    requirements: list[str]
    options: list[str]
    files: list[str]


@final
@dataclass(frozen=True, kw_only=True)
class HostReport:
    """What a host has that can be a node.

    Args:
        address: Its address for OpenSSH.
        private: Its address for the other hosts.
        python: Version of its Python, as "3.11".
        is_ready: Whether the environment is there; otherwise `up` installs it.
        cores: Cores that may be used.
        memory: Free bytes of memory.
        disk: Free bytes where the environment is installed.
        gpus: Number of its GPUs.
    """

    address: str
    private: str
    python: str
    is_ready: bool
    cores: int
    memory: int
    disk: int
    gpus: int


def _python_in(installation: Installation) -> str:
    """Returns the interpreter of an installed environment, from the home directory."""
    return f"{ENVIRONMENTS}/{installation.name}/bin/python"


@final
class HostSetup:
    """Prepares hosts, many at a time.

    Args:
        hosts: The user's file.
        pins: Versions for them.
        tell: Called with their progress.
    """

    def __init__(self, hosts: HostsFile, pins: Pins, tell: Tell) -> None:
        self._hosts, self._pins, self._tell = hosts, pins, tell

    @property
    def environment(self) -> str | None:
        """Returns the name of the installed environment; None for the user's own."""
        own = self._hosts.environment.python
        return None if own else f"{self._pins.digest}"

    @cached_property
    def _pythons(self) -> list[str]:
        """Returns interpreters to use before an environment is installed."""
        said = self._hosts.environment
        own = said.python or said.base
        return [own] if own else [f"python{self._pins.python}", "python3"]

    @property
    def installation(self) -> Installation | None:
        """Returns the environment for hosts; None for the user's own."""
        if self.environment is None:
            return None
        return Installation(
            name=self.environment,
            payload=lambda: self.payload,
            requirements=self._pins.requirements,
            options=["--no-index"] if self._hosts.environment.wheels else [],
            files=[wheel_name()],
        )

    @cached_property
    def payload(self) -> bytes:
        """Returns the wheels to send, as one archive."""
        held, said = io.BytesIO(), self._hosts.environment.wheels
        with tarfile.open(fileobj=held, mode="w") as archive:
            wheel = build_wheel()
            entry = tarfile.TarInfo(wheel_name())
            entry.size = len(wheel)
            archive.addfile(entry, io.BytesIO(wheel))
            for path in _wheels_in(Path(said).expanduser()) if said else []:
                archive.add(path, path.name)
        return held.getvalue()

    def prepare(self, host: Host, number: int) -> NodeState:
        """Returns the state of a node on this host.

        Raises:
            ClusterError: It cannot be a node; in a few words.
        """
        self._tell(host.address, "is being reached")
        found = self._found(host)
        installation = self.installation
        if installation is not None and not found["is_ready"]:
            way = self._hosts.way_to(host)
            self._install(host, way, installation)
            found = self._facts(way, [_python_in(installation)])
        self._compare(found)
        return NodeState(
            number=number,
            address=host.address,
            private=host.private or found["address"] or host.address,
            python=found["python"],
            path=found["path"],
            gpus=tuple(found["gpus"]),
        )

    def examine(self, host: Host) -> HostReport:
        """Returns what a host has; changes nothing on it.

        Raises:
            ClusterError: It cannot be a node; in a few words.
        """
        self._tell(host.address, "is being reached")
        found = self._found(host)
        if found["is_ready"]:
            self._compare(found)
        return HostReport(
            address=host.address,
            private=host.private or found["address"] or host.address,
            python=found["version"],
            is_ready=found["is_ready"],
            cores=found["cores"],
            memory=found["memory"],
            disk=found["disk"],
            gpus=len(found["gpus"]),
        )

    def _found(self, host: Host) -> dict[str, Any]:
        """Returns the facts of a host on which the environment is, or can be made."""
        way, installation = self._hosts.way_to(host), self.installation
        ours = [] if installation is None else [_python_in(installation)]
        found = self._facts(way, [*ours, *self._pythons])
        if not found["is_ready"] and found["version"] != self._pins.python:
            raise ClusterError(
                f"Python is {found['version']} there, {self._pins.python} "
                "here; name another one as `base` of the environment"
            )
        if not found["is_ready"] and not found["has_venv"]:
            raise ClusterError(
                "its Python makes no environments; on Debian and Ubuntu run `apt "
                "install python3-venv` there"
            )
        return found

    def _compare(self, found: Mapping[str, Any]) -> None:
        if lines := differences(self._pins, found):
            raise ClusterError("; ".join(lines))

    def _facts(self, way: Way, pythons: list[str]) -> dict[str, Any]:
        request = {
            "environment": self.environment,
            "packages": [*self._pins.packages, "tensorflow", "tensorflow-cpu"],
        }
        return ask(way, pythons, "facts", request, limit_s=FACTS_LIMIT_S)

    def _install(self, host: Host, way: Way, installation: Installation) -> None:
        self._tell(host.address, "installs its environment")
        payload = installation.payload()
        request: Mapping[str, Any] = {
            "environment": installation.name,
            "size": len(payload),
            "limit_s": INSTALL_LIMIT_S,
            "options": installation.options,
            "requirements": installation.requirements,
            "files": installation.files,
        }
        limit_s = INSTALL_LIMIT_S + SPARE_S
        ask(way, self._pythons, "install", request, limit_s=limit_s, payload=payload)


def _wheels_in(folder: Path) -> list[Path]:
    found = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if not found:
        raise ConfigError(
            f"the folder of wheels {str(folder)!r} has none. Expected what `pip "
            "download -d FOLDER` of `shoal cluster requirements` puts there. Fill it, "
            "or leave `wheels` out."
        )
    return found
