"""The worker that publishes its state, and the reasons for it. Pure.

This file decides which worker is asked for its state, and with which answer: for
workers that join, for epochs that end, for the controller, for a restart. Under
gradient exchange only workers have the current weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from shoal.engine.coordination.instructions import Instruction, Respond
from shoal.engine.coordination.roster import Member


@final
@dataclass
class Publishing:
    """Requests for a worker's whole state, and their reasons.

    At most one worker is asked at a time: it is `asked` until an answer to it carries
    the request, and `publisher` until its state arrives.

    Args:
        publisher: Rank that is sending its state now.
        asked: Rank that is asked with its next answer.
        is_wanted: The controller waits for a state.
        after: The controller wants the state of the next rank after this one; None for
            the first.
        joiners: Ranks that join under gradient exchange and wait for the state.
        epochs: Epochs that are complete, except for a center that shows it.

    Example:
        >>> publishing = Publishing(is_wanted=True)
        >>> publishing.request([Member(0, 1, 0)])
        []
        >>> publishing.request_with([Respond(0, "grant")])[0].wants_snapshot
        True
    """

    publisher: int | None = None
    asked: int | None = None
    is_wanted: bool = False
    after: int | None = None
    joiners: list[int] = field(default_factory=list[int])
    epochs: list[int] = field(default_factory=list[int])

    @property
    def is_busy(self) -> bool:
        """Whether a worker is asked for its state, or sends it now."""
        return self.publisher is not None or self.asked is not None

    def request(self, members: Sequence[Member]) -> list[Instruction]:
        """Asks one worker to publish its state, if it is needed.

        Args:
            members: Members that can be asked.
        """
        is_needed = bool(self.joiners or self.epochs or self.is_wanted)
        if not is_needed or self.is_busy or not members:
            return []
        member = self._choose(members)
        if member.is_parked:
            return self.request_now(member)
        # It computes: it is asked with the answer to its next message.
        self.asked = member.rank
        return []

    def _choose(self, members: Sequence[Member]) -> Member:
        """Returns the member that publishes: the first, or the next in turn."""
        # Members may come by the rounds they missed; turns go by rank.
        members = sorted(members, key=lambda member: member.rank)
        after = -1 if self.after is None else self.after
        later = [member for member in members if member.rank > after]
        return (later or members)[0]

    def request_now(self, member: Member) -> list[Instruction]:
        """Asks a worker that waits for data."""
        member.is_parked = False
        self.asked, self.publisher = None, member.rank
        return [Respond(member.rank, "publish")]

    def request_with(self, found: list[Instruction]) -> list[Instruction]:
        """Marks the next answer to the worker that must publish its state.

        After "again", a worker has to send something else first. The request goes out
        with this answer and no other, on the standby too, which makes the same answers
        (decision 14).
        """
        if self.asked is None:
            return found
        for place, answer in enumerate(found):
            if not isinstance(answer, Respond) or answer.kind in ("again", "publish"):
                continue
            if answer.rank == self.asked:
                self.asked, self.publisher = None, answer.rank
                found[place] = answer._replace(wants_snapshot=True)
        return found

    def clear(self) -> None:
        """Forgets all requests: the run has finished."""
        self.publisher = self.asked = self.after = None
        self.is_wanted = False
        self.joiners, self.epochs = [], []

    def arrived(self) -> None:
        """Records that the publisher's state has arrived."""
        self.publisher, self.is_wanted = None, False

    def forget(self, rank: int) -> None:
        """Forgets a lost worker; another one will be asked."""
        self.joiners = [r for r in self.joiners if r != rank]
        self.asked = None if self.asked == rank else self.asked
        self.publisher = None if self.publisher == rank else self.publisher

    def pass_over(self, rank: int) -> None:
        """Asks another worker: a late one may never receive the request."""
        self.asked = None if self.asked == rank else self.asked

    def take_joiners(self) -> list[int]:
        """Returns the ranks that wait, and clears them."""
        joiners, self.joiners = self.joiners, []
        return joiners

    def take_epochs(self) -> list[int]:
        """Returns the epochs that wait, and clears them."""
        epochs, self.epochs = self.epochs, []
        return epochs
