"""The interface of a launcher: it starts processes, watches them, and ends them.

This file decides which operations the controller may use, on this
machine or on many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

BACKLOG = 512  # connections that wait until a server accepts them


@dataclass(frozen=True, kw_only=True)
class Preload:
    """Modules that a process imports before it knows its work.

    Args:
        modules: Modules by name.
        without: Modules that those import if they can and no worker needs; they count
            as not installed until everything is imported.
        later: Modules that those import and few need; they are loaded on first use.
    """

    modules: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Role:
    """A process to start.

    Args:
        target: "module:function" that takes the one argument of `give`.
        name: Name for logs and messages, such as "worker-0".
        preload: Modules to import while the argument is being made.
        environment: Variables on top of the launcher's own.
        threads: Compute threads of the process.
        log: File of its output; None for a file without a name.
        inherits: Descriptors that only this process shares.
        is_patient: Whether it waits for room without a limit, and no process waits for
            it.
        title: Title in `ps` until it has a role; default "": its name.
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
        name: Name of its role.
        code: Its exit status, negative for a signal.
        reason: Reason in words, such as "killed by SIGKILL".
        output: The last lines of its output.
        is_lost: Its node or its agent was lost, so that nobody saw how it ended.
    """

    name: str
    code: int
    reason: str
    output: str = ""
    is_lost: bool = False


@final
@dataclass(kw_only=True, eq=False)
class NodeSocket:
    """A listening socket on another node, which its agent holds as long as it lives.

    Args:
        node: Name of the node, for people.
        node_id: Id of the node in its engine.
        host: Address of the node at which it listens.
        port: Its port, 0 until the agent has reported it.
        descriptor: Number of its descriptor in processes that inherit it.
        lost: Reason why it cannot be used any more; "" while it can.
    """

    node: str
    node_id: str
    host: str = ""
    port: int = 0
    descriptor: int = -1
    lost: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Its address, once it is settled and not lost."""
        return self.host, self.port

    @property
    def is_settled(self) -> bool:
        """Whether its address is known, or that it has none."""
        return bool(self.port or self.lost)


class Launcher(ABC):
    """Starts processes somewhere. Owns them: `close` ends every one.

    No method waits for another machine: `poll` reports what takes time.
    """

    _echo: Callable[[str, str], None] | None = None

    def echo(self, tell: Callable[[str, str], None] | None) -> None:
        """Reports each line of output from now on, during `poll`.

        Args:
            tell: Called with the name of the process's role and the line, None for no
                reports.
        """
        self._echo = tell

    @abstractmethod
    def start(self, role: Role) -> str:
        """Starts a process; returns a token that identifies it from now on."""

    @abstractmethod
    def give(self, token: str, argument: Any, log: Path | None = None) -> None:
        """Sends the argument of `target`; a process may be given several, one by one.

        Args:
            token: Token of the process.
            argument: Value that cloudpickle can pickle.
            log: File of its output from now on, None to keep the present one.
        """

    @abstractmethod
    def poll(self) -> dict[str, Exit]:
        """Returns the processes that ended since the last call, by token."""

    @abstractmethod
    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends one process, by force after `grace_s` seconds."""

    @abstractmethod
    def rename(self, token: str, name: str) -> None:
        """Gives a process another role's name; its settings stay."""

    @abstractmethod
    def prune(self, kept: Collection[str]) -> set[str]:
        """Ends and forgets all processes but some; returns the live ones of those."""

    def is_waiting(self, token: str) -> bool:
        """Whether a process has not begun, because no machine has room for it yet."""
        del token
        return False

    def spent_s(self, token: str) -> float | None:
        """Returns the processor time that a process has used, None if unknown."""
        del token
        return None

    @property
    def is_settled(self) -> bool:
        """Whether every process that is not patient has room, or has ended."""
        return True

    def nodes(self) -> Sequence[str]:
        """Returns ids of the other nodes that can hold a listening socket now."""
        return ()

    def listen(self, node_id: str, host: str) -> NodeSocket:
        """Requests a listening socket on another node; `poll` fills in its address.

        Args:
            node_id: One of `nodes()`.
            host: Address of this machine for the nodes. Where it is a loopback address,
                the socket has one as well.
        """
        raise NotImplementedError(f"no socket of {type(self).__name__} is elsewhere")

    def start_at(self, socket: NodeSocket, role: Role) -> str:
        """Starts a process on the node of a socket, which it inherits."""
        raise NotImplementedError(f"no socket of {type(self).__name__} is elsewhere")

    def share(self) -> None:  # noqa: B027 - nothing to do if all map one file
        """Sends the complete memory that processes inherit to all machines."""

    @abstractmethod
    def close(self, grace_s: float = 0.0) -> None:
        """Ends every process, by force after `grace_s` seconds, and frees all."""
