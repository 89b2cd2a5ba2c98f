"""Identity of the process that wrote a record, and whether it may be alive.

No clock is used. The number of a process means nothing in another process namespace,
and may be reused. A record therefore holds the kernel's boot, the namespace, and the
start of the process, in ticks of that boot. Where the number cannot decide, a lock
does, or a heartbeat.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, final

import psutil

from shoal.host.locks import is_held

PROC = Path("/proc")
MACHINE_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
CLOCK_SLACK_S = 2.0
UNKNOWN, ENDED = "?", "ended"
"""In place of a start: none is shown, or the process had ended when it was asked."""


@final
@dataclass(frozen=True, kw_only=True)
class Process:
    """One process, unique over machines and time.

    Args:
        host: Name of its machine.
        pid: Process number, in its namespace.
        start: Start time from its kernel; "" in records of older versions.
        boot: Random id of its kernel's boot; "" if the system has none.
        namespace: Its process and time namespaces; "" without namespaces.
        machine: Digest of the machine's id; "" where it has none.
        lock: Mark of a lock that it holds while it runs, "" for none.
        beat: Name of a heartbeat that it renews while it runs, "" for none.
        seen_time: Unix time of the record; used only if `start` is "".

    Example:
        >>> may_live(Process.here())
        True
    """

    host: str
    pid: int
    start: str = ""
    boot: str = ""
    namespace: str = ""
    machine: str = ""
    lock: str = ""
    beat: str = ""
    seen_time: float = 0.0

    @classmethod
    def here(cls, lock: str = "", beat: str = "") -> Process:
        """Returns this process.

        Args:
            lock: Mark of a lock that it holds.
            beat: Name of its heartbeat.
        """
        pid, start = os.getpid(), _start_of_self()
        return replace(_machine(), pid=pid, start=start, lock=lock, beat=beat)

    @classmethod
    def of(cls, pid: int) -> Process:
        """Returns a process of this machine and namespace, such as a child.

        Args:
            pid: Its number.
        """
        start = _start(pid)
        start = UNKNOWN if start is None else start or ENDED
        return replace(_machine(), pid=pid, start=start)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Process | None:
        """Reads the result of `fields`; None if no process is named.

        Args:
            record: Fields of an event or a file; other fields are ignored.
        """
        host, pid, seen = (record.get(name) for name in ("host", "pid", "time"))
        if not isinstance(host, str) or not isinstance(pid, int) or pid <= 0:
            return None
        texts = {
            name: value
            for name in ("start", "boot", "namespace", "machine", "lock", "beat")
            if isinstance(value := record.get(name), str)
        }
        seen_time = float(seen) if isinstance(seen, (int, float)) else 0.0
        return cls(host=host, pid=pid, seen_time=seen_time, **texts)

    @property
    def fields(self) -> dict[str, Any]:
        """Returns JSON values, without unknown ones."""
        known = asdict(self)
        del known["seen_time"]
        return {name: value for name, value in known.items() if value != ""}


def may_live(
    process: Process,
    lock: Path | None = None,
    is_heard: Callable[[], bool | None] = lambda: None,
) -> bool:
    """Returns whether a process may be alive; a live one is never called dead.

    Args:
        process: Process of a record.
        lock: File of a lock that it holds while alive; if the record names a
            file, only that one counts.
        is_heard: Returns whether its heartbeat is young enough, None if unknown.
            Called only for a process that cannot be seen from here.
    """
    return judge(
        process,
        _machine(),
        runs=_runs,
        holds=lambda: None if lock is None else is_held(lock, process.lock),
        is_heard=is_heard,
        by_clock=_runs_by_clock,
    )


def judge(
    process: Process,
    here: Process,
    *,
    runs: Callable[[Process], bool],
    holds: Callable[[], bool | None],
    by_clock: Callable[[Process], bool],
    is_heard: Callable[[], bool | None] = lambda: None,
) -> bool:
    """Decides from observations. Pure, except for the functions it is given.

    Args:
        process: Process of a record.
        here: The asking process; only its machine, boot and namespace count.
        runs: Returns whether a process of this boot and namespace runs.
        holds: Returns whether its lock is held, None if unknown.
        by_clock: Decides for older records, if the host is this one.
        is_heard: Returns whether its heartbeat is young enough, None if unknown.
    """
    if not process.start:
        return process.host != here.host or by_clock(process)
    if _is_same_boot(process, here):
        # On a Linux that shows no namespace, two of them would look like one.
        is_told = bool(here.namespace) or not here.boot
        if is_told and process.namespace == here.namespace:
            return runs(process)
        # A lock of this kernel is visible wherever its file is.
        return holds() is not False and is_heard() is not False
    is_this_machine = (
        process.host == here.host
        and "" not in (process.machine, process.boot, here.boot)
        and process.machine == here.machine
    )
    if is_this_machine:  # it has rebooted since
        return holds() is True
    # Another machine cannot be checked: only what the process writes there shows.
    return is_heard() is not False


def _is_same_boot(process: Process, here: Process) -> bool:
    if process.boot or here.boot:
        return process.boot == here.boot
    # macOS; a Linux that shows no boot does not distinguish containers either.
    is_plain = not process.namespace and not here.namespace
    return is_plain and process.host == here.host


def _runs(process: Process) -> bool:
    """Looks up a number of this namespace, and the start of its process."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, hidden in /proc
        pass
    start = _start(process.pid)
    # Hidden from this user, or /proc of another namespace: it may be alive.
    return start is None or process.start in (start, UNKNOWN if start else start)


