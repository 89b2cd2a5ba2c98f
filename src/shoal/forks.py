"""Forked children: they release what belongs to the run of their parent.

`os.fork` copies every descriptor and every object. A child that kept the ends of
pipes and sockets would keep a run's workers waiting for a dead driver, and one
that left a `with` block would end processes and remove folders of its parent. So each
object with such resources is notified of the fork, in the child, before anything else.
Programs that are executed (`subprocess`) inherit none of it: Python closes its
descriptors then, except for those that are passed on.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol, final


class Owner(Protocol):
    """Owns resources that belong to one process alone."""

    def give_up(self) -> None:
        """Blanks descriptors, and ends and removes nothing; `close` then neither."""
        ...


@final
class Origin:
    """The process that made an object."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of that process."""
        return os.getpid() != self._pid


_owners: dict[int, weakref.ref[Owner]] = {}


def gives_up(owner: Owner) -> None:
    """Calls `give_up` of an object in every child that is forked while it exists.

    Args:
        owner: Object, called with no other thread running, and perhaps with locks that
            no thread will release.
    """
    key = id(owner)
    _owners[key] = weakref.ref(owner, lambda _: _owners.pop(key, None))


def blank(*descriptors: int) -> None:
    """Redirects descriptors to nowhere, and keeps their numbers occupied.

    Args:
        descriptors: Open descriptors; their owners may close them later as usual.
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
