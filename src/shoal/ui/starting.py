"""Programs that the page starts: `shoal` commands, each in a session of its own.

They outlive the page and its server: their output and what identifies them are kept in
files of this user. A program that is started twice for the same thing runs once.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, final

from shoal.errors import ConfigError
from shoal.host.private import make_private
from shoal.host.processes import Process, may_live

MOST_SHOWN = 8000
"""Bytes of the output that a page shows, of its end."""
UNKNOWN = "unknown"
"""Exit status of a program that ended while no server waited for it."""


@final
@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that was started.

    Args:
        words: Its command, after `shoal`.
        process: Its process.
        output: File of its output.
        time: Unix seconds of its start.
        known: Names that were there before, by which what it makes is found.
        child: The process, if it is one of this server's; None otherwise.
        ended: Its exit status, if it was waited for; None otherwise.
        is_late: Whether it took too long, and was ended.
    """

    words: tuple[str, ...]
    process: Process
    output: Path
    time: float
    known: frozenset[str] = frozenset()
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    ended: int | None = None
    is_late: bool = False

    @classmethod
    def read(cls, record: Mapping[str, Any], output: Path) -> Program | None:
        """Reads the result of `fields`; None if it is not one.

        Args:
            record: The fields.
            output: File of its output.
        """
        try:
            process = Process.read(record["process"])
            return process and cls(
                words=tuple(map(str, record["words"])),
                process=process,
                output=output,
                time=float(record["time"]),
                known=frozenset(map(str, record["known"])),
                ended=None if record["ended"] is None else int(record["ended"]),
                is_late=bool(record["is_late"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    @property
    def fields(self) -> dict[str, Any]:
        """Returns JSON values, by which a later server knows it."""
        return {
            "words": self.words,
            "process": self.process.fields,
            "time": self.time,
            "known": sorted(self.known),
            "ended": self.ended,
            "is_late": self.is_late,
        }

    @property
    def code(self) -> int | str | None:
        """Its exit status, None while it runs; `UNKNOWN` if nobody waited for it."""
        if self.ended is not None:
            return self.ended
        if self.child is not None:
            return self.child.poll()
        return None if may_live(self.process) else UNKNOWN

    @property
    def text(self) -> str:
        """The end of its output."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_SHOWN))
                return file.read().decode(errors="replace")
        except OSError as error:
            return f"({error})"


@final
class Starter:
    """Starts programs, one for each thing.

    Args:
        folder: Where their output is kept.
        home: Their working folder; default None: the server's own.
        command: What stands before the words of a program.
    """

    def __init__(
        self,
        folder: Path,
        home: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "shoal"),
    ) -> None:
        self.home = home or Path.cwd()
        self._command = tuple(command)
        self._folder = folder
        self._lock = threading.Lock()
        self._programs: dict[str, Program] = {}

    def of(self, key: str) -> Program | None:
        """Returns the program that was started last for a thing, None without one.

        A server before this one may have started it.
        """
        found = self._programs.get(key)
        return found if found is not None else self._kept(key)

    def start(
        self,
        key: str,
        words: Sequence[str],
        *,
        is_once: bool = False,
        known: frozenset[str] = frozenset(),
    ) -> Program:
        """Starts a `shoal` command, unless one for the same thing still runs.

        Args:
            key: What it is for, such as the URL of a run.
            words: The command, after `shoal`.
            is_once: Whether it is not started again when it has ended.
            known: See `Program`.

        Raises:
            ConfigError: It cannot be started.
        """
        with self._lock:
            before = self.of(key)
            if before is not None and (is_once or before.code is None):
                return before
            found = self._programs[key] = self._start(key, words, known)
            return found

    def end(self, before: str) -> None:
        """Ends the programs of this server whose keys begin with a text."""
        for key, program in self._programs.copy().items():
            if key.startswith(before) and program.code is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(program.process.pid, signal.SIGTERM)

    def run(self, key: str, words: Sequence[str], limit_s: float) -> Program:
        """Runs a `shoal` command and waits for it; its outcome is kept.

        Args:
            key: What it is for.
            words: The command, after `shoal`.
            limit_s: Seconds after which it is ended, with what it started.

        Raises:
            ConfigError: It cannot be started.
        """
        child, own = self._spawn(f"{key} {secrets.token_hex(8)}", words)
        begun, process, is_late = time.time(), Process.of(child.pid), False
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        output = self._place(key, "log")
        with suppress(OSError):
            own.replace(output)
        program = Program(
            words=tuple(words),
            process=process,
            output=output,
            time=begun,
            ended=code,
            is_late=is_late,
        )
        self._keep(key, program)
        return program

    def _place(self, key: str, ending: str) -> Path:
        digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:16]
        return self._folder / f"{digest}.{ending}"

    def _kept(self, key: str) -> Program | None:
        """Returns what is known from a file."""
        with suppress(OSError, ValueError, RecursionError):
            record = json.loads(self._place(key, "json").read_bytes())
            if isinstance(record, dict) and record.get("key") == key:
                known = cast("dict[str, Any]", record)
                return Program.read(known, self._place(key, "log"))
        return None

    def _keep(self, key: str, program: Program) -> None:
        """Writes what a later server needs; the program runs without it, too."""
        path = self._place(key, "json")
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        with suppress(OSError):
            with open(fresh, "x", opener=_private) as file:
                json.dump({"key": key, **program.fields}, file)
            fresh.replace(path)

    def _start(self, key: str, words: Sequence[str], known: frozenset[str]) -> Program:
        child, path = self._spawn(key, words)
        program = Program(
            words=tuple(words),
            process=Process.of(child.pid),
            output=path,
            time=time.time(),
            known=known,
            child=child,
        )
        self._keep(key, program)
        return program

    def _spawn(
        self, key: str, words: Sequence[str]
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts a process, and returns it and the file of its output."""
        path = self._place(key, "log")
        try:
            make_private(self._folder)
            path.unlink(missing_ok=True)
            with open(path, "xb", opener=_private) as output:
                child = subprocess.Popen(
                    [*self._command, *words],
                    cwd=self.home,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"`shoal {words[0]}` cannot be started ({error}). Expected a Python "
                f"that has Shoal, and a folder {self._folder} that this user may write "
                "to. Run the command of the page in a terminal."
            ) from error
        return child, path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
