"""Processes on this machine: clean interpreters, never forks.

A child reads its work from its standard input, which the parent keeps open: when
the parent ends in any way, the pipe ends and the child ends itself. A fork of the
parent may hold the pipe: see `child.py` for other ways to end the child.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, final

import cloudpickle
import psutil

from shoal.forks import blank, gives_up
from shoal.host.limits import within_limits
from shoal.host.private import alike
from shoal.host.temporary import temporary_folder
from shoal.interruption import Deadline, check, ends_hard
from shoal.launchers.base import Exit, Launcher, Role
from shoal.launchers.cores import thread_variables
from shoal.launchers.parent import Parent
from shoal.terminal import LONGEST_BYTES, Lines

TAIL_BYTES = 8192
LOOK_S = 0.05
DEATH_S = 5.0  # after SIGKILL: only the system itself can delay an end for longer
_START = (
    "import sys; sys.path[:] = sys.argv.pop().split({sep!r}); "
    "from shoal.launchers.child import main; main({numbers!r})"
)


@dataclass
class _Child:
    """A process and its resources."""

    role: Role
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    is_reported: bool = False
    sender: threading.Thread | None = None
    exit: Exit | None = None
    told: int = 0
    has_part: bool = False
    lines: Lines = field(default_factory=Lines)

    def __post_init__(self) -> None:
        self.first_log = self.log
        """Its log before it was given a role."""


@final
class ProcessLauncher(Launcher):
    """Starts Python processes on this machine.

    Args:
        shared: Descriptors that every child inherits, such as mapped data, with their
            numbers in the child if those differ.
        through: Role -> words before its command, such as those that run it on
            another host; default None means none.
    """

    def __init__(
        self,
        shared: Sequence[int] | Mapping[int, int] = (),
        through: Callable[[Role], Sequence[str]] | None = None,
    ) -> None:
        self._through = through
        is_renumbered = isinstance(shared, Mapping)
        self._shared = dict(shared) if is_renumbered else {n: n for n in shared}
        self._children: dict[str, _Child] = {}
        gives_up(self)
        ends_hard(self)

    def start(self, role: Role) -> str:
        """Starts a clean interpreter on this machine; returns its token.

        Raises:
            ClusterError: A limit of this machine or process forbids it.
        """
        with within_limits(f"start the process {role.name}"):
            return self._start(role)

    def _start(self, role: Role) -> str:
        token = secrets.token_hex(8)
        log = _open_log(role.log)
        environment = {**os.environ, **_settings(role.threads)}
        environment.update(role.environment or {})
        paths = [path or str(Path.cwd()) for path in sys.path]
        ours = str(Path(__file__).parents[2])
        if ours not in paths:
            paths.append(ours)
        process = subprocess.Popen(
            [
                *(() if self._through is None else self._through(role)),
                sys.executable,
                "-c",
                _START.format(sep=os.pathsep, numbers=self._shared),
                os.pathsep.join(paths),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=(*self._shared.values(), *role.inherits),
            # Ctrl-C in a terminal reaches the whole process group; children are not in
            # it.
            start_new_session=True,
        )
        child = self._children[token] = _Child(role=role, process=process, log=log)
        self._send(
            child,
            {
                **asdict(role.preload),
                "target": role.target,
                "title": role.title or role.name,
                "parent": None if self._through is not None else Parent.of_now(),
            },
        )
        return token

    def give(self, token: str, argument: Any, log: Path | None = None) -> None:
        """Sends the argument of the target through the pipe of the child."""
        child = self._children[token]
        _await(child.sender)
        is_first = log is None or log == child.role.log
        _move_log(child, child.first_log if is_first else _open_log(log))
        child.has_part = True
        argument = {
            "log": None if log is None else str(log),
            "argument": cloudpickle.dumps(argument),
        }
        # A pipe takes 64 KiB before the child reads; it may still be importing.
        child.sender = threading.Thread(
            target=self._send, args=(child, argument), daemon=True
        )
        child.sender.start()

    def _send(self, child: _Child, message: Any) -> None:
        data = cloudpickle.dumps(message)
        pipe = child.process.stdin
        with contextlib.suppress(OSError, ValueError):  # it died; `poll` reports it
            if pipe is not None:
                pipe.write(len(data).to_bytes(8, "big") + data)
                pipe.flush()

    def poll(self) -> dict[str, Exit]:
        """Returns the processes that ended since the last call, by token."""
        found: dict[str, Exit] = {}
        for token, child in self._children.items():
            self._tell(child)
            _note_exit(child)
            if child.exit is not None and not child.is_reported:
                child.is_reported = True
                found[token] = child.exit
        return found

    def _tell(self, child: _Child) -> None:
        """Passes on the new whole lines of a process.

        A line that is too long for memory is passed on in pieces.
        """
        if self._echo is None or child.log.closed:
            return
        until = child.log.seek(0, io.SEEK_END)  # it may write faster than this reads
        while child.told < until:
            child.log.seek(child.told)
            part = child.log.read(LONGEST_BYTES)
            if not part:
                return
            child.told += len(part)
            for piece in child.lines.feed(part):
                self._echo(child.role.name, piece.text)

    def rename(self, token: str, name: str) -> None:
        """Gives a process another role's name; its settings stay."""
        child = self._children[token]
        child.role = replace(child.role, name=name)

    def prune(self, kept: Collection[str]) -> set[str]:
        """Ends and forgets all processes but some; returns the live ones of those."""
        for token, child in list(self._children.items()):
            if token not in kept or child.process.poll() is not None:
                self._end([child], 0.0)
                del self._children[token]
        return set(self._children)

    def pid(self, token: str) -> int:
        """Returns the process id of a child."""
        return self._children[token].process.pid

    def spent_s(self, token: str) -> float | None:
        """Returns the processor time that a child has used, None if unknown."""
        child = self._children.get(token)
        if child is None or self._through is not None:
            return None
        try:
            times = psutil.Process(child.process.pid).cpu_times()
        except psutil.Error:
            return None
        return times.user + times.system

    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends one process, by force after `grace_s` seconds."""
        self._end([self._children[token]], grace_s)

    def close(self, grace_s: float = 0.0) -> None:
        """Ends every process, by force after `grace_s` seconds."""
        self._end(list(self._children.values()), grace_s)
        self._children.clear()

    def end_hard(self) -> None:
        """Kills every process and its children; see `interruption.ends_hard`."""
        for child in self._children.copy().values():  # its own thread may change them
            if child.process.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(child.process.pid, signal.SIGKILL)  # it leads a session

    def give_up(self) -> None:
        """Forgets the children in a fork, which would hold their pipes."""
        children, self._children = self._children, {}
        for child in children.values():
            child.process.returncode = 0  # Popen then neither waits nor warns
            for file in (child.process.stdin, child.log, child.first_log):
                if file is not None and not file.closed:
                    blank(file.fileno())

    def _end(self, children: Sequence[_Child], grace_s: float) -> None:
        """Closes the pipes, waits a little, then kills."""
        deadline = Deadline(grace_s)
        for child in children:
            if grace_s <= 0 and child.process.poll() is None:
                child.process.kill()
            if child.sender is not None:
                deadline.wait(_Joins(child.sender))
            if child.process.stdin is not None:
                with contextlib.suppress(OSError, ValueError):
                    child.process.stdin.close()
        for child in children:
            if not deadline.wait(_Ends(child.process)):
                child.process.kill()
                # A second press of Ctrl-C does not shorten this wait: without it
                # killed processes would still be there when the run has ended.
                _Ends(child.process)(DEATH_S)
            _note_exit(child)
            self._tell(child)
            child.log.close()
            child.first_log.close()


@final
@dataclass(frozen=True)
class _Ends:
    """Waits for the end of a process, for `Deadline`."""

    process: subprocess.Popen[bytes]

    def __call__(self, limit_s: float) -> bool:
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True


@final
@dataclass(frozen=True)
class _Joins:
    """Waits for the end of a thread, for `Deadline`."""

    thread: threading.Thread

    def __call__(self, limit_s: float) -> bool:
        self.thread.join(limit_s)
        return not self.thread.is_alive()


def _await(sender: threading.Thread | None) -> None:
    """Waits until a process has read its argument; it may be stopped.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    while sender is not None and sender.is_alive():
        sender.join(LOOK_S)
        check()


