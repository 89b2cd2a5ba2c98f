"""The versions that a host should have: those of this machine."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, final

from shoal.backends import BACKENDS
from shoal.clusters.host_agent.environments import code_digest, package_version
from shoal.errors import ConfigError

ALWAYS = ("keras", "numpy", "ray", "cryptography")
BACKEND_PACKAGES = {
    "jax": ("jax", "jaxlib", "filelock"),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "torch": ("torch",),
}
MUST_EQUAL = ("shoal", "keras", "ray", *BACKENDS)
STORAGE = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs",
    "abfss": "adlfs", "az": "adlfs",
}  # fmt: skip
"""Protocols of URLs of runs, and the package that hosts need for them."""
TWINS = {"tensorflow-cpu": "tensorflow"}
"""Packages that differ only in the hardware they compute on."""
EXTRAS = {"ray": "ray[default]"}
"""Extras of a package in the environment: Ray needs them to ship folders."""


@final
@dataclass(frozen=True, kw_only=True)
class Pins:
    """Versions for every host of a cluster.

    Args:
        python: Version of Python, as "3.11".
        packages: Name -> version.
        code: Digest of Shoal's files.
        more: More requirements in pip's syntax, in place of a package of that name.
    """

    python: str
    packages: Mapping[str, str]
    code: str
    more: tuple[str, ...] = ()

    @property
    def requirements(self) -> list[str]:
        """Returns the requirements for pip, without Shoal itself: it comes as a wheel.

        Example:
            >>> Pins(python="3.11", packages={"ray": "2.60.0"}, code="").requirements
            ['ray[default]==2.60.0']
        """
        own = {_twin(re.split(r"[^\w.-]", word)[0]) for word in (*self.more, "shoal")}
        pinned = [
            f"{EXTRAS.get(name, name)}=={version}"
            for name, version in sorted(self.packages.items())
            if _twin(name) not in own
        ]
        return [*pinned, *self.more]

    @property
    def digest(self) -> str:
        """Returns a name for the environment that has them."""
        told = "\n".join([self.python, self.code, *self.requirements])
        return hashlib.sha256(told.encode()).hexdigest()[:12]


def needs_of_shoal() -> list[str]:
    """Returns Shoal's own requirements, for any backend, in pip's syntax.

    Example:
        >>> any(line.startswith("keras") for line in needs_of_shoal())
        True
    """
    lines = metadata.requires("shoal") or []
    return [line for line in lines if "extra ==" not in line]


def _twin(name: str) -> str:
    return TWINS.get(name, name)


def storage_of(runs: str | None) -> tuple[str, ...]:
    """Returns the packages that reach runs at a URL.

    Args:
        runs: Folder or URL; None for a folder.

    Raises:
        ConfigError: One is not installed on this machine.
    """
    name = STORAGE.get((runs or "").partition("://")[0])
    if name is None:
        return ()
    if not package_version(name):
        raise ConfigError(
            f"{name} is not installed on this machine, and the runs of the cluster are "
            f"at {runs}. Expected it here, to read them, as on the hosts. "
            f"Run: pip install {name}."
        )
    return (name,)


def pins_here(backend: str, more: Sequence[str] = (), runs: str | None = None) -> Pins:
    """Returns the versions that are installed on this machine.

    Args:
        backend: Name of the Keras backend.
        more: More requirements for hosts, in pip's syntax.
        runs: Folder or URL of the runs of jobs.

    Raises:
        ConfigError: Ray, the backend, or what reaches the runs, is not installed.
    """
    wanted = ("shoal", *ALWAYS, *BACKEND_PACKAGES.get(backend, ()), *storage_of(runs))
    packages = {name: found for name in wanted if (found := package_version(name))}
    has_backend = any(_twin(name) == backend for name in packages)
    for name, is_there in (("ray", "ray" in packages), (backend, has_backend)):
        if not is_there:
            raise ConfigError(
                f"{name} is not installed on this machine. Expected it here, as hosts "
                "get the versions that this machine has. "
                f"Run: pip install 'shoal[cluster,{name}]'."
            )
    return Pins(
        python=".".join(map(str, sys.version_info[:2])),
        packages=packages,
        code=code_digest(),
        more=tuple(more),
    )


def differences(pins: Pins, found: Mapping[str, Any]) -> list[str]:
    """Returns what differs on a host from this machine; empty if it fits.

    Args:
        pins: Versions of this machine.
        found: The `facts` of the host.

    Example:
        >>> pins = Pins(python="3.11", packages={"ray": "2.60.0"}, code="")
        >>> differences(pins, {"version": "3.12", "packages": {"ray": ""}, "code": ""})
        ['Python is 3.12 there, 3.11 here', 'ray is not there, 2.60.0 here']
    """
    lines: list[str] = []
    installed = {_twin(name): one for name, one in found["packages"].items() if one}
    if found["version"] != pins.python:
        lines.append(f"Python is {found['version']} there, {pins.python} here")
    for name, version in pins.packages.items():
        there = installed.get(_twin(name), "")
        if _twin(name) in MUST_EQUAL and there != version:
            told = f"is {there} there" if there else "is not there"
            lines.append(f"{name} {told}, {version} here")
    if not lines and found["code"] != pins.code:
        lines.append("shoal has the same version there, but other code than here")
    return lines
