"""Words for the system's OpenSSH, which also reads its own config. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
       "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2")  # fmt: skip
"""A lost host is noticed within ten seconds; ssh never asks for a password."""


@final
@dataclass(frozen=True, kw_only=True)
class Way:
    """The way to a host; `~/.ssh/config` has the rest.

    Args:
        address: Its name for OpenSSH.
        user: User name on it.
        port: Port of its sshd.
        key: Path of a private key, on this machine.
        jump: Jump hosts, as for `ssh -J`.
        has_agent: Whether programs on the host can use the local agent's keys.
        ssh: The command that reaches hosts.
    """

    address: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    jump: str | None = None
    has_agent: bool = False
    ssh: tuple[str, ...] = SSH

    @property
    def options(self) -> tuple[str, ...]:
        """Options of ssh for this host alone.

        Example:
            >>> Way(address="b", user="ann", port=2222).options
            ('-l', 'ann', '-p', '2222')
        """
        given = (
            ("-l", self.user),
            ("-p", self.port),
            ("-i", self.key),
            ("-J", self.jump),
        )
        words = [
            word for option, value in given if value for word in (option, str(value))
        ]
        return (*words, *(["-A"] if self.has_agent else []))

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the command that reaches it, including its name."""
        return (*self.ssh, *self.options, self.address)


def over(words: Sequence[str], command: Sequence[str]) -> list[str]:
    """Returns words that run a command on a host.

    Args:
        words: Words that reach it.
        command: Command there; its words arrive unchanged.

    Example:
        >>> over(["ssh", "b"], ["echo", "a b"])
        ['ssh', 'b', "exec echo 'a b'"]
    """
    return [*words, f"exec {shlex.join(command)}"]
