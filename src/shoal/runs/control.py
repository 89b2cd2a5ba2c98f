"""Requests to the process that trains a run, as files of the run folder.

They reach a process on any machine that writes to the same storage, and no other one:
unlike a signal, a file cannot hit a process that was given a number again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast, final

import psutil

from shoal.errors import ConfigError
from shoal.host.processes import Process
from shoal.runs.folder import Folder

STOP = "control/stop.json"
LOCAL_S, REMOTE_S = 1.0, 5.0
"""Seconds between two looks, on local disks and elsewhere."""

_MOST_BYTES = 4096
_MOST_TEXT = 200


@final
@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """A request to stop a run.

    Args:
        by: Who asked, such as "ann on host7".
        time: Unix seconds when it was asked, by the clock of who asked.
    """

    by: str
    time: float


def ask_stop(folder: Folder, *, by: str) -> StopRequest:
    """Asks the process that trains a run to stop, as Ctrl-C would.

    Args:
        folder: The run folder.
        by: Who asks.

    Raises:
        ConfigError: The folder cannot be written to.

    Example:
        >>> folder = Folder.at("memory://doctest-control")
        >>> asked = ask_stop(folder, by="ann")
        >>> read_stop(folder) == asked
        True
    """
    request = StopRequest(by=by[:_MOST_TEXT], time=time.time())
    content = json.dumps({"by": request.by, "time": request.time}).encode()
    try:
        folder.write(STOP, content + b"\n")
    except Exception as error:  # a file system of fsspec may raise anything
        raise ConfigError(
            f"run {folder.name!r} cannot be asked to stop: {STOP} cannot be written "
            f"({type(error).__name__}: {error}). Expected a folder that this user may "
            "write to. Press Ctrl-C where the run was started."
        ) from error
    return request


def read_stop(folder: Folder) -> StopRequest | None:
    """Returns the request to stop a run, None without one.

    A file that cannot be understood is a request by somebody unknown.

    Raises:
        OSError: The storage cannot be reached.
    """
    try:
        content = folder.read(STOP, 0, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    fields: dict[str, Any] = {}
    with suppress(ValueError, RecursionError):
        found = json.loads(content)
        fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    by, at = fields.get("by"), fields.get("time")
    return StopRequest(
        by=by[:_MOST_TEXT] if isinstance(by, str) else "unknown",
        time=float(at) if isinstance(at, (int, float)) and 0 <= at < 1e11 else 0.0,
    )


def clear_stop(folder: Folder) -> None:
    """Removes a request, before the run goes on."""
    with suppress(Exception):  # there is none, or the storage fails: nothing is lost
        folder.fs.rm(folder.where(STOP))


def asking(program: str) -> str:
    """Returns how this process names its user and itself in a request.

    Args:
        program: Name of the program, such as "shoal ui".

    Example:
        >>> asking("shoal ui")
        '... (shoal ui, process ... on ...)'
    """
    here = Process.here()
    return f"{_user()} ({program}, process {here.pid} on {here.host})"


def _user() -> str:
    """Returns the name of the user of this process, which no variable can change."""
    try:
        return psutil.Process().username()
    except (psutil.Error, OSError, KeyError):  # a container may know no names
        return "an unknown user"


@final
class StopWatch:
    """Looks for a request to stop, seldom, and without making the caller wait.

    Args:
        folder: The run folder.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, folder: Folder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._clock = folder, clock
        self._every_s = LOCAL_S if folder.is_local else REMOTE_S
        self._next_s = clock()
        self._found: StopRequest | None = None
        self._look: threading.Thread | None = None

    def poll(self) -> StopRequest | None:
        """Returns the request, as far as it was seen.

        A look at a local disk is made at once. Elsewhere it is made in a thread, and
        the next call returns what it found.
        """
        is_due = self._found is None and self._clock() >= self._next_s
        if is_due and (self._look is None or not self._look.is_alive()):
            self._next_s = self._clock() + self._every_s
            if self._folder.is_local:
                self._read()
            else:
                self._look = threading.Thread(
                    target=self._read, name="shoal-stop", daemon=True
                )
                self._look.start()
        return self._found

    def close(self) -> None:
        """Waits briefly for a look that was begun. Safe to repeat."""
        if self._look is not None:
            self._look.join(self._every_s)

    def _read(self) -> None:
        # Storage that cannot be reached now may be reached at the next look.
        with suppress(Exception):
            self._found = read_stop(self._folder)
