"""What a launcher is: it starts processes, watches them, and ends them.

This file decides what the controller may ask of whatever starts processes: this
machine, or Ray on many, by the same few verbs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Preload:
    """What a process imports before it knows its work.

    Args:
        modules: By name.
        without: Modules that those import if they can and nobody needs; they count as
            not installed until everything is imported.
        later: Modules that those import and few need; they are loaded when first used.
    """

    modules: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Role:
    """A process to start.

    Args:
        target: "module:function" that takes the one argument sent by `give`.
        name: For logs and messages, such as "worker-0".
        preload: What to import while the argument is still being made.
        environment: Variables on top of the launcher's own.
        threads: Compute threads of the process.
        log: Where its output goes; None for a file without a name.
        inherits: Descriptors that it shares, and others do not.
        is_patient: It waits for room as long as that takes, and nobody waits for it.
        title: What `ps` shows until it has a part; default "": its name.
    """

    target: str
    name: str
    preload: Preload = Preload()
    environment: Mapping[str, str] | None = None
    threads: int = 1
    log: Path | None = None
    inherits: tuple[int, ...] = ()
    is_patient: bool = False
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """A process that has ended.

    Args:
        name: Of its role.
        code: Its exit status, negative for a signal.
        reason: In words, such as "killed by SIGKILL".
        output: The last lines it wrote.
    """

    name: str
    code: int
    reason: str
    output: str = ""


class Launcher(ABC):
    """Starts processes somewhere. Owns them: `close` ends every one.

    No verb waits for another machine: what takes time is told by `poll`.

    Attributes:
        echo: Called with the name of a role and each line its process writes, when
            they are looked after; None for nobody.
    """

    echo: Callable[[str, str], None] | None = None

    @abstractmethod
    def start(self, role: Role) -> str:
        """Starts a process; returns a token that names it from now on."""

    @abstractmethod
    def give(self, token: str, argument: Any, log: Path | None = None) -> None:
        """Sends the argument of `target`; a process may be given several, in turn.

        Args:
            token: Of the process.
            argument: Goes through cloudpickle.
            log: Where its output goes from now on, None to leave it.
        """

    @abstractmethod
    def poll(self) -> dict[str, Exit]:
        """Returns the processes that ended since the last call, by token."""

    @abstractmethod
    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends one process, by force after `grace_s` seconds."""

    @abstractmethod
    def rename(self, token: str, name: str) -> None:
        """A process plays another role from now on, with what it was started with."""

    @abstractmethod
    def prune(self, kept: Collection[str]) -> set[str]:
        """Ends and forgets all processes but some; returns those of them that live."""

    def is_waiting(self, token: str) -> bool:
        """Whether a process has not begun, as no machine has room for it yet."""
        del token
        return False

    def share(self) -> None:  # noqa: B027 - nothing to do where all map one file
        """The memory that processes inherit is complete: all machines get it now."""

    @abstractmethod
    def close(self, grace_s: float = 0.0) -> None:
        """Ends every process, by force after `grace_s` seconds, and frees all."""
