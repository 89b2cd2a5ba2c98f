"""What a group is: workers that add vectors among themselves, without the server."""

from __future__ import annotations

from abc import ABC, abstractmethod

from shoal.vectors import Vector

LIMIT_S = 4.0
"""Seconds that members wait for each other, to form a group and to add. Who is later
has not failed: that step goes through the server."""


class GroupBroken(Exception):
    """A member is gone, or too late; nothing can be added in this group any more."""


class Group(ABC):
    """A member's end of a group."""

    @abstractmethod
    def add(self, vector: Vector, mass: float) -> float:
        """Changes `vector` into the sum of all members'; returns the sum of masses.

        Raises:
            GroupBroken: It cannot be had; `vector` is worth nothing then.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves the group at once.

        The others notice when they next add, or `LIMIT_S` later.
        """
