"""How a host is reached: words for the system's OpenSSH, whose config counts. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
       "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2")  # fmt: skip
"""A host that is gone is noticed within ten seconds; nobody is asked for a password."""


@final
@dataclass(frozen=True, kw_only=True)
class Way:
    """The way to a host; what is not said, `~/.ssh/config` says.

    Args:
        address: Its name for OpenSSH.
        user: That it knows us by.
        port: Of its sshd.
        key: Path of a private key, here.
        jump: Hosts to go through, as of `ssh -J`.
        has_agent: Our agent is there, too: programs on the host can use its keys.
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
        """The command that reaches it, up to its name."""
        return (*self.ssh, *self.options, self.address)


def over(words: Sequence[str], command: Sequence[str]) -> list[str]:
    """Words that run a command on a host.

    Args:
        words: Those that reach it.
        command: To run there; its words arrive as they are.

    Example:
        >>> over(["ssh", "b"], ["echo", "a b"])
        ['ssh', 'b', "exec echo 'a b'"]
    """
    return [*words, f"exec {shlex.join(command)}"]
