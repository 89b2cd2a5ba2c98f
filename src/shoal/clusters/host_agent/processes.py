"""The processes of a node or a job: only those that carry its mark."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shoal.clusters.host_agent.answering import UserError

PROC = Path("/proc")
GRACE_S, KILL_S = 5.0, 10.0


def marked(mark: str, place: str | None, command: str = "") -> list[int]:
    """Returns processes that inherited a mark, or have files of a folder open to write.

    Ray's workers overwrite the variables that the system shows with their titles;
    they still write logs of their node.

    Args:
        mark: "NAME=VALUE" of the variable.
        place: Folder, None for the mark alone.
        command: Only processes of this program; empty for all.
    """
    found: list[int] = []
    for folder in PROC.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            if not (_inherited(folder, mark) or (place and _writes_to(folder, place))):
                continue
            program = (folder / "cmdline").read_bytes().split(b"\0")[0]
            if not command or os.path.basename(program).decode() == command:
                found.append(int(folder.name))
    return found


def _inherited(folder: Path, mark: str) -> bool:
    return mark.encode() in (folder / "environ").read_bytes().split(b"\0")


def _writes_to(folder: Path, place: str) -> bool:
    """Whether a process has a file there open to write; readers do not count."""
    for link in (folder / "fd").iterdir():
        with suppress(OSError):
            if os.readlink(link).startswith(f"{place}/"):
                told = (folder / "fdinfo" / link.name).read_text()
                flags = re.search(r"^flags:\s+(\d+)", told, re.MULTILINE)
                if flags and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    return False


def began(pid: int) -> str:
    """Returns the start of a process: ticks, and the boot they count from.

    Process numbers are reused, and after a reboot ticks repeat. Empty for an ended one.
    """
    with suppress(OSError):
        text = (PROC / str(pid) / "stat").read_text()
        words = text.rpartition(")")[2].split()
        return "" if words[0] == "Z" else f"{words[19]} {_boot()}".strip()
    return ""


def _boot() -> str:
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def still_there(pids: dict[str, str]) -> list[int]:
    """Returns the processes, among noted ones with their start, that still run."""
    return [int(pid) for pid, when in pids.items() if when and _is(int(pid), when)]


def _is(pid: int, when: str) -> bool:
    """Compares starts; notes of older versions have ticks alone."""
    return when in (found := began(pid), found.partition(" ")[0])


def sweep(
    mark: str, place: str | None, pids: dict[str, str], grace_s: float = GRACE_S
) -> int:
    """Ends all processes that are marked or were noted; returns their number.

    Args:
        mark: "NAME=VALUE" of the variable.
        place: Folder, or None; processes that write there count as well.
        pids: Noted processes, with their start.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """
    ended = set[int]()
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
        until = time.monotonic() + limit_s
        while left := {*marked(mark, place), *still_there(pids)}:
            # New ones too: some start others while they are being ended.
            _tell(left if number == signal.SIGKILL else left - ended, number)
            ended |= left
            if time.monotonic() > until:
                break
            time.sleep(0.05)
    if left:
        raise UserError(f"processes {sorted(left)} do not end")
    return len(ended)


def _tell(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