def _settings(threads: int) -> dict[str, str]:
    """Returns variables that numeric libraries and the allocator read at start."""
    # Vectors stay in the heap and are reused. By default glibc maps each one anew,
    # and fresh pages cost 20 % of an all_reduce step on a virtual machine.
    heap = {
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    }
    return {**thread_variables(threads), **heap}


def _open_log(path: Path | None) -> IO[bytes]:
    """Opens a log; a file without a name if no path is given or possible."""
    if path is not None:
        with contextlib.suppress(OSError):  # for example of a removed folder
            return open(path, "a+b", opener=alike)
    try:
        log = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115
    except OSError:  # no folder, or no space: in memory
        if not hasattr(os, "memfd_create"):
            raise
        log = open(os.memfd_create("shoal-log"), "w+b")  # noqa: SIM115
    # Reader and writer share one position, which must not be the last one read.
    fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
    return log


def _move_log(child: _Child, log: IO[bytes]) -> None:
    """Moves the output before the first role to the log of that role."""
    if log is child.log:
        if child.has_part:
            child.told, child.lines = log.seek(0, io.SEEK_END), Lines()
        return
    said = b"" if child.has_part else _tail(child.log)
    if child.log is not child.first_log:
        child.log.close()
    child.log = log
    child.told, child.lines = log.seek(0, io.SEEK_END), Lines()
    with contextlib.suppress(OSError):  # its disk is full
        os.write(log.fileno(), said)
    log.flush()


def _note_exit(child: _Child) -> None:
    """Notes how a process ended, and its last output while its log is open."""
    code = child.process.poll()
    if code is None or child.exit is not None:
        return
    output = _tail(child.log).decode(errors="replace").strip()
    name = child.role.name
    child.exit = Exit(name=name, code=code, reason=_reason(code), output=output)


def _tail(log: IO[bytes]) -> bytes:
    try:
        end = log.seek(0, io.SEEK_END)
        log.seek(max(0, end - TAIL_BYTES))
        return log.read()
    except (OSError, ValueError):
        return b""


def _reason(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory, perhaps)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
