"""Who takes part in a run, and who tells the others what the weights are. Pure.

This file decides which process has which rank, and which worker of a gang
publishes its weights for those that join, for the controller, for a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.engine.coordination.ledger import Piece


@dataclass
class Member:
    """A live worker, as the server sees it.

    Args:
        rank: Its place.
        incarnation: Counts the processes that had this rank.
        version: Of the center it last saw.
        is_ready: It has compiled, and holds the weights it should.
        is_parked: It waits for data.
        is_stale: It is given the center with its next data.
        is_late: A round closed without it, and it has said nothing since: what it
            works on is no longer its own.
        missed: Rounds that did without it since its last push that was applied.
        sequence: Of its last push that was applied.
        untold: Leases it will hear of with its next answer.
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
        """Returns the leases it has not heard of; it has then."""
        pieces, self.untold = tuple(self.untold), []
        return pieces


LINEAGE_INCARNATIONS = 1_000_000
"""Processes a rank may have under one server.

A new server counts from the next million: processes that joined after its checkpoint
was taken are not in it, and their numbers must not be given again. A number that is
given twice would let a process that was replaced push in the name of its successor.
"""


@dataclass
class Roster:
    """The living members of a run, one a rank.

    Args:
        floor: Incarnations up to this one were given by servers before.
        members: By rank, in order.
        incarnations: The last one of each rank.
    """

    floor: int = 0
    members: dict[int, Member] = field(default_factory=dict[int, Member])
    incarnations: dict[int, int] = field(default_factory=dict[int, int])

    def join(self, hint: int, version: int) -> Member:
        """Gives a new process a free rank, the hinted one if it can, and fences it."""
        taken = self.members
        free = (r for r in range(len(taken) + 1) if r not in taken)
        rank = hint if hint >= 0 and hint not in taken else next(free)
        incarnation = self.incarnations.get(rank, self.floor) + 1
        self.incarnations[rank] = incarnation
        taken[rank] = Member(rank=rank, incarnation=incarnation, version=version)
        self.members = dict(sorted(taken.items()))
        return taken[rank]

    def is_current(self, rank: int, incarnation: int) -> bool:
        """Whether a message comes from the process that holds the rank now."""
        member = self.members.get(rank)
        return member is not None and member.incarnation == incarnation

    def ready(self) -> list[Member]:
        """Members that take part, in rank order."""
        return [member for member in self.members.values() if member.is_ready]

    def punctual(self) -> list[Member]:
        """Those of them that are not late, in rank order.

        But whoever missed rounds comes after those that did not: where there is not
        enough for all, it goes to who will be in time.
        """
        members = [member for member in self.ready() if not member.is_late]
        return sorted(members, key=lambda member: member.missed)


@dataclass
class Publishing:
    """Who was asked for its whole state, and what for.

    Args:
        publisher: The rank that is sending it now.
        asked: The rank that will be told with its next answer.
        is_wanted: The controller waits for it.
        after: It wants that of the next rank after this one, None: of the first.
        joiners: Ranks that join a gang and wait for it.
        epochs: Epochs that are complete, but for a center that shows it.
    """

    publisher: int | None = None
    asked: int | None = None
    is_wanted: bool = False
    after: int | None = None
    joiners: list[int] = field(default_factory=list[int])
    epochs: list[int] = field(default_factory=list[int])

    @property
    def is_due(self) -> bool:
        """Whether somebody should be asked who was not yet."""
        is_needed = bool(self.joiners or self.epochs or self.is_wanted)
        return is_needed and self.publisher is None and self.asked is None

    def choose(self, members: Sequence[Member]) -> Member:
        """Who is to publish: the first, or the next in turn."""
        members = sorted(members, key=lambda member: member.rank)
        after = -1 if self.after is None else self.after
        later = [member for member in members if member.rank > after]
        return (later or members)[0]

    def ask(self, rank: int) -> bool:
        """Whether an answer to a worker has to ask it; it is asked then."""
        if self.asked != rank:
            return False
        self.asked, self.publisher = None, rank
        return True

    def forget(self, rank: int) -> None:
        """A worker is gone; another will be asked in its place."""
        self.joiners = [r for r in self.joiners if r != rank]
        self.asked = None if self.asked == rank else self.asked
        self.publisher = None if self.publisher == rank else self.publisher

    def pass_over(self, rank: int) -> None:
        """A worker is late, and may never hear that it was asked."""
        self.asked = None if self.asked == rank else self.asked

    def take_joiners(self) -> list[int]:
        """Returns those that wait; nobody does then."""
        joiners, self.joiners = self.joiners, []
        return joiners

    def take_epochs(self) -> list[int]:
        """Returns the epochs that wait; none does then."""
        epochs, self.epochs = self.epochs, []
        return epochs
