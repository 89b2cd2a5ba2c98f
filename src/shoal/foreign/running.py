"""Runs a job: starts its processes, shows what they say, and ends them all."""

from __future__ import annotations

import math
import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from shoal.clusters.ssh import SSH
from shoal.errors import ClusterError, WorkerFailed
from shoal.foreign.course import course, farewell
from shoal.foreign.job import JobProcess, ProcessGroup
from shoal.foreign.words import BEAT_S, QUIET_S, guarded, reached
from shoal.host.private import alike, make_private
from shoal.interruption import check, undisturbed
from shoal.terminal import LONGEST_BYTES, LinePiece, Lines

LOOK_S = 0.1  # between checks for Ctrl-C
TAIL, TAIL_WIDTH = 20, 2000  # lines that an error shows, and characters of each
SSH_FAILED = 255
LAST_SIGNAL = 128 + 64  # the largest status by which a shell reports a signal
LATE_S = 5.0
"""Seconds beyond the grace until a guard that does not answer is killed, and for all
readers together if another process still holds a pipe open."""


@final
@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Options of a job's run.

    Args:
        folder: Working folder of processes, on every node.
        logs: Folder of logs, one file a process.
        grace_s: Seconds between SIGTERM and SIGKILL.
        evaluation_s: Seconds the evaluator has when all others are done.
        ssh: The command that reaches hosts.
        files: Contents of the file of hosts with slots, and of that of addresses.
    """

    folder: str
    logs: Path
    grace_s: float = 10.0
    evaluation_s: float = 60.0
    ssh: Sequence[str] = SSH
    files: tuple[str, str] = ("", "")


@dataclass(eq=False)
class _Running:
    """A started process."""

    process: JobProcess
    popen: subprocess.Popen[bytes]
    log: Path
    tail: deque[str] = field(default_factory=lambda: deque[str](maxlen=TAIL))

    def beat(self) -> None:
        """Sends a sign of life to its guard."""
        stdin = self.popen.stdin
        if stdin is not None and not self.process.node.is_here and not stdin.closed:
            with suppress(OSError):
                os.write(stdin.fileno(), b".")

    def tell_to_end(self) -> None:
        """Makes its guard end it."""
        if self.popen.stdin is not None:
            with suppress(OSError):
                self.popen.stdin.close()


def _unheard(_: str) -> None:
    """Ignores a line."""


@final
class Runner:
    """The processes of one job, from start to end.

    Args:
        job: Job to run.
        command: The user's command, the same for all.
        variables: Variables of each process.
        settings: Options of the run.
        echo: Called with the name of a process and a line it wrote, in threads.
        note: Called with the message about processes that are ended with the job.
    """

    def __init__(
        self,
        job: ProcessGroup,
        command: Sequence[str],
        variables: Callable[[JobProcess], Mapping[str, str]],
        settings: RunSettings,
        echo: Callable[[str, str], None],
        note: Callable[[str], None] = _unheard,
    ) -> None:
        self._job, self._command = job, command
        self._variables, self._settings, self._echo = variables, settings, echo
        self._note = note
        self._running: dict[str, _Running] = {}
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._codes: dict[str, int] = {}
        self._stopped: set[str] = set()

    def run(self) -> None:
        """Runs the job until its training processes have ended; ends the others.

        Raises:
            WorkerFailed: A process ended with a status that is not zero.
            ClusterError: A node cannot be reached.
        """
        with undisturbed():  # an interruption here would leave processes running
            try:
                for process in self._job.processes:
                    self._start(process)
                self._watch()
            finally:
                self._end_all()

    def _start(self, process: JobProcess) -> None:
        settings = self._settings
        words = guarded(
            self._command,
            self._variables(process),
            settings.folder,
            settings.grace_s,
            0 if process.node.is_here else QUIET_S,
            settings.files,
        )
        make_private(settings.logs)
        log = settings.logs / f"{process.name}.log"
        popen = subprocess.Popen(
            reached(process.node, words, settings.ssh),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # this process passes Ctrl-C on
        )
        running = _Running(process=process, popen=popen, log=log)
        self._running[process.name] = running
        reader = threading.Thread(target=self._read, args=(running,), daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, running: _Running) -> None:
        """Shows and logs the output of a process, until it has ended."""
        name, pipe = running.process.name, running.popen.stdout
        if pipe is None:
            raise RuntimeError("a process without a pipe")
        with open(running.log, "ab", opener=alike) as log, pipe:
            lines = Lines()
            while data := pipe.read1(LONGEST_BYTES):  # pyright: ignore[reportAttributeAccessIssue]
                log.write(data)
                log.flush()
                self._tell(running, lines.feed(data))
            self._tell(running, lines.end())
        running.popen.wait()
        self._ended.put(name)

    def _tell(self, running: _Running, pieces: Iterable[LinePiece]) -> None:
        for piece in pieces:
            running.tail.append(piece.text[-TAIL_WIDTH:])
            self._echo(running.process.name, piece.text)

    def _watch(self) -> None:
        until, beat = math.inf, time.monotonic() + BEAT_S
        while len(self._codes) < len(self._running):
            check()
            left_s = max(0.0, until - time.monotonic())
            try:
                name = self._ended.get(timeout=min(LOOK_S, left_s))
            except queue.Empty:
                if left_s <= 0:  # the evaluator's time is over
                    self._note(
                        "all others have ended, and the evaluator was ended: it had "
                        f"{self._settings.evaluation_s:g} s more"
                    )
                    return
                if time.monotonic() >= beat:
                    beat = time.monotonic() + BEAT_S
                    for running in self._running.values():
                        running.beat()
                continue
            self._codes[name] = self._running[name].popen.returncode
            found = course(self._job, self._codes, self._stopped)
            if found.failed is not None:
                raise self._failure(self._running[found.failed.name])
            unneeded = [p for p in found.unneeded if p.name not in self._stopped]
            silent = {name for name, one in self._running.items() if not one.tail}
            if said := farewell(self._job, unneeded, silent):
                self._note(said)
            for process in unneeded:
                self._stop(process.name)
            if found.is_over and until == math.inf:
                until = time.monotonic() + self._settings.evaluation_s

    def _failure(self, running: _Running) -> Exception:
        process, code = running.process, running.popen.returncode
        left = [
            name for name in self._running
            if name not in self._codes and name not in self._stopped
        ]  # fmt: skip
        others = f"the others were ended: {', '.join(left) or 'none was left'}"
        said = "\n".join(running.tail)
        node = process.node
        if code == SSH_FAILED and not node.is_here:
            return ClusterError(
                f"{process.name} on {node.name}: the host could not be reached, or was "
                f"lost. Expected {' '.join(self._settings.ssh)} {node.name} to work "
                "without a password; its last lines are below. Try it by hand, or "
                f"`shoal launch --check`; {others}.\n{said}"
            )
        return WorkerFailed(
            f"{process.name} on {node.name} {_ended(code)}; {others}. "
            "Expected every process to end with status 0. Correct what its last "
            f"lines report; the full log is {running.log}.\n{said}",
            rank=process.rank,
            node=node.name,
        )

    def _stop(self, name: str) -> None:
        if name not in self._stopped:
            self._stopped.add(name)
            self._running[name].tell_to_end()

    def _end_all(self) -> None:
        """Ends all running processes; returns when none is left."""
        for name in self._running:
            self._stop(name)
        until = time.monotonic() + self._settings.grace_s + LATE_S
        for running in self._running.values():
            try:
                running.popen.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                running.popen.kill()
                running.popen.wait()
        until = time.monotonic() + LATE_S
        for reader in self._readers:
            reader.join(max(0.0, until - time.monotonic()))


def _ended(code: int) -> str:
    """Returns how a process ended, in words.

    Shells report a signal as 128 plus its number; programs use such numbers, too.

    Example:
        >>> _ended(3), _ended(-9)
        ('ended with status 3', 'was killed by signal 9')
        >>> _ended(134)
        'ended with status 134, as a shell says of signal 6'
    """
    if code < 0:
        return f"was killed by signal {-code}"
    said = f", as a shell says of signal {code - 128}"
    return f"ended with status {code}{said if 128 < code <= LAST_SIGNAL else ''}"
