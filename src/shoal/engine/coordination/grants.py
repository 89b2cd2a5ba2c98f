"""Who gets data, and when. Pure.

This file decides when a run starts, how far workers may go before the controller says
more, and which waiting workers are answered with leases. How many rows a lease has is
decided in `leases.py`.
"""

from __future__ import annotations

from typing import final

from shoal.engine.coordination.epochs import Epochs
from shoal.engine.coordination.instructions import Respond, Rules
from shoal.engine.coordination.leases import AHEAD, Leases
from shoal.engine.coordination.roster import Member, Roster
from shoal.engine.coordination.rounds import Round


@final
class Grants:
    """Gives leases to members, and answers those that wait for them.

    Nothing is leased before the start, and no step beyond the controller's limit.

    Args:
        rules: Rules of the run.
        roster: Members that get leases.
        epochs: Epochs whose samples are leased.
        round_: The open round; nobody gets a lease of a round that has begun.

    Attributes:
        expected: Number of workers that the controller brings up before the start.
        has_started: Whether any data may have been leased.
    """

    def __init__(
        self, rules: Rules, roster: Roster, epochs: Epochs, round_: Round
    ) -> None:
        self._rules, self._roster, self._epochs = rules, roster, epochs
        self._round = round_
        self._leases = Leases(rules)
        self.expected = rules.workers
        self.has_started = False
        self._limit: int | None = None

    def forget(self, rank: int) -> None:
        """Forgets a lost worker."""
        self._leases.forget(rank)

    # ------------------------------------------------------------------ pace

    def pace(self, last: int | None) -> None:
        """Limits the run.

        Args:
            last: The version of the center that steps may lead to; None for no limit.
        """
        self._limit = last

    @property
    def is_in_step(self) -> bool:
        """Whether each step waits for the controller."""
        return self._limit is not None

    def _ahead(self, version: int) -> int | None:
        """Most steps that a worker may hold; None for no limit."""
        return None if self._limit is None else max(0, self._limit - version)

    # ---------------------------------------------------------------- leases

    def hand_out(self, version: int) -> list[Respond]:
        """Gives data to every waiting worker for which there is some.

        Args:
            version: Version of the center.
        """
        ready = self._roster.ready()
        if not self._start(len(ready)):
            return []
        self.distribute(version)
        waiting = [m for m in ready if m.is_parked and m.untold]
        return [self._answer(member, version) for member in waiting]

    def _start(self, ready: int) -> bool:
        """Whether data may be given; round strategies wait for all expected workers."""
        if not self.has_started:
            # Rounds of those that happened to start first would make a run that nobody
            # can repeat.
            is_full = ready >= (self.expected if self._rules.is_rounds else 1)
            self.has_started = is_full and self._epochs.has_data
        return self.has_started

    def distribute(self, version: int) -> None:
        """Leases what may be leased now; answers tell the workers."""
        self._epochs.open_next()
        ready = self._roster.ready()
        if not self._rules.is_rounds:
            for member in ready:
                if member.is_parked:
                    self._grant(member, version)
        elif not self._round.has_begun(ready, self._epochs.ledger):
            self._deal(version)

    def after_push(self, member: Member, version: int) -> None:
        """Leases data for the worker's next windows; its answer tells it."""
        self._epochs.open_next()
        self._grant(member, version)

    def after_round(self, version: int) -> None:
        """Leases data for the next rounds; answers of this one tell the workers."""
        self._epochs.open_next()
        self._deal(version)

    def _grant(self, member: Member, version: int) -> None:
        # Compiling workers share an epoch as well.
        sharers = max(1, self.expected, len(self._roster.ready()))
        ledger, ahead = self._epochs.ledger, self._ahead(version)
        self._leases.grant(ledger, member, sharers, ahead)

    def _deal(self, version: int) -> None:
        ledger, ahead = self._epochs.ledger, self._ahead(version)
        most = AHEAD
        if self._rules.alone_steps and len(self._roster.members) == 1:
            # Its next pushes cover many steps. Members that compile count as well: all
            # that is leased now is exchanged step by step once one of them is ready.
            most *= self._rules.alone_steps
        most = most if ahead is None else min(most, ahead)
        if self._leases.deal(ledger, self._roster.punctual(), most):
            self._round.dealt += 1

    def _answer(self, member: Member, version: int) -> Respond:
        """Tells a worker its leases; one with an older center gets that as well."""
        body = "center" if member.is_stale else "none"
        if member.is_stale:
            member.version = version
        member.is_stale = member.is_parked = False
        return Respond(member.rank, "grant", body, member.tell())
