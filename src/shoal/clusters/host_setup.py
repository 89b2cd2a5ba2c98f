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
        way, pythons = self._hosts.way_to(host), self._pythons
        installation = self.installation
        if installation is not None:
            ours = f"{ENVIRONMENTS}/{installation.name}/bin/python"
            found = self._facts(way, [ours, *pythons])
            if not found["is_ready"]:
                if found["version"] != self._pins.python:
                    raise ClusterError(
                        f"Python is {found['version']} there, {self._pins.python} "
                        "here; name another one as `base` of the environment"
                    )
                self._install(host, way, installation)
                found = self._facts(way, [ours])
        else:
            found = self._facts(way, pythons)
        if lines := differences(self._pins, found):
            raise ClusterError("; ".join(lines))
        return NodeState(
            number=number,
            address=host.address,
            private=host.private or found["address"] or host.address,
            python=found["python"],
            path=found["path"],
            gpus=tuple(found["gpus"]),
        )

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
