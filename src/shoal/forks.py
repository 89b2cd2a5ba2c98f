"""What a forked child of this process gives up: a run belongs to who started it.

`os.fork` copies every descriptor and every object. A child that kept the ends of
pipes and sockets would keep a run's workers waiting for a driver that is dead, and one
that left a `with` block would end processes and remove folders of its parent. So each
object that owns such a thing is told of the fork, in the child, before anything else.
Programs that are executed (`subprocess`) inherit none of it: Python's descriptors are
closed then, but for those that are passed on.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol, final


class Owner(Protocol):
    """Owns something of this process alone."""

    def give_up(self) -> None:
        """Blanks descriptors, ends and removes nothing; nor does `close` then."""
        ...


@final
class Origin:
    """The process in which this was made."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of that one."""
        return os.getpid() != self._pid


_owners: dict[int, weakref.ref[Owner]] = {}


def gives_up(owner: Owner) -> None:
    """Has `give_up` of an object called in every child that is forked while it lives.

    Args:
        owner: Called with no other thread alive, and perhaps with locks that none of
            them will release.
    """
    key = id(owner)
    _owners[key] = weakref.ref(owner, lambda _: _owners.pop(key, None))


def blank(*descriptors: int) -> None:
    """Lets descriptors lead nowhere, without a number that another file could get.

    Args:
        descriptors: Open ones; whoever has them may close them later, as ever.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


def _forked() -> None:
    known = list(_owners.values())
    _owners.clear()
    for reference in known:
        owner = reference()
        if owner is not None:
            with contextlib.suppress(Exception):
                owner.give_up()


os.register_at_fork(after_in_child=_forked)
