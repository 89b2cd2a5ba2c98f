"""`hosts.yaml`: the hosts, the way to reach them, and their environment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, final

from pydantic import BeforeValidator, Field, model_validator

from shoal.clusters.spec_file import ClusterSpec, SpecPart, parse_fields, validated
from shoal.clusters.ssh import SSH, Way

ADDRESS = r"^\w[\w.:%-]*$"  # no leading dash: ssh would take it for an option
RUNS = r"^(/|[a-z][a-z0-9+.-]*://)[^\s]+$"
Port = Annotated[int, Field(ge=1, le=65535)]


class Reach(SpecPart):
    """The way to reach hosts; `~/.ssh/config` has the rest.

    Args:
        user: User name on them.
        port: Port of their sshd.
        key: Path of a private key, on this machine.
        jump: Jump hosts, as for `ssh -J`.
        forward_agent: Whether programs on them can use the local agent's keys.
    """

    user: str | None = Field(None, pattern=r"^\w[\w.-]*$")
    port: Port | None = None
    key: str | None = None
    jump: str | None = Field(None, pattern=r"^\w[\w.:@%,-]*$")
    forward_agent: bool | None = None


@final
class Host(Reach):
    """A host; its own fields override those of all hosts.

    Args:
        address: Its name for OpenSSH.
        private: Its address for the other hosts; default: the one ssh connected to.
    """

    address: str = Field(pattern=ADDRESS)
    private: str | None = Field(None, pattern=ADDRESS)


def _host(value: Any) -> Any:
    """Accepts a host that is only a name."""
    return {"address": value} if isinstance(value, str) else value


@final
class Python(SpecPart):
    """The Python environment on hosts.

    Args:
        python: Interpreter of an existing, complete environment; nothing is installed.
        base: Interpreter that makes a new environment; default: python3.N like this
            one.
        packages: More packages to install, in pip's syntax.
        wheels: Folder of wheels, on this machine, for hosts without access to an index.
    """

    python: str | None = None
    base: str | None = None
    packages: tuple[str, ...] = ()
    wheels: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Python:
        if self.python and (self.base or self.packages or self.wheels):
            raise ValueError("python is of an environment that exists: it goes alone")
        return self


@final
class HostsFile(Reach, ClusterSpec):
    """The whole file.

    Args:
        hosts: Hosts; the first that can be reached is the head.
        name: Name of the cluster; default: that of the file.
        min_workers: Minimum number of hosts that must come up, the head included.
        shared: Folder that all hosts share.
        runs: Folder or URL of the runs of jobs; default: `shoal-runs` of the shared
            folder, or of the job's.
        head_trains: Whether workers of a run may be on the head.
        environment: Python environment on them.
        ray_port: Port of Ray's head; default: a free one.
        object_store_mib: Memory for Ray's objects on each host; default: 30 %.
        ssh: The command that reaches hosts.
    """

    hosts: tuple[Annotated[Host, BeforeValidator(_host)], ...] = Field(min_length=1)
    min_workers: int = Field(1, ge=1)
    shared: str | None = Field(None, pattern="^/")
    runs: str | None = Field(None, pattern=RUNS)
    head_trains: bool = True
    environment: Python = Python()
    ray_port: Port | None = None
    object_store_mib: int | None = Field(None, ge=80)
    ssh: str = shlex.join(SSH)

    @classmethod
    def expected(cls) -> str:
        """Returns which fields the file may have, for messages."""
        own = [name for name in cls.model_fields if name != "hosts"]
        each = [name for name in Host.model_fields if name not in own]
        return (
            f"`hosts`, a list of addresses or of {', '.join(each)}; beside it, or in a "
            f"host where it concerns one, {', '.join(own)}; in `environment` "
            f"{', '.join(Python.model_fields)}"
        )

    @model_validator(mode="after")
    def _can_be(self) -> HostsFile:
        if self.min_workers > len(self.hosts):
            raise ValueError(
                f"min_workers is {self.min_workers}, and hosts are {len(self.hosts)}"
            )
        if not self.head_trains and len(self.hosts) == 1:
            raise ValueError("head_trains is false, and there is no other host")
        seen = [(host.address, host.port) for host in self.hosts]
        twice = {place[0] for place in seen if seen.count(place) > 1}
        if twice:
            raise ValueError(f"hosts are listed twice: {', '.join(sorted(twice))}")
        return self

    def way_to(self, host: Host) -> Way:
        """Returns the way to reach a host."""
        said = self.model_dump(include=set(Reach.model_fields))
        own = host.model_dump(include=set(Reach.model_fields), exclude_none=True)
        both = {**said, **own}
        key = both["key"] and str(Path(both["key"]).expanduser())
        return Way(
            address=host.address, user=both["user"], port=both["port"], key=key,
            jump=both["jump"], has_agent=bool(both["forward_agent"]),
            ssh=tuple(shlex.split(self.ssh)),
        )  # fmt: skip


def parse_hosts(text: str, where: str, *, is_json: bool = False) -> HostsFile:
    r"""Reads the text of such a file.

    Args:
        text: YAML, or JSON.
        where: Name of the file, for messages.
        is_json: Whether it is JSON.

    Raises:
        ConfigError: The text is invalid.

    Example:
        >>> found = parse_hosts("user: ann\nhosts: [10.0.0.1, node-b]", "hosts.yaml")
        >>> [host.address for host in found.hosts], found.user
        (['10.0.0.1', 'node-b'], 'ann')
    """
    fields, lines = parse_fields(text, where, is_json=is_json)
    return validated(HostsFile, fields, where, lines)
