"""The round that is open: who has pushed, and whom it waits for. Pure.

This file decides whether a round may close without those it waits for. When that
is done lies in `timeouts.py`, what follows from it in `sequencer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shoal.engine.coordination.instructions import Answer, Push, Rules
from shoal.engine.coordination.ledger import Ledger
from shoal.engine.coordination.roster import Member
from shoal.strategies.base import Facts


class Standing(NamedTuple):
    """How far a round has come; `Grace` is fed with it.

    Args:
        closed: Rounds before this one.
        dealt: How often data was dealt; a worker begins to compute with it.
        pushes: Messages of this round that are there.
        awaited: Ranks it waits for.
        is_quorate: It may close without them.
        fruitless: How often it gave up whom it waited for, without any message.
    """

    closed: int = 0
    dealt: int = 0
    pushes: int = 0
    awaited: tuple[int, ...] = ()
    is_quorate: bool = False
    fruitless: int = 0


@final
@dataclass
class Round:
    """The messages of the round that is open.

    Args:
        quorum: Workers that are enough for it, 0 for all.
        pushes: By rank.
        dealt: How often data was dealt.
        fruitless: How often it gave up whom it waited for, without any message.

    Example:
        >>> ledger, members = Ledger(), [Member(r, 1, 0, is_ready=True) for r in (0, 1)]
        >>> ledger.open(0, rows=8)
        >>> pieces = [ledger.lease(m.rank, 0, 4) for m in members]
        >>> round_ = Round(quorum=1)
        >>> round_.pushes[0] = Push(0, 1, 0, 1, (pieces[0],), steps=1, samples=4.0)
        >>> [m.rank for m in round_.awaited(members, ledger)]
        [1]
        >>> round_.is_quorate(members, ledger)
        True
    """

    quorum: int = 0
    pushes: dict[int, Push] = field(default_factory=dict[int, Push])
    dealt: int = 0
    fruitless: int = 0

    def awaited(self, ready: Sequence[Member], ledger: Ledger) -> list[Member]:
        """Members that will push, or say that they have no data.

        Not those that are late: whatever they say next, it is of an earlier round.
        """
        return [
            m
            for m in ready
            if m.rank not in self.pushes
            and not m.is_late
            and (ledger.pieces_held(m.rank) or not m.is_parked)
        ]

    def has_begun(self, ready: Sequence[Member], ledger: Ledger) -> bool:
        """Whether it is too late to take part in it.

        With a first message it is: otherwise deals would depend on who is faster. With
        a quorum already while somebody computes: others had less time than the rest.
        """
        if self.pushes or not self.quorum:
            return bool(self.pushes)
        return any(ledger.pieces_held(m.rank) for m in self.awaited(ready, ledger))

    def is_quorate(self, ready: Sequence[Member], ledger: Ledger) -> bool:
        """Whether it may close without those it waits for.

        Whoever waits for data has done its part. Without any message there is nothing
        to close, but others can take over what the one they all wait for holds.
        """
        awaited = self.awaited(ready, ledger)
        done = sum(not m.is_late for m in ready) - len(awaited)
        is_enough = 0 < min(self.quorum, len(ready)) <= done
        has_gain = self.pushes or any(ledger.pieces_held(m.rank) for m in awaited)
        return bool(is_enough and awaited and has_gain)

    def standing(
        self,
        closed: int,
        ready: Sequence[Member],
        ledger: Ledger,
        publisher: int | None,
    ) -> Standing:
        """How far it has come.

        Args:
            closed: Rounds before this one.
            ready: Members that take part.
            ledger: Of what they hold.
            publisher: Who sends its whole state. That takes as long as it takes:
                nothing is quorate while the round waits for it.
        """
        awaited = tuple(m.rank for m in self.awaited(ready, ledger))
        return Standing(
            closed=closed,
            dealt=self.dealt,
            pushes=len(self.pushes),
            awaited=awaited,
            is_quorate=publisher not in awaited and self.is_quorate(ready, ledger),
            fruitless=self.fruitless,
        )

    def pass_over(self, ready: Sequence[Member], ledger: Ledger) -> list[int]:
        """Gives up whom it waits for: their leases return; they are late."""
        late = self.awaited(ready, ledger)
        self.fruitless += 1
        for member in late:
            ledger.release(member.rank)
            member.missed += 1
            # If it seemed to wait with data in hand, that was an old word of it.
            member.is_late, member.is_parked, member.untold = True, False, []
        return [member.rank for member in late]

    @property
    def sums(self) -> tuple[float, ...]:
        """What the messages have together of each sum that losses are scaled by."""
        parts = [push.own for _, push in sorted(self.pushes.items()) if push.own]
        return tuple(map(sum, zip(*parts, strict=False)))

    def outdated(self) -> list[int]:
        """Ranks whose losses were scaled by other sums than those of this round."""
        sums = self.sums
        return [r for r, p in self.pushes.items() if p.own and p.assumed != sums]

    def take(self) -> list[tuple[int, Push]]:
        """Returns the messages in rank order; the next round has none."""
        pushes, self.pushes, self.fruitless = sorted(self.pushes.items()), {}, 0
        return pushes


def tell_of_round(
    rules: Rules, ready: Sequence[Member], facts: Mapping[int, Facts], version: int
) -> list[Answer]:
    """What members hear of a round that was merged.

    Args:
        rules: Of the run.
        ready: Members that take part.
        facts: Of those whose messages went into it.
        version: Of the center since.
    """
    found: list[Answer] = []
    for member in ready:
        member.version = version
        if member.rank in facts:
            found.append(Answer(member.rank, "reply", "reply", member.tell()))
        elif rules.exchanges_gradients:
            member.is_parked = False
            found.append(Answer(member.rank, "merged", "reply", member.tell()))
        else:
            member.is_stale = not rules.is_elastic
    return found
