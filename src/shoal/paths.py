"""External names as paths of this machine. Decides which names may become paths.

Storage, archives, workers, other hosts and command lines name files. Such a name is
never joined to a folder directly: `inside` does it, and refuses names that lead out.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from pathlib import Path

from shoal.errors import DataError

LONGEST_PART, LONGEST_NAME = 255, 4096
"""Largest length in bytes, as file systems and system calls count it."""

_UNSAFE = re.compile(r"[^\w.@+-]|^[.~-]+", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DRIVE = re.compile(r"[A-Za-z]:")


def fault_of(name: str) -> str:
    """Returns the fault of a name as a path inside a folder, "" for none.

    Args:
        name: Relative name, with "/" between its parts.

    Example:
        >>> fault_of("train/events.1"), fault_of("../.bashrc"), fault_of("/etc/passwd")
        ('', "it has a part '..'", 'it is absolute')
    """
    if _CONTROL.search(name) or "\\" in name:
        return "it has a backslash or a control character"
    if name.startswith("/") or _DRIVE.match(name):
        return "it is absolute"
    if name.startswith("~"):
        return "it begins with ~"
    parts = name.split("/")
    for odd in ("", ".", ".."):
        if odd in parts:
            return f"it has a part {odd!r}"
    longest = max(len(part.encode()) for part in parts)
    if longest > LONGEST_PART or len(name.encode()) > LONGEST_NAME:
        return "it is too long"
    return ""


def inside(folder: Path, name: str) -> Path:
    """Returns the path of an external name in a folder, never one outside.

    Args:
        folder: Folder of this machine.
        name: Relative name, with "/" between its parts.

    Raises:
        DataError: It could lead out of the folder: by its parts, or by a link that
            lies in the folder.

    Example:
        >>> inside(Path("/tmp/copy"), "train/a").as_posix()
        '/tmp/copy/train/a'
    """
    fault = fault_of(name)
    path = folder if fault else folder / name
    while not fault and path != folder:
        if path.is_symlink():
            fault = f"{path} is a link"
        path = path.parent
    if fault:
        raise DataError(
            f"the name {name[:200]!r} cannot be a path in {folder}: {fault}. "
            "Expected a relative name that stays in the folder. "
            "Check its origin: Shoal writes no such names."
        )
    return folder / name


def one_inside(folder: Path, name: str) -> Path:
    """Like `inside`, for a name of one part, such as that of a run or of a job.

    Raises:
        DataError: It has more parts, or could lead out of the folder.
    """
    return inside(folder, name.replace("/", "\\"))


def name_of(text: str) -> str:
    """Returns a name of one part, made from any text, such as that of a host.

    Example:
        >>> name_of("10.0.0.7"), name_of("../a b"), name_of("")
        ('10.0.0.7', '__a_b', '_')
    """
    return _UNSAFE.sub("_", text)[:100] or "_"


def unpack(archive: Path, folder: Path) -> list[str]:
    """Unpacks the files and folders of a tar archive of another host.

    Args:
        archive: Archive on this machine.
        folder: Target folder.

    Returns:
        Names that were left out: of links and devices, which no run contains.

    Raises:
        DataError: It is not an archive, or a name in it leads out of the folder.
        OSError: The disk of this machine refuses.
    """
    left_out: list[str] = []
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                inside(folder, member.name)
                if member.isreg() or member.isdir():
                    opened.extract(member, folder, filter="data")
                else:
                    left_out.append(member.name)
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise DataError(
            f"the archive of another host is not complete: {archive.name} "
            f"({type(error).__name__}: {error}). Expected one that tar made. "
            "Fetch it again."
        ) from error
    return left_out
