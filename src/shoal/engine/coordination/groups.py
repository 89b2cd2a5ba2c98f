"""Steps that workers may average among themselves. Pure.

A group is the set of all workers that take part in the next step. This file decides
when there is one, and whether the mean they computed may be taken as the mean of a
round: only if the round consists of exactly these workers. Everything else goes
through the server, which is always possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from shoal.engine.coordination.instructions import Group, PushMetadata, Respond
from shoal.engine.coordination.ledger import Ledger
from shoal.engine.coordination.roster import Member

MOST_FAILURES = 3  # in a row, of groups that lost no member


@final
@dataclass
class Grouping:
    """The group of workers that average their gradients, and its failures.

    Args:
        is_wanted: Groups may be formed.
        generation: Number of the newest group; each group has its own.
        members: Rank and incarnation of all members.
        is_broken: The group averages nothing any more.
        is_due: The open round was announced as one that the group averages.
        failures: Rounds since the last averaged one in which all members were present.

    Example:
        >>> ledger, members = Ledger(), [Member(r, 1, 0, is_ready=True) for r in (0, 1)]
        >>> ledger.open(0, rows=8)
        >>> pieces = [ledger.lease(m.rank, 0, 4) for m in members]
        >>> grouping = Grouping(is_wanted=True)
        >>> grouping.announce(members, ledger)
        Group(generation=1, ranks=(0, 1))
        >>> pushes = {0: PushMetadata(0, 1, 0, 1, (pieces[0],), 1, 4.0, group=1)}
        >>> grouping.unfit(members, pushes)
        [0]
    """

    is_wanted: bool = False
    generation: int = 0
    members: tuple[tuple[int, int], ...] = ()
    is_broken: bool = False
    is_due: bool = False
    failures: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether groups failed too often without a visible reason."""
        return self.failures >= MOST_FAILURES

    def announce(self, ready: Sequence[Member], ledger: Ledger) -> Group | None:
        """Returns the group of the next step, None if the server averages it.

        Args:
            ready: All members that take part; every one of them is told.
            ledger: Ledger with their leases.
        """
        self.is_due = False
        has_all = all(ledger.pieces_held(member.rank) for member in ready)
        if not self.is_wanted or self.is_given_up or len(ready) < 2 or not has_all:
            return None
        members = tuple((member.rank, member.incarnation) for member in ready)
        if members != self.members or self.is_broken:
            self.generation += 1
            self.members, self.is_broken = members, False
        self.is_due = True
        return Group(self.generation, tuple(rank for rank, _ in members))

    def tell(
        self, answers: list[Respond], ready: Sequence[Member], ledger: Ledger
    ) -> list[Respond]:
        """Adds the group of the next step to answers, if they reach all members.

        Args:
            answers: Answers of one event.
            ready: All members that take part.
            ledger: Ledger with their leases.
        """
        if not self.is_wanted or not answers or len(answers) < len(ready):
            return answers
        group = self.announce(ready, ledger)
        return [answer._replace(group=group) for answer in answers]

    def unfit(
        self, ready: Sequence[Member], pushes: Mapping[int, PushMetadata]
    ) -> list[int]:
        """Ranks that sent no vector, where the group's mean is not the round's."""
        # A group may break for some of its members only. Its mean counts if all have it
        # and nobody else is in the round, else the server asks for the vectors
        # (decision 18).
        without = [rank for rank, push in pushes.items() if push.group]
        is_whole = len(without) == len(pushes) == len(ready)
        current = all(push.group == self.generation for push in pushes.values())
        who = {(push.rank, push.incarnation) for push in pushes.values()}
        is_theirs = current and self.is_due and who == set(self.members)
        return [] if is_whole and is_theirs else without

    def closed(self, pushes: Sequence[PushMetadata]) -> bool:
        """Records a round that closes; returns whether its group averaged it."""
        is_grouped = all(push.group for push in pushes)
        if is_grouped:
            self.failures = 0
        elif self.is_due:
            self.is_broken = True
            # A lost member explains the failure. A group that fails although all are
            # there may never work.
            if {(push.rank, push.incarnation) for push in pushes} == set(self.members):
                self.failures += 1
        self.is_due = False
        return is_grouped
