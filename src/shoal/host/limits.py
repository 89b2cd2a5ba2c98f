"""Limits of this machine and this process: disk, memory, open files, sizes, processes.

The system's error for a limit has only a word or two. This file decides which errors
are limits, and reports in three sentences which limit it was and how to raise it.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from shoal.errors import ClusterError, ShoalError


class _Limit(NamedTuple):
    """Expectation and remedy for a limit."""

    expected: str
    advice: str


_ROOM = _Limit(
    "free space, and a free entry for a file (`df -h`, `df -i`)",
    "Free some, or set TMPDIR to a folder on a larger disk if it is a temporary file",
)
_FILES = _Limit(
    "to open some files and sockets for each process of a run (`ulimit -n`)",
    "Raise that limit, or use fewer workers",
)
_MEMORY = _Limit(
    "memory for it (`free -m`, `ulimit -v`, the limit of a container)",
    "Give the process more, or use fewer workers or smaller data",
)
_LIMITS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: _MEMORY,
    errno.EFBIG: _Limit(
        "to write files, and memory that processes share, of that size (`ulimit -f`)",
        "Raise that limit, or use smaller data",
    ),
    errno.EAGAIN: _Limit(
        "to start a process for each worker (`ulimit -u`, the limit of a container)",
        "Raise that limit, or use fewer workers",
    ),
}


def is_limit(error: OSError) -> bool:
    """Whether an error means a limit of the machine or the process.

    Example:
        >>> is_limit(OSError(errno.ENOSPC, "")), is_limit(OSError(errno.ENOENT, ""))
        (True, False)
    """
    return error.errno in _LIMITS


@contextmanager
def within_limits(what: str, kind: type[ShoalError] = ClusterError) -> Generator[None]:
    """Turns errors about limits into reports of the limit; others stay as they are.

    Args:
        what: Action inside the context, such as "start worker-1".
        kind: Class of the error.

    Raises:
        ShoalError: The error of that class, in three sentences.

    Example:
        >>> with within_limits("start worker-1"):
        ...     raise OSError(errno.EMFILE, "Too many open files")
        Traceback (most recent call last):
        shoal.errors.ClusterError: Cannot start worker-1: Too many open files. ...
    """
    try:
        yield
    except MemoryError as error:
        raise kind(_told(what, str(error) or "out of memory", _MEMORY)) from error
    except OSError as error:
        if error.errno not in _LIMITS:
            raise
        place = f" ({error.filename})" if error.filename else ""
        said = f"{error.strerror}{place}"
        raise kind(_told(what, said, _LIMITS[error.errno])) from error


def _told(what: str, said: str, limit: _Limit) -> str:
    return f"Cannot {what}: {said}. Expected {limit.expected}. {limit.advice}."
