"""The server's state machine: members, leases, rounds, duplicates, versions. Pure.

Inputs are events: a worker joins, is ready, pushes, runs out of data, leaves; the
controller opens an epoch. Outputs are instructions. There is no socket, clock, thread
or vector here, so that tests can run any schedule. The order of events comes from
outside: `server/event_log.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias

from shoal.engine.coordination.epochs import Epochs
from shoal.engine.coordination.grants import Grants
from shoal.engine.coordination.groups import Grouping
from shoal.engine.coordination.instructions import (
    Apply,
    EpochDone,
    Instruction,
    Merge,
    PushMetadata,
    Refuse,
    Respond,
    Rollback,
    Rules,
    Ungroup,
)
from shoal.engine.coordination.ledger import Ledger
from shoal.engine.coordination.published_weights import PublishedWeights
from shoal.engine.coordination.publishing import Publishing
from shoal.engine.coordination.pushes import Pushes
from shoal.engine.coordination.roster import LINEAGE_INCARNATIONS, Member, Roster
from shoal.engine.coordination.rounds import Round, RoundProgress, tell_of_round

P = ParamSpec("P")
Method: TypeAlias = Callable[Concatenate["Sequencer", P], list[Instruction]]


def _asking(method: Method[P]) -> Method[P]:
    """Adds the request for a worker's state to the result of a method, if it is due.

    The request comes last: an event can change which worker is asked.
    """

    @wraps(method)
    def completed(
        self: Sequencer, *args: P.args, **kwargs: P.kwargs
    ) -> list[Instruction]:
        return self.complete(method(self, *args, **kwargs))

    return completed


class Sequencer:
    """Decides the instructions for each event, in the order of arrival.

    Args:
        rules: Rules of the run.
        epochs: Epochs of a checkpoint; None for a new run.
        lineage: Counts the histories of the center.
        version: Version of the center.

    Example:
        >>> sequencer = Sequencer(Rules(epoch_rows=(8,), first_epoch=0, epochs=1,
        ...     workers=1, batch=4, window=2, is_rounds=False,
        ...     exchanges_gradients=False, is_elastic=False))
        >>> member = sequencer.join()
        >>> sequencer.proceed(0)
        []
        >>> [answer] = sequencer.ready(member.rank, member.incarnation)
        >>> answer.kind, answer.pieces
        ('grant', (Piece(epoch=0, start=0, stop=8, step_rows=0),))
        >>> push = PushMetadata(0, 1, 0, 1, answer.pieces, steps=2, samples=8.0)
        >>> [type(i).__name__ for i in sequencer.push(push)]
        ['Apply', 'Respond', 'EpochDone']
    """

    def __init__(
        self,
        rules: Rules,
        epochs: Epochs | None = None,
        *,
        lineage: int = 0,
        version: int = 0,
    ) -> None:
        self.rules, self.lineage, self.version = rules, lineage, version
        self.has_finished = False
        self._epochs = Epochs(rules) if epochs is None else epochs
        self._roster = Roster(floor=lineage * LINEAGE_INCARNATIONS)
        self._publishing = Publishing()
        self._round = Round(rules.quorum)
        self._grouping = Grouping(is_wanted=rules.has_groups)
        self._pushes = Pushes(rules, self._roster, self._epochs)
        self._grants = Grants(rules, self._roster, self._epochs, self._round)
        self._published_weights = PublishedWeights(
            self._roster, self._epochs, self._publishing, self._grants
        )

    # -------------------------------------------------------- checkpoints

    def to_json(self) -> dict[str, Any]:
        """State that a server must store for its successor, as plain JSON values.

        The state matches the current center. If workers exchange gradients, the server
        has no current weights: the state then matches the last published snapshot, or
        the initial weights.
        """
        exchanges_gradients = self.rules.exchanges_gradients
        return {
            "lineage": self.lineage,
            "version": self._epochs.saved_version
            if exchanges_gradients
            else self.version,
            "epochs": self._epochs.to_json(),
        }

    @classmethod
    def from_json(
        cls, rules: Rules, document: dict[str, Any], *, newest_lineage: int = 0
    ) -> Sequencer:
        """Returns a new server's sequencer: no members, no leases.

        Its lineage is one higher, so that messages from before a rollback are refused.
        A document of the new lineage must be stored before any worker is answered:
        two servers that began with the same document would share the lineage.

        Args:
            rules: Rules of the run from now on; the number of workers may have changed.
            document: Result of `to_json`.
            newest_lineage: The highest known lineage, if `document` is not the newest
                one because that one was damaged.

        Example:
            >>> rules = Rules(epoch_rows=(8,), first_epoch=0, epochs=1, workers=1,
            ...     batch=4, window=2, is_rounds=False, exchanges_gradients=False,
            ...     is_elastic=False)
            >>> sequencer = Sequencer.from_json(rules, Sequencer(rules).to_json())
            >>> sequencer.lineage, sequencer.join().incarnation
            (1, 1000001)
        """
        lineage = max(document["lineage"], newest_lineage) + 1
        version = document["version"]
        epochs = Epochs.from_json(rules, document["epochs"], version)
        return cls(rules, epochs, lineage=lineage, version=version)

    @property
    def upcoming(self) -> int:
        """The first epoch that is not complete, where a controller continues."""
        return self._epochs.upcoming

    @property
    def is_halted(self) -> bool:
        """Whether open epochs end with the samples that were leased."""
        return self._epochs.is_halted

    # ------------------------------------------------------------ members

    def join(self, hint: int = -1) -> Member:
        """Gives a new process a free rank, if possible the hinted one; fences it."""
        return self._roster.join(hint, self.version)

    @property
    def members(self) -> dict[int, Member]:
        """The living workers, by rank."""
        return self._roster.members

    @property
    def ledger(self) -> Ledger:
        """The leased and committed samples."""
        return self._epochs.ledger

    @property
    def has_round(self) -> bool:
        """Whether a worker has pushed to a round that is not closed."""
        return bool(self._round.pushes)

    @property
    def publisher(self) -> int | None:
        """The worker that was asked for its state, and has not sent it yet."""
        return self._publishing.publisher

    @_asking
    def ready(self, rank: int, incarnation: int) -> list[Instruction]:
        """A worker has compiled and can take data."""
        if not self._roster.is_current(rank, incarnation):
            return [self._refuse_replaced(rank, incarnation)]
        member = self.members[rank]
        if member.is_ready or rank in self._publishing.joiners:
            return self.need(rank, incarnation)
        member.is_parked = True
        if self.has_finished:
            return self._dismiss()
        if self.rules.exchanges_gradients and self._grants.has_started:
            # Its weights must be the common ones of one version: a worker publishes
            # them.
            self._publishing.joiners.append(rank)
            return self._ask()
        member.is_ready = True
        member.is_stale = (
            not self.rules.exchanges_gradients and member.version != self.version
        )
        member.version = self.version
        has_snapshot = self.rules.exchanges_gradients and self._epochs.is_saved
        found: list[Instruction] = []
        if has_snapshot:
            found = self._published_weights.welcome([member], self.version)
        return found + self._ask() + self._hand_out()

    @_asking
    def leave(self, rank: int, incarnation: int) -> list[Instruction]:
        """A worker is gone: its leases return, its round does not wait for it."""
        if not self._roster.is_current(rank, incarnation):
            return []
        del self.members[rank]
        self.ledger.release(rank)
        self._grants.forget(rank)
        self._round.pushes.pop(rank, None)
        self._publishing.forget(rank)
        if self.has_finished:
            return []
        found: list[Instruction] = []
        if (
            self.rules.exchanges_gradients
            and self._grants.has_started
            and not self._roster.ready()
        ):
            found += self._roll_back()
        # The round may have waited for this worker alone. What it held is free by then,
        # and is dealt with the data of the next round.
        return found + self._ask() + self._close_round() + self._hand_out()

    @_asking
    def expect(self, workers: int) -> list[Instruction]:
        """The controller will not bring up more workers than this before the start."""
        self._grants.expected = workers
        return self._hand_out()

    @property
    def expected(self) -> int:
        """Number of workers that the controller brings up before the start."""
        return self._grants.expected

    def _refuse_replaced(self, rank: int, incarnation: int) -> Refuse:
        return Refuse(rank, incarnation, "another process has this rank")

    # ------------------------------------------------------------- epochs

    @_asking
    def proceed(self, epoch: int) -> list[Instruction]:
        """Opens an epoch; without a barrier the one after it may open by itself.

        After a restart, a controller proceeds with the first epoch whose end was not
        reported to it, or with `upcoming` if that is earlier; it then gets the reports
        of all later ones.
        """
        untold = self._epochs.proceed(epoch)
        return [*map(EpochDone, untold), *self._hand_out()]

    @_asking
    def pace(self, after: int | None) -> list[Instruction]:
        """Hands out one step after this version, then waits for the controller.

        Args:
            after: Newest version that was reported to the controller; -1 for the
                current one, None for no limit any more.
        """
        if after is None:
            self._grants.pace(None)
        else:
            self._grants.pace((self.version if after < 0 else after) + 1)
        return self._hand_out()

    @property
    def is_in_step(self) -> bool:
        """Whether each step waits for the controller."""
        return self._grants.is_in_step

    @_asking
    def halt(self) -> list[Instruction]:
        """Hands out no more data: open epochs end with the samples that are leased."""
        self._epochs.halt()
        return self._end_epochs() + self._ask()

    @_asking
    def finish(self) -> list[Instruction]:
        """Ends the run: tells waiting workers now, the others at their next message."""
        self.has_finished = True
        self._publishing.clear()
        # They wait for a round that will not close, and hear that the run is over.
        for rank, _ in self._round.take():
            self.members[rank].is_parked = True
        return self._dismiss()

    def _dismiss(self) -> list[Instruction]:
        parked = [m for m in self.members.values() if m.is_parked]
        for member in parked:
            member.is_parked = False
        return [Respond(m.rank, "done") for m in parked]

    @property
    def clock(self) -> int:
        """Committed steps of the user's batch size; a short batch counts."""
        return self._epochs.clock

    def _end_epochs(self) -> list[Instruction]:
        """Reports complete epochs, or waits for a center that shows them."""
        if not self.rules.exchanges_gradients:
            return [EpochDone(e) for e in self._epochs.end()]
        self._published_weights.end_epochs()
        return []

    # -------------------------------------------------------------- pushes

    @_asking
    def push(self, push: PushMetadata) -> list[Instruction]:
        """A worker sends its work since its last push."""
        # The order of these checks matters: sender, lineage, duplicate, leases. A
        # refusal for a later reason would tell a process that was replaced what it must
        # not learn (decision 14).
        if not self._roster.is_current(push.rank, push.incarnation):
            return [self._refuse_replaced(push.rank, push.incarnation)]
        member = self.members[push.rank]
        member.is_parked = False
        if self.has_finished:
            return [Respond(push.rank, "done")]
        found = self._pushes.check(push, lineage=self.lineage, version=self.version)
        if found is not None:
            return [found]
        if self.rules.is_rounds:
            self._round.pushes[push.rank] = push
            return self._close_round() + self._hand_out()
        facts = self._pushes.commit(push, self.version)
        self.version += 1
        member.version = self.version
        # The answer has the next leases: a worker asks only when there were none.
        self._grants.after_push(member, self.version)
        answer = Respond(push.rank, "reply", "reply", member.tell())
        return [Apply(push.rank, facts), answer, *self._end_epochs(), *self._hand_out()]

    @_asking
    def need(self, rank: int, incarnation: int) -> list[Instruction]:
        """A worker has no data left; it is answered when there is some."""
        if not self._roster.is_current(rank, incarnation):
            return [self._refuse_replaced(rank, incarnation)]
        member = self.members[rank]
        member.is_parked, member.is_late = True, False
        if self.has_finished:
            return self._dismiss()
        if self._publishing.asked == rank:
            return self._publishing.request_now(member)
        return self._close_round() + self._hand_out()

    # -------------------------------------------------------------- rounds

    @property
    def round_progress(self) -> RoundProgress:
        """Progress of the open round; without a quorum it tells nothing."""
        if not self.rules.quorum or self.has_finished:
            return RoundProgress()
        ready = self._roster.ready()
        return self._round.progress(self.version, ready, self.ledger, self.publisher)

    @_asking
    def overdue(self) -> list[Instruction]:
        """Closes a round that has its quorum, without the late members.

        Their leases return. Their pushes for it are answered as repeats and are not
        committed; no round waits for them until then. A round without its quorum stays
        as it is.
        """
        if not self.round_progress.is_quorate:
            return []
        for rank in self._round.pass_over(self._roster.ready(), self.ledger):
            self._publishing.pass_over(rank)
        return self._close_round() + self._ask() + self._hand_out()

    def _close_round(self) -> list[Instruction]:
        """Closes the round when every ready worker has pushed or waits for data.

        A worker that publishes its state has done neither: the round stays open, so
        that the published weights are the current ones.
        """
        # The order below matters. Messages with outdated sums are sent back before the
        # round is taken apart. Samples are committed in the same event in which the
        # center moves, so that no checkpoint or standby sees one without the other.
        # Epochs end, and the controller's requests are served, after all that
        # (decisions 3 and 16).
        ready = self._roster.ready()
        if not self._round.pushes or self._round.awaited(ready, self.ledger):
            return []
        if again := self._round.send_back(ready, self._grouping):
            return again
        pushes = self._round.take()
        was_given_up = self._grouping.is_given_up
        is_grouped = self._grouping.closed([push for _, push in pushes])
        is_grouped |= all(push.is_alone for _, push in pushes)
        facts = {rank: self._pushes.commit(p, self.version) for rank, p in pushes}
        self.version += 1
        self._grants.after_round(self.version)
        told = tell_of_round(self.rules, ready, facts, self.version)
        asked = [*self._end_epochs(), *self._ask()]
        if self._grouping.is_given_up and not was_given_up:
            asked.append(Ungroup())
        return [Merge(facts, is_grouped), *self._grouped(told, ready), *asked]

    def _grouped(self, told: list[Respond], ready: list[Member]) -> list[Respond]:
        # There is no group if a member is asked for its state: the others would wait.
        if self._publishing.is_busy:
            return told
        return self._grouping.tell(told, ready, self.ledger)

    # ------------------------------------------------- published snapshots

    @_asking
    def ask(self, after: int | None = None) -> list[Instruction]:
        """The controller requests the whole state of one worker.

        Args:
            after: The worker's rank is the next one in turn after this; default None:
                the first rank.
        """
        self._publishing.is_wanted, self._publishing.after = True, after
        return self._ask()

    def is_first(self, rank: int) -> bool:
        """Whether this rank is the one that is asked first."""
        return rank == min((m.rank for m in self._roster.candidates()), default=rank)

    def _ask(self) -> list[Instruction]:
        return self._publishing.request(self._roster.candidates())

    def complete(self, found: list[Instruction]) -> list[Instruction]:
        """Adds a request for a worker's state to the instructions of an event."""
        return self._publishing.request_with(found)

    @_asking
    def published(self, rank: int, incarnation: int) -> list[Instruction]:
        """A snapshot has arrived: the center is the common state of this version."""
        if not self._roster.is_current(rank, incarnation) or self.publisher != rank:
            return []
        # It publishes; what it sent before is outdated.
        self.members[rank].is_parked = False
        self._publishing.arrived()
        if not self.rules.exchanges_gradients:
            return []
        return self._published_weights.published(self.version) + self._hand_out()

    def _roll_back(self) -> list[Instruction]:
        """The last worker is lost, and with it the weights after its snapshot."""
        # Under gradient exchange the server holds no weights but the snapshot that was
        # published last. A new lineage refuses pushes that were made from later weights
        # (decision 3).
        self.lineage += 1
        found = self._published_weights.roll_back(self.version)
        return [Rollback(self.lineage), *found]

    def _hand_out(self) -> list[Instruction]:
        """Gives data to every waiting worker for which there is some."""
        if self.has_finished:
            return []
        told = self._grants.hand_out(self.version)
        return [*self._grouped(told, self._roster.ready())] if told else []
