"""The agent of a worker's process on another machine, for a remote launcher.

An agent runs beside the process: it starts it, reads its lines and its end, and ends
it. A server may run beside the worker: the agent holds its listening socket, so that
another process can follow at the same address. The agent does not depend on Ray, which
only carries its calls.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from shoal.launchers.base import BACKLOG, Exit, Role
from shoal.launchers.process import ProcessLauncher
from shoal.launchers.shared import SharedBlob

BEAT_S = 1.0  # longest time between two reports
LOOK_S = 0.03
MOST_CHARACTERS = 1 << 15  # of lines in one report: larger ones take a slower path
MOST_LINE = 1 << 15


@final
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Location of a run's data on a machine.

    Args:
        pid: Id of a process that has it open.
        descriptor: Number of its descriptor there.
        mark: Distinguishes it from another file under that descriptor.
    """

    pid: int
    descriptor: int
    mark: tuple[int, int]

    @classmethod
    def of(cls, blob: SharedBlob) -> Memory:
        """Returns the location in this process."""
        return cls(
            pid=os.getpid(),
            descriptor=blob.descriptor,
            mark=_mark(blob.descriptor),
        )

    def open(self) -> int | None:
        """Opens it as well; returns None if this process cannot see it."""
        try:
            found = os.open(f"/proc/{self.pid}/fd/{self.descriptor}", os.O_RDWR)
        except OSError:
            return None
        if _mark(found) == self.mark:
            return found
        os.close(found)
        return None


