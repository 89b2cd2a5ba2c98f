"""Programs that the page starts: `shoal` commands, each in a session of its own.

They outlive the page, and their output is kept in files of this user. A program that is
started twice for the same thing runs once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from shoal.errors import ConfigError
from shoal.host.private import make_private

MOST_SHOWN = 8000
"""Bytes of the output that a page shows, of its end."""


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
    """

    words: tuple[str, ...]
    process: subprocess.Popen[bytes] = field(repr=False)
    output: Path
    time: float
    known: frozenset[str] = frozenset()

    @property
    def code(self) -> int | None:
        """Its exit status, None while it runs."""
        return self.process.poll()

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
        """Returns the program that was started last for a thing, None without one."""
        return self._programs.get(key)

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
            before = self._programs.get(key)
            if before is not None and (is_once or before.code is None):
                return before
            found = self._programs[key] = self._start(key, words, known)
            return found

    def end(self, before: str) -> None:
        """Ends the programs whose keys begin with a text."""
        for key, program in self._programs.copy().items():
            if key.startswith(before) and program.code is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(program.process.pid, signal.SIGTERM)

    def run(self, words: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Runs a `shoal` command and waits for it.

        Args:
            words: The command, after `shoal`.
            limit_s: Seconds after which it is ended, with what it started.

        Returns:
            Its exit status, None if it took too long, and the end of its output.

        Raises:
            ConfigError: It cannot be started.
        """
        key = f"run {secrets.token_hex(8)}"
        program = self._start(key, words, frozenset())
        try:
            code = program.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program.process.pid, signal.SIGKILL)
            program.process.wait()
        text = program.text
        program.output.unlink(missing_ok=True)
        return code, text

    def _start(self, key: str, words: Sequence[str], known: frozenset[str]) -> Program:
        digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:16]
        path = self._folder / f"{digest}.log"
        try:
            make_private(self._folder)
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as output:
                process = subprocess.Popen(
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
        return Program(
            words=tuple(words),
            process=process,
            output=path,
            time=time.time(),
            known=known,
        )
