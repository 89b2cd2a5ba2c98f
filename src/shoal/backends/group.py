"""Groups: workers that add vectors among themselves, without the server."""

from __future__ import annotations

from abc import ABC, abstractmethod

from shoal.vectors import Vector

LIMIT_S = 4.0
"""Seconds that members wait for each other, to form a group and to add. After that the
step goes through the server; a late worker has not failed."""


class GroupBroken(Exception):
    """A member is gone or too late; this group cannot add any more."""


class NativeGroup(ABC):
    """A member's end of a group."""

    @abstractmethod
    def add(self, vector: Vector, mass: float) -> float:
        """Changes `vector` into the sum of all members'; returns the sum of masses.

        Raises:
            GroupBroken: The sum cannot be computed; `vector` is invalid then.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves the group at once.

        The others notice when they next add, or after `LIMIT_S`.
        """
