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
from shoal.engine.coordination.leases import Leases
from shoal.engine.coordination.ledger import Ledger
from shoal.engine.coordination.roster import (
    LINEAGE_INCARNATIONS,
    Member,
    Publishing,
    Roster,
)
from shoal.engine.coordination.rounds import Round, RoundProgress, tell_of_round
from shoal.strategies.base import Facts

P = ParamSpec("P")
Method: TypeAlias = Callable[Concatenate["Sequencer", P], list[Instruction]]


def _asking(method: Method[P]) -> Method[P]:
    """Adds the request for a worker's state to the result of a method, if it is due.

    The request comes last: an event can change which worker is asked.
    """

    @wraps(method)
    def complete(
        self: Sequencer, *args: P.args, **kwargs: P.kwargs
    ) -> list[Instruction]:
        return self.with_request(method(self, *args, **kwargs))

    return complete


class Sequencer:
    """Decides the instructions for each event, in the order of arrival.

    Args:
        rules: Rules of the run.

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

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._epochs = Epochs(rules)
        self._roster = Roster()
        self._publishing = Publishing()
        self._grants = Leases(rules)
        self.lineage = 0
        self.version = 0
        self.expected = rules.workers
        self.has_started = self.has_finished = False
        self._limit: int | None = None
        self._round = Round(rules.quorum)
        self._grouping = Grouping(is_wanted=rules.has_groups)

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
        sequencer = cls(rules)
        sequencer.lineage = max(document["lineage"], newest_lineage) + 1
        sequencer.version = document["version"]
        epochs = document["epochs"]
        sequencer._epochs = Epochs.from_json(rules, epochs, sequencer.version)
        sequencer._roster = Roster(floor=sequencer.lineage * LINEAGE_INCARNATIONS)
        return sequencer

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
        if self.rules.exchanges_gradients and self.has_started:
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
        found = self._welcome([member]) if has_snapshot else []
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
            and self.has_started
            and not self._roster.ready()
        ):
            found += self._roll_back()
        # The round may have waited for this worker alone. What it held is free by then,
        # and is dealt with the data of the next round.
        return found + self._ask() + self._close_round() + self._hand_out()

    @_asking
    def expect(self, workers: int) -> list[Instruction]:
        """The controller will not bring up more workers than this before the start."""
        self.expected = workers
        return self._hand_out()

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
        self._limit = None
        if after is not None:
            self._limit = (self.version if after < 0 else after) + 1
        return self._hand_out()

    @property
    def is_in_step(self) -> bool:
        """Whether each step waits for the controller."""
        return self._limit is not None

    @property
    def _ahead(self) -> int | None:
        """Most steps that a worker may hold; None for no limit."""
        return None if self._limit is None else max(0, self._limit - self.version)

    @_asking
    def halt(self) -> list[Instruction]:
        """Hands out no more data: open epochs end with the samples that are leased."""
        self._epochs.halt()
        return self._end_epochs() + self._ask()

    @_asking
    def finish(self) -> list[Instruction]:
        """Ends the run: tells waiting workers now, the others at their next message."""
        self.has_finished = True
        self._publishing = Publishing()
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
        self._publishing.epochs += self._epochs.end()
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
        if push.lineage != self.lineage:
            return [Refuse(push.rank, push.incarnation, "an older lineage")]
        if push.sequence <= member.sequence:
            return [self._repeat(member)]
        if member.is_late:
            # A round closed without it, and others may hold its samples: it does not
            # count. Its number does, so that a repeat gets the same answer (decision
            # 16).
            member.sequence = push.sequence
            return [self._repeat(member)]
        if not push.pieces or not self.ledger.covers(push.rank, push.pieces):
            return [Refuse(push.rank, push.incarnation, "samples it does not hold")]
        if self.rules.is_rounds:
            self._round.pushes[push.rank] = push
            return self._close_round() + self._hand_out()
        facts = self._accept(member, push)
        self.version += 1
        member.version = self.version
        # The answer has the next leases: a worker asks only when there were none.
        self._epochs.open_next()
        self._grant(member)
        answer = Respond(push.rank, "reply", "reply", member.tell())
        return [Apply(push.rank, facts), answer, *self._end_epochs(), *self._hand_out()]

    def _accept(self, member: Member, push: PushMetadata) -> Facts:
        staleness = self.version - member.version + 1
        self.ledger.commit(push.rank, push.pieces)
        member.sequence, member.missed = push.sequence, 0
        return Facts(
            workers=max(1, len(self._roster.ready())),
            staleness=staleness,
            steps=push.steps,
            samples=push.samples,
            updates=self.version,
            rows=push.rows,
        )

    def _repeat(self, member: Member) -> Respond | Refuse:
        """Answers a duplicate whose answer was lost, or a push that came too late.

        In both cases the sender no longer holds its samples. A request that is only
        sent again over a new connection does not come here: `Primary` answers it.
        """
        if self.rules.exchanges_gradients:
            # The mean that it needs is gone, and so are its common weights.
            return Refuse(member.rank, member.incarnation, "a step of the past")
        # The answer tells all leases, as some may have been in the answer that was
        # lost.
        member.untold, member.is_late = [], False
        held = tuple(self.ledger.held(member.rank))
        if self.rules.is_elastic:
            # Its displacement is gone. It goes on from its own weights without this
            # one, where other strategies adopt the center.
            return Respond(member.rank, "repeat", "none", held)
        member.version, member.is_stale = self.version, False
        return Respond(member.rank, "repeat", "center", held)

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
            return self._ask_parked(member)
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
        if outdated := self._round.outdated():
            # A worker of the round was lost: the step has fewer rows than its messages
            # were scaled by, so they are computed again with the new sums.
            sums = self._round.sums
            for rank in outdated:
                del self._round.pushes[rank]
            return [Respond(rank, "again", sums=sums) for rank in outdated]
        if unfit := self._grouping.unfit(ready, self._round.pushes):
            for rank in unfit:
                del self._round.pushes[rank]
            return [Respond(rank, "again") for rank in unfit]
        pushes = self._round.take()
        was_given_up = self._grouping.is_given_up
        is_grouped = self._grouping.closed([push for _, push in pushes])
        facts = {rank: self._accept(self.members[rank], push) for rank, push in pushes}
        self.version += 1
        self._epochs.open_next()
        self._deal()
        told = tell_of_round(self.rules, ready, facts, self.version)
        asked = [*self._end_epochs(), *self._ask()]
        if self._grouping.is_given_up and not was_given_up:
            asked.append(Ungroup())
        return [Merge(facts, is_grouped), *self._grouped(told, ready), *asked]

    def _grouped(self, told: list[Respond], ready: list[Member]) -> list[Respond]:
        """Adds the group of the next step to answers that reach all members.

        There is no group if a member is asked for its state: the others would wait.
        """
        busy = self._publishing.asked, self._publishing.publisher
        if not self.rules.has_groups or len(told) < len(ready) or busy != (None, None):
            return told
        group = self._grouping.announce(ready, self.ledger)
        return [answer._replace(group=group) for answer in told]

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
        ready = self._roster.punctual() or self._roster.ready()
        return rank == min((member.rank for member in ready), default=rank)

    def _ask(self) -> list[Instruction]:
        """Asks one worker to publish its state, if it is needed."""
        ready = self._roster.punctual() or self._roster.ready()
        if not self._publishing.is_due or not ready:
            return []
        member = self._publishing.choose(ready)
        if member.is_parked:
            return self._ask_parked(member)
        # It computes: it is asked with the answer to its next message.
        self._publishing.asked = member.rank
        return []

    def _ask_parked(self, member: Member) -> list[Instruction]:
        member.is_parked = False
        self._publishing.asked, self._publishing.publisher = None, member.rank
        return [Respond(member.rank, "publish")]

    def with_request(self, found: list[Instruction]) -> list[Instruction]:
        """Marks the next answer to the worker that must publish its state.

        After "again", a worker has to send something else first. The request goes out
        with this answer and no other, on the standby too, which makes the same answers
        (decision 14).
        """
        if self._publishing.asked is None:
            return found
        for place, answer in enumerate(found):
            if not isinstance(answer, Respond) or answer.kind in ("again", "publish"):
                continue
            if self._publishing.ask(answer.rank):
                found[place] = answer._replace(wants_snapshot=True)
        return found

    @_asking
    def published(self, rank: int, incarnation: int) -> list[Instruction]:
        """A snapshot has arrived: the center is the common state of this version."""
        if not self._roster.is_current(rank, incarnation) or self.publisher != rank:
            return []
        # It publishes; what it sent before is outdated.
        self.members[rank].is_parked = False
        self._publishing.publisher, self._publishing.is_wanted = None, False
        if not self.rules.exchanges_gradients:
            return []
        self._epochs.save(self.version)
        done = [EpochDone(e) for e in self._publishing.take_epochs()]
        joiners = [self.members[rank] for rank in self._publishing.take_joiners()]
        return [*done, *self._welcome(joiners), *self._hand_out()]

    def _welcome(self, fresh: list[Member]) -> list[Instruction]:
        """Gives the snapshot to workers that join under gradient exchange.

        They get it at once, with or without data: the next round changes their weights.
        """
        for member in fresh:
            member.is_ready, member.is_parked = True, False
            member.version = self.version
        if self.has_started:
            self._distribute()
        return [Respond(m.rank, "grant", "snapshot", m.tell()) for m in fresh]

    def _roll_back(self) -> list[Instruction]:
        """The last worker is lost, and with it the weights after its snapshot."""
        # Under gradient exchange the server holds no weights but the snapshot that was
        # published last. Samples committed since then are free again: the weights that
        # were trained on them are lost. A new lineage refuses pushes that were made
        # from those weights (decision 3).
        self.lineage += 1
        self._epochs.restore()
        self._publishing.take_epochs()
        self.has_started = False
        found: list[Instruction] = [Rollback(self.lineage), *self._end_epochs()]
        joiners = [self.members[rank] for rank in self._publishing.take_joiners()]
        if self._epochs.is_saved:
            return found + self._welcome(joiners)
        for member in joiners:  # they hold the initial weights
            member.is_ready, member.version = True, self.version
        return found

    # --------------------------------------------------------------- grants

    def _hand_out(self) -> list[Instruction]:
        """Gives data to every waiting worker for which there is some."""
        ready = self._roster.ready()
        if self.has_finished or not self._start(len(ready)):
            return []
        self._distribute()
        waiting = [m for m in ready if m.is_parked and m.untold]
        return [*self._grouped([self._grant_answer(m) for m in waiting], ready)]

    def _start(self, ready: int) -> bool:
        """Whether data may be given; round strategies wait for all expected workers."""
        if not self.has_started:
            # Rounds of those that happened to start first would make a run that nobody
            # can repeat.
            is_full = ready >= (self.expected if self.rules.is_rounds else 1)
            self.has_started = is_full and self._epochs.has_data
        return self.has_started

    def _distribute(self) -> None:
        """Leases what may be leased now; answers tell the workers."""
        self._epochs.open_next()
        ready = self._roster.ready()
        if not self.rules.is_rounds:
            for member in ready:
                if member.is_parked:
                    self._grant(member)
        elif not self._round.has_begun(ready, self.ledger):
            self._deal()

    def _grant(self, member: Member) -> None:
        self._grants.grant(self.ledger, member, self._sharers(), self._ahead)

    def _deal(self) -> None:
        if self._grants.deal(self.ledger, self._roster.punctual(), self._ahead):
            self._round.dealt += 1

    def _sharers(self) -> int:
        """Number of workers that share an epoch, compiling ones included."""
        return max(1, self.expected, len(self._roster.ready()))

    def _grant_answer(self, member: Member) -> Respond:
        body = "center" if member.is_stale else "none"
        if member.is_stale:
            member.version = self.version
        member.is_stale = member.is_parked = False
        return Respond(member.rank, "grant", body, member.tell())
