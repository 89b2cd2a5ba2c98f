"""`hosts.yaml`: which hosts there are, how they are reached, what they run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, final

from pydantic import BeforeValidator, Field, model_validator

from shoal.clusters.spec_file import ClusterSpec, SpecPart, parse_fields, validated
from shoal.clusters.ssh import SSH, Way

ADDRESS = r"^\w[\w.:%-]*$"  # begins with no dash: ssh would take it for an option
Port = Annotated[int, Field(ge=1, le=65535)]


class Reach(SpecPart):
    """How hosts are reached; what is not said, `~/.ssh/config` says.

    Args:
        user: That they know us by.
        port: Of their sshd.
        key: Path of a private key, here.
        jump: Hosts to go through, as of `ssh -J`.
        forward_agent: Programs on them can use the keys of our agent.
    """

    user: str | None = Field(None, pattern=r"^\w[\w.-]*$")
    port: Port | None = None
    key: str | None = None
    jump: str | None = Field(None, pattern=r"^\w[\w.:@%,-]*$")
    forward_agent: bool | None = None


@final
class Host(Reach):
    """A host; what it says about its reach counts before what all have.

    Args:
        address: Its name for OpenSSH.
        private: That the other hosts know it by; by itself the one ssh came in at.
    """

    address: str = Field(pattern=ADDRESS)
    private: str | None = Field(None, pattern=ADDRESS)


def _host(value: Any) -> Any:
    """A host that is only a name."""
    return {"address": value} if isinstance(value, str) else value


@final
class Python(SpecPart):
    """The environment of Python on hosts.

    Args:
        python: Of one that exists there and has all; nothing is installed then.
        base: That a new environment is made with; by itself python3.N like this one.
        packages: What else to install, as pip takes it.
        wheels: Folder of wheels, here, for hosts without a way to an index.
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
        hosts: The first that is reached is the head.
        name: Of the cluster; by itself that of the file.
        min_workers: Hosts that must come up, the head included.
        shared: Folder that all hosts share.
        environment: Of Python on them.
        ray_port: Of Ray's head; by itself one that is free.
        object_store_mib: Memory that Ray takes for objects on each; by itself 30 %.
        ssh: The command that reaches hosts.
    """

    hosts: tuple[Annotated[Host, BeforeValidator(_host)], ...] = Field(min_length=1)
    min_workers: int = Field(1, ge=1)
    shared: str | None = Field(None, pattern="^/")
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
        seen = [(host.address, host.port) for host in self.hosts]
        twice = {place[0] for place in seen if seen.count(place) > 1}
        if twice:
            raise ValueError(f"hosts are there twice: {', '.join(sorted(twice))}")
        return self

    def way_to(self, host: Host) -> Way:
        """How a host is reached."""
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
        where: The file's name, for messages.
        is_json: Which of both it is.

    Raises:
        ConfigError: It says what it cannot say.

    Example:
        >>> found = parse_hosts("user: ann\nhosts: [10.0.0.1, node-b]", "hosts.yaml")
        >>> [host.address for host in found.hosts], found.user
        (['10.0.0.1', 'node-b'], 'ann')
    """
    fields, lines = parse_fields(text, where, is_json=is_json)
    return validated(HostsFile, fields, where, lines)
