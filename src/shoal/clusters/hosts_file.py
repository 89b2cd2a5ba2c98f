"""`hosts.yaml`: which hosts there are, how they are reached, what they run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from shoal.clusters.ssh import SSH, Way
from shoal.clusters.yaml_text import MOST_CHARACTERS, Lines, read_yaml
from shoal.errors import ConfigError

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"
ADDRESS = r"^\w[\w.:%-]*$"  # begins with no dash: ssh would take it for an option
Port = Annotated[int, Field(ge=1, le=65535)]


class _Part(BaseModel):
    """What all parts of the file have in common: no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reach(_Part):
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
class Python(_Part):
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
class HostsFile(Reach):
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
    name: str = Field("", pattern=rf"{NAME}|^$")
    min_workers: int = Field(1, ge=1)
    shared: str | None = Field(None, pattern="^/")
    environment: Python = Python()
    ray_port: Port | None = None
    object_store_mib: int | None = Field(None, ge=80)
    ssh: str = shlex.join(SSH)

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


def read_hosts_file(path: Path) -> HostsFile:
    """Reads hosts.yaml, or the same as JSON.

    Raises:
        ConfigError: There is none, or it says what it cannot say; with the line.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the file of hosts cannot be read: {error}. Expected YAML, in the least "
            "`hosts: [10.0.0.1, 10.0.0.2]`, the head first. Name such a file."
        ) from error
    found = parse_hosts(text, str(path), is_json=path.suffix == ".json")
    name = found.name or path.stem
    if not re.match(NAME, name):
        raise ConfigError(
            f"a cluster cannot be called {name!r}, as the file is. Expected at most 32 "
            "letters, digits, - and _. Give it a `name`."
        )
    return found.model_copy(update={"name": name})


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
    value, lines = _from_json(text, where) if is_json else _from_yaml(text, where)
    if not isinstance(value, dict):
        raise _wrong(where, "it holds no fields")
    try:
        return HostsFile.model_validate(value)
    except ValidationError as error:
        said = [
            f"{_line_of(one['loc'], lines)}{_field(one['loc'])}: "
            f"{one['msg'].removeprefix('Value error, ')}"
            for one in error.errors()
        ]
        raise _wrong(where, "; ".join(said)) from error


def _wrong(where: str, what: str) -> ConfigError:
    own = [name for name in HostsFile.model_fields if name != "hosts"]
    each = [name for name in Host.model_fields if name not in own]
    return ConfigError(
        f"{where}: {what}. Expected `hosts`, a list of addresses or of "
        f"{', '.join(each)}; beside it, or in a host where it concerns one, "
        f"{', '.join(own)}; in `environment` {', '.join(Python.model_fields)}. "
        "Correct the file; nothing was started."
    )


def _from_json(text: str, where: str) -> tuple[Any, Lines]:
    try:
        return json.loads(text), {}
    except (ValueError, RecursionError) as error:
        raise _wrong(where, f"it is no JSON: {error}") from error


def _from_yaml(text: str, where: str) -> tuple[Any, Lines]:
    try:
        return read_yaml(text)
    except ImportError as error:
        raise ConfigError(
            f"{where} is YAML, and PyYAML is not installed. Expected it, or a file of "
            "JSON. Run: pip install 'shoal[cluster]'."
        ) from error
    except ValueError as error:
        raise _wrong(where, str(error)) from error


def _line_of(place: Sequence[Any], lines: Lines) -> str:
    """The line of a field, or of what it is missing in."""
    for end in range(len(place), 0, -1):
        if tuple(place[:end]) in lines:
            return f"line {lines[tuple(place[:end])]}, "
    return ""


def _field(place: Sequence[Any]) -> str:
    """A field as people write it.

    Example:
        >>> _field(("hosts", 1, "port"))
        'hosts[1].port'
    """
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
    return text.lstrip(".") or "the file"
