"""The open round: the messages it has, and the workers it waits for. Pure.

This file decides whether a round may close without late workers. `timeouts.py`
decides when that is done, `sequencer.py` what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shoal.engine.coordination.groups import Grouping
from shoal.engine.coordination.instructions import (
    Instruction,
    PushMetadata,
    Respond,
    Rules,
)
from shoal.engine.coordination.ledger import Ledger
from shoal.engine.coordination.roster import Member
from shoal.strategies.base import Facts


class RoundProgress(NamedTuple):
    """Progress of a round; input of `StragglerTimeout`.

    Args:
        closed: Rounds before this one.
        dealt: Number of times data was dealt; a worker begins to compute with it.
        pushes: Messages of this round that have arrived.
        awaited: Ranks that the round waits for.
        is_quorate: The round may close without them.
        fruitless: Times that it gave up the awaited workers without any message.
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
    """The messages of the open round.

    Args:
        quorum: Number of workers that can close it, 0 for all.
        pushes: Messages by rank.
        dealt: Number of times data was dealt.
        fruitless: Times that it gave up the awaited workers without any message.

    Example:
        >>> ledger, members = Ledger(), [Member(r, 1, 0, is_ready=True) for r in (0, 1)]
        >>> ledger.open(0, rows=8)
        >>> pieces = [ledger.lease(m.rank, 0, 4) for m in members]
        >>> round_ = Round(quorum=1)
        >>> round_.pushes[0] = PushMetadata(0, 1, 0, 1, (pieces[0],), 1, 4.0)
        >>> [m.rank for m in round_.awaited(members, ledger)]
        [1]
        >>> round_.is_quorate(members, ledger)
        True
    """

    quorum: int = 0
    pushes: dict[int, PushMetadata] = field(default_factory=dict[int, PushMetadata])
    dealt: int = 0
    fruitless: int = 0

    def awaited(self, ready: Sequence[Member], ledger: Ledger) -> list[Member]:
        """Members that will push, or report that they have no data.

        Late members are not among them: their next message belongs to an earlier round.
        """
        return [
            m
            for m in ready
            if m.rank not in self.pushes
            and not m.is_late
            # Without leases and waiting for data, it has done its part.
            and (ledger.pieces_held(m.rank) or not m.is_parked)
        ]

    def has_begun(self, ready: Sequence[Member], ledger: Ledger) -> bool:
        """Whether it is too late to take part in the round.

        It is after the first message: otherwise deals would depend on who is faster.
        With a quorum it is as soon as a member computes: others had less time.
        """
        if self.pushes or not self.quorum:
            return bool(self.pushes)
        return any(ledger.pieces_held(m.rank) for m in self.awaited(ready, ledger))

    def is_quorate(self, ready: Sequence[Member], ledger: Ledger) -> bool:
        """Whether the round may close without the awaited members.

        Members that wait for data have done their part. Without any message nothing can
        be closed, but others can take over the leases of the one that all wait for.
        """
        awaited = self.awaited(ready, ledger)
        done = sum(not m.is_late for m in ready) - len(awaited)
        is_enough = 0 < min(self.quorum, len(ready)) <= done
        has_gain = self.pushes or any(ledger.pieces_held(m.rank) for m in awaited)
        return bool(is_enough and awaited and has_gain)

    def progress(
        self,
        closed: int,
        ready: Sequence[Member],
        ledger: Ledger,
        publisher: int | None,
    ) -> RoundProgress:
        """Returns the progress of the round.

        Args:
            closed: Number of rounds before this one.
            ready: Members that take part.
            ledger: Ledger with their leases.
            publisher: Rank that sends its whole state, which may take long: the round
                is not quorate while it waits for it.
        """
        awaited = tuple(m.rank for m in self.awaited(ready, ledger))
        return RoundProgress(
            closed=closed,
            dealt=self.dealt,
            pushes=len(self.pushes),
            awaited=awaited,
            is_quorate=publisher not in awaited and self.is_quorate(ready, ledger),
            fruitless=self.fruitless,
        )

    def pass_over(self, ready: Sequence[Member], ledger: Ledger) -> list[int]:
        """Gives up the awaited members: their leases return; they are late."""
        late = self.awaited(ready, ledger)
        self.fruitless += 1
        for member in late:
            ledger.release(member.rank)
            member.missed += 1
            # If it seemed to wait although it had data, that message was an old one.
            member.is_late, member.is_parked, member.untold = True, False, []
        return [member.rank for member in late]

    @property
    def sums(self) -> tuple[float, ...]:
        """The messages' total of each sum that losses are scaled by."""
        parts = [push.own for _, push in sorted(self.pushes.items()) if push.own]
        return tuple(map(sum, zip(*parts, strict=False)))

    def outdated(self) -> list[int]:
        """Ranks whose losses were scaled by sums other than those of this round."""
        sums = self.sums
        return [r for r, p in self.pushes.items() if p.own and p.assumed != sums]

    def send_back(
        self, ready: Sequence[Member], grouping: Grouping
    ) -> list[Instruction]:
        """Removes messages that no round can merge, and asks for them again.

        Args:
            ready: Members that take part.
            grouping: The group that may have averaged the round.
        """
        if outdated := self.outdated():
            # A worker of the round was lost: the step has fewer rows than its messages
            # were scaled by, so they are computed again with the new sums.
            sums = self.sums
            again = [Respond(rank, "again", sums=sums) for rank in outdated]
        else:
            unfit = grouping.unfit(ready, self.pushes)
            again = [Respond(rank, "again") for rank in unfit]
        for answer in again:
            del self.pushes[answer.rank]
        return [*again]

    def take(self) -> list[tuple[int, PushMetadata]]:
        """Returns the messages in rank order; the next round has none."""
        pushes, self.pushes, self.fruitless = sorted(self.pushes.items()), {}, 0
        return pushes


def tell_of_round(
    rules: Rules, ready: Sequence[Member], facts: Mapping[int, Facts], version: int
) -> list[Respond]:
    """Updates members after a merged round.

    Args:
        rules: Rules of the run.
        ready: Members that take part.
        facts: Facts of the ranks whose messages were merged.
        version: Version of the center after the merge.
    """
    found: list[Respond] = []
    for member in ready:
        member.version = version
        if member.rank in facts:
            found.append(Respond(member.rank, "reply", "reply", member.tell()))
        elif rules.exchanges_gradients:
            member.is_parked = False
            found.append(Respond(member.rank, "merged", "reply", member.tell()))
        else:
            member.is_stale = not rules.is_elastic
    return found
