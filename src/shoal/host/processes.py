"""Which process wrote a record, and whether it may still live. No clock is asked.

The number of a process says nothing in another process namespace, and another process
may get it later. A record therefore holds the kernel's boot, the namespace, and when
the process started, in ticks of that boot. A lock answers where the number cannot.
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
UNKNOWN = "?"


@final
@dataclass(frozen=True, kw_only=True)
class Process:
    """One process among all of all machines, at all times.

    Args:
        host: Name of its machine.
        pid: Its number there, in its namespace.
        start: When it started, as its kernel tells; "" in records of older versions.
        boot: Of its kernel, random for each; "" where the system does not tell.
        namespace: Its process and time namespaces; "" where there are none.
        machine: Digest of the machine's id; "" where it has none.
        lock: Mark of a lock that it holds as long as it lives, "" for none.
        seen_time: Unix time of the record; only used where `start` is "".

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
    seen_time: float = 0.0

    @classmethod
    def here(cls, lock: str = "") -> Process:
        """This process.

        Args:
            lock: Mark of a lock that it holds.
        """
        pid = os.getpid()
        return replace(_machine(), pid=pid, start=_start_of_self(), lock=lock)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Process | None:
        """Reads what `fields` gave; None where no process is named.

        Args:
            record: Fields of an event or a file; others are passed over.
        """
        host, pid, seen = (record.get(name) for name in ("host", "pid", "time"))
        if not isinstance(host, str) or not isinstance(pid, int) or pid <= 0:
            return None
        texts = {
            name: value
            for name in ("start", "boot", "namespace", "machine", "lock")
            if isinstance(value := record.get(name), str)
        }
        seen_time = float(seen) if isinstance(seen, (int, float)) else 0.0
        return cls(host=host, pid=pid, seen_time=seen_time, **texts)

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON values, without those that are not known."""
        known = asdict(self)
        del known["seen_time"]
        return {name: value for name, value in known.items() if value != ""}


def may_live(process: Process, lock: Path | None = None) -> bool:
    """Tells whether a process may still live; one that does is never called dead.

    Args:
        process: Of a record.
        lock: The file of a lock that it holds if it lives; only the file that the
            record names counts, where it names one.
    """
    return judge(
        process,
        _machine(),
        runs=_runs,
        holds=lambda: None if lock is None else is_held(lock, process.lock),
        by_clock=_runs_by_clock,
    )


def judge(
    process: Process,
    here: Process,
    *,
    runs: Callable[[Process], bool],
    holds: Callable[[], bool | None],
    by_clock: Callable[[Process], bool],
) -> bool:
    """Decides from what can be seen. Pure, but for what it is given to ask.

    Args:
        process: Of a record.
        here: Who asks; only its machine, boot and namespace count.
        runs: Whether a process of this boot and namespace runs.
        holds: Whether its lock is held, None where that cannot be told.
        by_clock: What older records are judged by, where the host is this one.
    """
    if not process.start:
        return process.host != here.host or by_clock(process)
    if _is_same_boot(process, here):
        # Where Linux tells no namespace, two of them would look like one.
        is_told = bool(here.namespace) or not here.boot
        if is_told and process.namespace == here.namespace:
            return runs(process)
        # A lock of this kernel is seen wherever its file is.
        return holds() is not False
    is_this_machine = (
        process.host == here.host
        and "" not in (process.machine, process.boot, here.boot)
        and process.machine == here.machine
    )
    # This machine has been started again since; another one cannot be looked into.
    return not is_this_machine or holds() is True


def _is_same_boot(process: Process, here: Process) -> bool:
    if process.boot or here.boot:
        return process.boot == here.boot
    # Of macOS; a Linux that tells no boot does not tell containers apart either.
    is_plain = not process.namespace and not here.namespace
    return is_plain and process.host == here.host


def _runs(process: Process) -> bool:
    """Looks up a number of this namespace, and when its process started."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user, who may hide it in /proc
        pass
    start = _start(process.pid)
    # Hidden from this user, or /proc is that of another namespace: it may live.
    return start is None or process.start in (start, UNKNOWN if start else start)


def _runs_by_clock(process: Process) -> bool:
    try:
        found = psutil.Process(process.pid)
        # A process younger than the record got its number second-hand.
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
    # Not by its number: /proc may be that of another namespace.
    return _ticks(PROC / "self" / "stat") or UNKNOWN


def _start(pid: int) -> str | None:
    """When a process started; "" for one that has ended, None where unseen."""
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
    """Where there is no /proc: what the kernel noted when the process started."""
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
    """This machine, and how it is seen from this process."""
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
    """Of the machine; its digest, as the id itself is not to be shown to others."""
    for path in MACHINE_FILES:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text:
            return hashlib.sha256(b"shoal" + text.encode()).hexdigest()[:16]
    return ""