def _mark(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


@final
@dataclass(frozen=True, kw_only=True)
class Arrival:
    """First message of an agent.

    Args:
        node: Address of its machine, by which other nodes reach it.
        node_id: Id of its machine in the engine.
        versions: Package -> version.
        memory: The agent's own memory for the data; others of its machine may open it.
    """

    node: str
    node_id: str
    versions: Mapping[str, str]
    memory: Memory


@final
@dataclass(frozen=True, kw_only=True)
class AgentReport:
    """Events since the last report.

    Args:
        lines: (token, line) of processes' output.
        exits: Ended processes, by token. All their lines have been reported.
        spent_ms: Processor time of the others, where it is known, by token.
    """

    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    exits: dict[str, Exit] = field(default_factory=dict[str, Exit])
    spent_ms: dict[str, int] = field(default_factory=dict[str, int])


@final
@dataclass(frozen=True, kw_only=True)
class Listening:
    """A socket that an agent has opened.

    Args:
        port: Its port.
        descriptor: Number of its descriptor in the agent, and in processes that inherit
            it.
    """

    port: int
    descriptor: int


class Packed:
    """An argument that is already pickled.

    Args:
        data: Bytes from cloudpickle.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


class NodeAgent:
    """Watches processes of one machine; `report` and the others may be two threads.

    Args:
        number: Number of the data's descriptor in processes.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._blob = SharedBlob()
        self._lock = threading.Lock()
        self._launcher: ProcessLauncher | None = None
        self._lines: deque[tuple[str, str]] = deque()
        self._exits: dict[str, Exit] = {}
        self._tokens: dict[str, str] = {}
        self._listeners: list[socket.socket] = []

    # ------------------------------------------------------------- the data

    @property
    def memory(self) -> Memory:
        """Returns the agent's own memory."""
        return Memory.of(self._blob)

    def write(self, offset: int, data: Any) -> None:
        """Writes a part of the data into the agent's own memory.

        Args:
            offset: Offset in bytes.
            data: Buffer.
        """
        view = memoryview(data).cast("B")
        with self._blob.allocate(offset + len(view)) as memory:
            memory[offset : offset + len(view)] = view

    # ---------------------------------------------------------- the sockets

    def listen(self, host: str) -> Listening:
        """Opens a listening socket that outlives the processes which inherit it.

        Args:
            host: Address of this node for other nodes.

        Raises:
            OSError: It is no address of this node.
        """
        if not host:
            raise OSError("an address of this node was expected, and none is known")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        if listener.fileno() == self._number:
            # Processes have the data under this number: another one is needed.
            listener, taken = listener.dup(), listener
            taken.close()
        self._listeners.append(listener)
        port: int = listener.getsockname()[1]
        return Listening(port=port, descriptor=listener.fileno())

    # -------------------------------------------------------- the processes

    def start(self, token: str, role: Role, memory: Memory) -> Memory:
        """Starts a process; returns the agent's own location of the data.

        Args:
            token: Token of the process from now on.
            role: Role of the process; the agent reports its lines.
            memory: Memory of the agent itself, or of another process of this machine.

        Raises:
            OSError: It cannot be started.
        """
        with self._lock:
            if self._launcher is None:
                self._launcher = self._open(memory)
            launcher = self._launcher
            # Lines are identified by the token: two processes may have one name in
            # turn.
            self._tokens[
                launcher.start(replace(role, name=token, title=role.name, log=None))
            ] = token
            return self.memory

    def _open(self, memory: Memory) -> ProcessLauncher:
        found = self._blob.descriptor
        if memory != self.memory:
            opened = memory.open()
            if opened is None:
                raise OSError(
                    f"the data of this machine cannot be opened: process {memory.pid} "
                    "cannot be seen. Processes of one machine were expected to run as "
                    "one user in one container"
                )
            self._blob.close()
            self._blob.descriptor = found = opened
        launcher = ProcessLauncher({self._number: found})
        launcher.echo(self._hear)
        return launcher

    def _hear(self, token: str, line: str) -> None:
        self._lines.append((token, line[:MOST_LINE]))

    def _inner(self, token: str) -> str:
        return next(inner for inner, name in self._tokens.items() if name == token)

    def give(self, token: str, data: bytes) -> None:
        """Sends a process an argument pickled by cloudpickle."""
        with self._lock:
            if self._launcher is not None:
                self._launcher.give(self._inner(token), Packed(data))

    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends a process, by force after `grace_s` seconds."""
        with self._lock:
            if self._launcher is not None and token in self._tokens.values():
                self._launcher.stop(self._inner(token), grace_s)

    def report(self) -> AgentReport:
        """Returns new events, after `BEAT_S` seconds at the latest."""
        until = time.monotonic() + BEAT_S
        while True:
            self._look()
            if self._lines or self._exits or time.monotonic() >= until:
                return self._take()
            time.sleep(LOOK_S)

    def _look(self) -> None:
        # A process that is being ended may use its grace: reports continue meanwhile,
        # because a silent agent counts as lost.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._launcher is None:
                return
            for inner, ended in self._launcher.poll().items():
                self._launcher.stop(inner)  # reads its last lines and closes its log
                self._exits[self._tokens.pop(inner)] = ended
        finally:
            self._lock.release()

    def _take(self) -> AgentReport:
        lines: list[tuple[str, str]] = []
        left = MOST_CHARACTERS
        while self._lines and left > 0:
            lines.append(self._lines.popleft())
            left -= len(lines[-1][1])
        exits: dict[str, Exit] = {}
        if not self._lines:
            exits, self._exits = self._exits, {}
        return AgentReport(lines=lines, exits=exits, spent_ms=self._spent_ms())

    def _spent_ms(self) -> dict[str, int]:
        launcher = self._launcher
        if launcher is None:
            return {}
        tokens = self._tokens.copy()  # another thread may change them
        found = {t: launcher.spent_s(inner) for inner, t in tokens.items()}
        return {
            t: round(1e3 * spent) for t, spent in found.items() if spent is not None
        }

    def close(self, grace_s: float = 0.0) -> None:
        """Ends all processes, by force after `grace_s` seconds, and closes sockets."""
        with self._lock:
            if self._launcher is not None:
                self._launcher.close(grace_s)
        while self._listeners:
            self._listeners.pop().close()

    def free(self) -> None:
        """Gives its memory for the data back; others may have it open still."""
        self._blob.close()
