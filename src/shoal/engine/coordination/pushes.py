"""Which pushes count. Pure.

This file decides whether a push is answered, refused or accepted, and commits the
samples of an accepted one. Each sample is committed once, whatever is sent again, late
or by a process that was replaced.
"""

from __future__ import annotations

from typing import final

from shoal.engine.coordination.epochs import Epochs
from shoal.engine.coordination.instructions import PushMetadata, Refuse, Respond, Rules
from shoal.engine.coordination.roster import Member, Roster
from shoal.strategies.base import Facts


@final
class Pushes:
    """Checks pushes, and commits the samples of those that count.

    Args:
        rules: Rules of the run.
        roster: Members of the run.
        epochs: Epochs whose samples are committed.

    Example:
        >>> rules = Rules(epoch_rows=(8,), first_epoch=0, epochs=1, workers=1, batch=4,
        ...     window=2, is_rounds=False, exchanges_gradients=False, is_elastic=False)
        >>> roster, epochs = Roster(), Epochs(rules)
        >>> member, pushes = roster.join(0, version=0), Pushes(rules, roster, epochs)
        >>> epochs.proceed(0)
        []
        >>> piece = epochs.ledger.lease(0, 0, 4)
        >>> push = PushMetadata(0, 1, 0, 1, (piece,), steps=1, samples=4.0)
        >>> pushes.check(push, lineage=0, version=0) is None
        True
        >>> pushes.commit(push, version=0).samples
        4.0
        >>> pushes.check(push, lineage=0, version=1).kind
        'repeat'
    """

    def __init__(self, rules: Rules, roster: Roster, epochs: Epochs) -> None:
        self._rules, self._roster, self._epochs = rules, roster, epochs

    def check(
        self, push: PushMetadata, *, lineage: int, version: int
    ) -> Respond | Refuse | None:
        """Returns the answer to a push of a current member that does not count.

        Args:
            push: The push.
            lineage: Lineage of the center.
            version: Version of the center.

        Returns:
            None if the push counts.
        """
        member = self._roster.members[push.rank]
        if push.lineage != lineage:
            return Refuse(push.rank, push.incarnation, "an older lineage")
        if push.sequence <= member.sequence:
            return self.repeat(member, version)
        if member.is_late:
            # A round closed without it, and others may hold its samples: it does not
            # count. Its number does, so that a repeat gets the same answer (decision
            # 16).
            member.sequence = push.sequence
            return self.repeat(member, version)
        if not push.pieces or not self._epochs.ledger.covers(push.rank, push.pieces):
            return Refuse(push.rank, push.incarnation, "samples it does not hold")
        is_one = self._rules.alone_steps > 0 and len(self._roster.ready()) == 1
        if push.is_alone and not is_one:
            # A second worker becomes ready only with weights that the first one
            # publishes, and the answer to that tells the first one of it: so a worker
            # that still calls itself alone is wrong or forged.
            return Refuse(push.rank, push.incarnation, "steps without its partners")
        return None

    def repeat(self, member: Member, version: int) -> Respond | Refuse:
        """Answers a duplicate whose answer was lost, or a push that came too late.

        In both cases the sender no longer holds its samples. A request that is only
        sent again over a new connection does not come here: `Primary` answers it.
        """
        if self._rules.exchanges_gradients:
            # The mean that it needs is gone, and so are its common weights.
            return Refuse(member.rank, member.incarnation, "a step of the past")
        # The answer tells all leases, as some may have been in the answer that was
        # lost.
        member.untold, member.is_late = [], False
        held = tuple(self._epochs.ledger.held(member.rank))
        if self._rules.is_elastic:
            # Its displacement is gone. An elastic worker goes on from its own weights
            # without it; workers of other strategies adopt the center.
            return Respond(member.rank, "repeat", "none", held)
        member.version, member.is_stale = version, False
        return Respond(member.rank, "repeat", "center", held)

    def commit(self, push: PushMetadata, version: int) -> Facts:
        """Commits the samples of a push; returns the facts for the strategy.

        Args:
            push: The push.
            version: Version of the center before it is applied.
        """
        member = self._roster.members[push.rank]
        self._epochs.ledger.commit(push.rank, push.pieces)
        staleness = version - member.version + 1
        member.sequence, member.missed = push.sequence, 0
        return Facts(
            workers=max(1, len(self._roster.ready())),
            staleness=staleness,
            steps=push.steps,
            samples=push.samples,
            updates=version,
            rows=push.rows,
        )
