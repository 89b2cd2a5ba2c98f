"""How a process learns that its parent has ended, in any way.

A pipe that the parent holds is not enough: a fork of the parent
holds it as well, and may live on. So the parent's number is checked, which the system
changes when the parent ends, and on Linux the system is asked to end the process.
That request is tied to the thread that started it, so it is only made for a thread that
lives as long as its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Self, final

_PR_SET_PDEATHSIG = 1


@final
@dataclass(frozen=True, kw_only=True)
class Parent:
    """The parent of a process.

    Args:
        pid: Id of the parent, in its namespace.
        lives_on: Whether the starting thread lives as long as the parent.
    """

    pid: int
    lives_on: bool

    @classmethod
    def of_now(cls) -> Self:
        """Returns this process and thread."""
        is_main = threading.current_thread() is threading.main_thread()
        return cls(pid=os.getpid(), lives_on=is_main)


@final
class Watch:
    """Watches whether the parent of this process lives.

    Args:
        parent: Parent, as it knows itself; None if it is on another host, or another
            program is in between: then the present parent process counts.
    """

    def __init__(self, parent: Parent | None) -> None:
        self._pid = os.getppid()
        if parent is None:
            return
        if parent.lives_on:
            _end_with_parent()
        # From another namespace its number is 0, and never changes.
        self._pid = parent.pid if os.getppid() else 0

    @property
    def is_over(self) -> bool:
        """Whether the parent has ended."""
        return os.getppid() != self._pid


def _end_with_parent() -> None:
    """Asks Linux for SIGKILL at the end of the thread that started this process.

    It reaches a process that is stopped or hung as well.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