def _runs_by_clock(process: Process) -> bool:
    try:
        found = psutil.Process(process.pid)
        # A process younger than the record has a reused number.
        return (
            found.status() != psutil.STATUS_ZOMBIE
            and found.create_time() <= process.seen_time + CLOCK_SLACK_S
        )
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _start_of_self() -> str:
    if not PROC.is_dir():
        return _start_by_psutil(os.getpid()) or UNKNOWN
    # Not by its number: /proc may belong to another namespace.
    return _ticks(PROC / "self" / "stat") or UNKNOWN


def _start(pid: int) -> str | None:
    """Returns the start of a process; "" if it has ended, None if unknown."""
    if not PROC.is_dir():
        return _start_by_psutil(pid)
    return _ticks(PROC / str(pid) / "stat") if _sees_own_namespace() else None


def _ticks(stat: Path) -> str | None:
    try:
        words = stat.read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return "" if words[0] in (b"Z", b"X") else words[19].decode()


def _start_by_psutil(pid: int) -> str | None:
    """Returns the kernel's start time of a process, on systems without /proc."""
    try:
        found = psutil.Process(pid)
        is_over = found.status() == psutil.STATUS_ZOMBIE
        return "" if is_over else repr(found.create_time())
    except psutil.NoSuchProcess:
        return ""
    except psutil.Error:
        return None


def _sees_own_namespace() -> bool:
    try:
        return os.readlink(PROC / "self") == str(os.getpid())
    except OSError:
        return False


def _machine() -> Process:
    """Returns this machine, and the namespaces of this process."""
    return Process(
        host=socket.gethostname(),
        pid=0,
        boot=_boot(),
        namespace=_namespace(),
        machine=_machine_id(),
    )


def _namespace() -> str:
    found: list[str] = []
    for name in ("pid", "time"):
        try:
            found.append(os.readlink(PROC / "self" / "ns" / name))
        except OSError:
            continue
    return " ".join(found)


@cache
def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@cache
def _machine_id() -> str:
    """Returns a digest of the machine's id, because the id itself is confidential."""
    for path in MACHINE_FILES:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text:
            return hashlib.sha256(b"shoal" + text.encode()).hexdigest()[:16]
    return ""
