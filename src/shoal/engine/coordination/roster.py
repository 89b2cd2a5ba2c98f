"""Members of a run. Pure.

This file decides which process has which rank, and which process is a stranger.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.engine.coordination.ledger import Piece


@dataclass
class Member:
    """A live worker, as the server sees it.

    Args:
        rank: The worker's rank.
        incarnation: Counts the processes that had this rank.
        version: Version of the center that it last received.
        is_ready: It has compiled, and holds the right weights.
        is_parked: It waits for data.
        is_stale: It gets the center with its next data.
        is_late: A round closed without it, and it has sent nothing since: the samples
            it works on are no longer leased to it.
        missed: Rounds that closed without it since its last applied push.
        sequence: Number of its last push that was applied.
        untold: Leases that its next answer will contain.
    """

    rank: int
    incarnation: int
    version: int
    is_ready: bool = False
    is_parked: bool = False
    is_stale: bool = False
    is_late: bool = False
    missed: int = 0
    sequence: int = 0
    untold: list[Piece] = field(default_factory=list[Piece])

    def tell(self) -> tuple[Piece, ...]:
        """Returns the leases that were not told yet, and marks them as told."""
        pieces, self.untold = tuple(self.untold), []
        return pieces


LINEAGE_INCARNATIONS = 1_000_000
"""Number of processes that a rank may have under one server.

A new server counts from the next million: processes that joined after its
checkpoint are not in it, and their numbers must not be given again. With the same
number, a process that was replaced could push in the name of its successor.
"""


@dataclass
class Roster:
    """The living members of a run, one per rank.

    Args:
        floor: Incarnations up to this one were given by earlier servers.
        members: Members by rank, in order.
        incarnations: The last incarnation of each rank.
    """

    floor: int = 0
    members: dict[int, Member] = field(default_factory=dict[int, Member])
    incarnations: dict[int, int] = field(default_factory=dict[int, int])

    def join(self, hint: int, version: int) -> Member:
        """Gives a new process a free rank, if possible the hinted one; fences it."""
        taken = self.members
        # Of one rank more than there are members, one is free.
        free = (r for r in range(len(taken) + 1) if r not in taken)
        rank = hint if hint >= 0 and hint not in taken else next(free)
        incarnation = self.incarnations.get(rank, self.floor) + 1
        self.incarnations[rank] = incarnation
        taken[rank] = Member(rank=rank, incarnation=incarnation, version=version)
        # Rounds are merged, and data is dealt, in rank order.
        self.members = dict(sorted(taken.items()))
        return taken[rank]

    def is_current(self, rank: int, incarnation: int) -> bool:
        """Whether a message comes from the current process of the rank."""
        member = self.members.get(rank)
        return member is not None and member.incarnation == incarnation

    def ready(self) -> list[Member]:
        """Members that take part, in rank order."""
        return [member for member in self.members.values() if member.is_ready]

    def punctual(self) -> list[Member]:
        """Ready members that are not late, in rank order.

        Members that missed rounds come after the others: if there is not enough data
        for all, it goes to those that are likely to be in time.
        """
        members = [member for member in self.ready() if not member.is_late]
        return sorted(members, key=lambda member: member.missed)

    def candidates(self) -> list[Member]:
        """Members that can be asked for their state: the punctual ones if there are."""
        return self.punctual() or self.ready()
