"""The server's state machine: members, leases, rounds, duplicates, versions. Pure.

Events go in (a worker joins, is ready, pushes, runs out of data, leaves; the
controller opens an epoch), instructions come out. There is no socket, clock,
thread or vector here, so that tests can drive it through any schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from shoal.engine.ledger import Ledger, Piece
from shoal.strategies.base import Facts

AHEAD = 2  # windows a worker holds: one it computes, one it can read ahead


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the sequencer needs to know of the plan.

    Args:
        epoch_rows: Samples of epochs 0, 1, ..., repeated from the start.
        first_epoch: The epoch a run starts with.
        epochs: The epoch it ends before.
        workers: How many must be ready before a round strategy starts.
        batch: Rows of one step of one worker; with `is_gang`, of all together.
        window: Steps between two exchanges.
        is_rounds: Messages are merged in rounds.
        is_gang: Rounds are single steps of gradients, one share a worker.
        is_elastic: A worker keeps its own weights where others adopt the center.
        has_barrier: An epoch opens when the controller says so.
    """

    epoch_rows: tuple[int, ...]
    first_epoch: int
    epochs: int
    workers: int
    batch: int
    window: int
    is_rounds: bool
    is_gang: bool
    is_elastic: bool
    has_barrier: bool = True


@dataclass
class Member:
    """A live worker, as the server sees it."""

    rank: int
    incarnation: int
    is_ready: bool = False
    is_parked: bool = False
    is_stale: bool = False
    sequence: int = 0
    version: int = 0
    steps: int = 0
    untold: list[Piece] = field(default_factory=list[Piece])


class Push(NamedTuple):
    """What a worker says about a message, without its vector."""

    rank: int
    incarnation: int
    lineage: int
    sequence: int
    pieces: tuple[Piece, ...]
    steps: int
    samples: float


class Apply(NamedTuple):
    """Apply the sender's message to the center."""

    rank: int
    facts: Facts


class Merge(NamedTuple):
    """Merge the messages of a round."""

    facts: dict[int, Facts]


Body: TypeAlias = Literal["none", "reply", "center", "snapshot"]


class Answer(NamedTuple):
    """Answer a worker that waits.

    Args:
        rank: Whom.
        kind: "reply" to its push, "merged" for a round it had no rows in, "grant"
            of data, "repeat" of a known push, "publish" a request for a snapshot.
        body: What travels along.
        pieces: New leases.
    """

    rank: int
    kind: Literal["reply", "merged", "grant", "repeat", "publish", "done"]
    body: Body = "none"
    pieces: tuple[Piece, ...] = ()


class Refuse(NamedTuple):
    """Refuse a message: the sender drops it and joins again, or exits."""

    rank: int
    incarnation: int
    reason: str


class EpochDone(NamedTuple):
    """Every sample of an epoch is committed and the center is up to date."""

    epoch: int


class Rollback(NamedTuple):
    """All copies of the weights are lost: go on from the last published center."""

    lineage: int


Instruction: TypeAlias = Apply | Merge | Answer | Refuse | EpochDone | Rollback


class Sequencer:
    """Decides what happens to each event, in the order of arrival.

    Args:
        rules: Of the run.

    Example:
        >>> sequencer = Sequencer(Rules(epoch_rows=(8,), first_epoch=0, epochs=1, workers=1, batch=4,
        ...     window=2, is_rounds=False, is_gang=False, is_elastic=False))
        >>> member = sequencer.join()
        >>> sequencer.proceed(0)
        []
        >>> [answer] = sequencer.ready(member.rank, member.incarnation)
        >>> answer.kind, answer.pieces
        ('grant', (Piece(epoch=0, start=0, stop=8, gang=0),))
        >>> push = Push(0, 1, 0, 1, answer.pieces, steps=2, samples=8.0)
        >>> [type(i).__name__ for i in sequencer.push(push)]
        ['Apply', 'Answer', 'EpochDone']
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.ledger = Ledger()
        self.members: dict[int, Member] = {}
        self.lineage = 0
        self.version = 0
        self.expected = rules.workers
        self.has_started = self.has_finished = False
        self._incarnations: dict[int, int] = {}
        self._round: dict[int, Push] = {}
        self._publisher: int | None = None
        self._asked: set[int] = set()
        self._joiners: list[int] = []
        self._unpublished: list[int] = []
        self._done: set[int] = set()
        self._saved: dict[str, Any] | None = None

    # ------------------------------------------------------------ members

    def join(self, hint: int = -1) -> Member:
        """Gives a new process a free rank, the hinted one if it can, and fences it."""
        free = (r for r in range(len(self.members) + 1) if r not in self.members)
        rank = hint if hint >= 0 and hint not in self.members else next(free)
        self._incarnations[rank] = self._incarnations.get(rank, 0) + 1
        member = Member(rank=rank, incarnation=self._incarnations[rank])
        member.version = self.version
        self.members[rank] = member
        return member

    def is_current(self, rank: int, incarnation: int) -> bool:
        """Whether a message comes from the process that holds the rank now."""
        member = self.members.get(rank)
        return member is not None and member.incarnation == incarnation

    def ready(self, rank: int, incarnation: int) -> list[Instruction]:
        """A worker has compiled and can take data."""
        if not self.is_current(rank, incarnation):
            return [self._stranger(rank, incarnation)]
        member = self.members[rank]
        member.is_parked = True
        if self.rules.is_gang and self.has_started:
            self._joiners.append(rank)
            return self.ask()
        member.is_ready = True
        member.is_stale = member.version != self.version
        return self._hand_out()

    def leave(self, rank: int, incarnation: int) -> list[Instruction]:
        """A worker is gone: its leases return, its round does not wait for it."""
        if not self.is_current(rank, incarnation):
            return []
        del self.members[rank]
        self.ledger.release(rank)
        self._round.pop(rank, None)
        self._asked.discard(rank)
        if rank in self._joiners:
            self._joiners.remove(rank)
        found: list[Instruction] = []
        if self._publisher == rank:
            self._publisher = None
        if self.rules.is_gang and self.has_started and not self._ready_ranks():
            found += self._roll_back()
        if self._publisher is None and (self._joiners or self._unpublished):
            found += self.ask()
        return found + self._close_round() + self._hand_out()

    def expect(self, workers: int) -> list[Instruction]:
        """The controller will not bring up more workers than this before the start."""
        self.expected = workers
        return self._hand_out()

    def _ready_ranks(self) -> list[int]:
        return sorted(r for r, m in self.members.items() if m.is_ready)

    def _stranger(self, rank: int, incarnation: int) -> Refuse:
        return Refuse(rank, incarnation, "another process has this rank")

    # ------------------------------------------------------------- epochs

    def proceed(self, epoch: int) -> list[Instruction]:
        """Opens an epoch."""
        self._open(epoch)
        return self._hand_out()

    def _open(self, epoch: int) -> None:
        rows = self.rules.epoch_rows
        self.ledger.open(epoch, rows[epoch % len(rows)])

    def finish(self) -> list[Instruction]:
        """Ends the run: every worker is told at its next message."""
        self.has_finished = True
        parked = [m for m in self.members.values() if m.is_parked]
        return [Answer(m.rank, "done") for m in parked]

    @property
    def clock(self) -> int:
        """Samples committed since the run began, of all epochs."""
        return sum(self.ledger.committed(e) for e in self.ledger.epochs)

    def _current_epochs(self) -> list[int]:
        return [e for e in self.ledger.epochs if self.ledger.free(e)]

    def _epochs_done(self) -> list[Instruction]:
        fresh = [
            e
            for e in self.ledger.epochs
            if e not in self._done and self.ledger.is_done(e)
        ]
        self._done.update(fresh)
        if not fresh:
            return []
        if self.rules.is_gang:
            self._unpublished += fresh
            return self.ask()
        return [EpochDone(e) for e in fresh]

    # -------------------------------------------------------------- pushes

    def push(self, push: Push) -> list[Instruction]:
        """A worker sends what it did since its last push."""
        if not self.is_current(push.rank, push.incarnation):
            return [self._stranger(push.rank, push.incarnation)]
        if push.lineage != self.lineage:
            return [Refuse(push.rank, push.incarnation, "an older lineage")]
        member = self.members[push.rank]
        if push.sequence <= member.sequence:
            return [Answer(push.rank, "repeat", "center", self._tell(member))]
        if not self.ledger.covers(push.rank, push.pieces):
            return [Refuse(push.rank, push.incarnation, "samples it does not hold")]
        member.is_parked = False
        if self.rules.is_rounds:
            self._round[push.rank] = push
            return self._close_round()
        facts = self._accept(member, push)
        self.version += 1
        member.version = self.version
        self._open_next()
        self._grant_asynchronous(member)
        answer = Answer(push.rank, "reply", "reply", self._tell(member))
        return [Apply(push.rank, facts), answer, *self._epochs_done()]

    def _accept(self, member: Member, push: Push) -> Facts:
        staleness = self.version - member.version + 1
        self.ledger.commit(push.rank, push.pieces)
        member.sequence = push.sequence
        member.steps += push.steps
        return Facts(
            workers=max(1, len(self._ready_ranks())),
            staleness=staleness,
            steps=push.steps,
            samples=push.samples,
            updates=self.version,
        )

    def need(self, rank: int, incarnation: int) -> list[Instruction]:
        """A worker has no data left; it is answered when there is some."""
        if not self.is_current(rank, incarnation):
            return [self._stranger(rank, incarnation)]
        member = self.members[rank]
        member.is_parked = True
        if self.has_finished:
            return [Answer(rank, "done")]
        if rank in self._asked:
            self._asked.discard(rank)
            self._publisher = rank
            member.is_parked = False
            return [Answer(rank, "publish")]
        return self._close_round() + self._hand_out()

    # -------------------------------------------------------------- rounds

    def _close_round(self) -> list[Instruction]:
        """Closes the round when every ready worker has pushed or waits for data."""
        ready = self._ready_ranks()
        waits = [
            r
            for r in ready
            if r not in self._round
            and not (self.members[r].is_parked and not self.ledger.holds(r))
        ]
        if not self._round or waits or self._publisher is not None:
            return []
        pushed = sorted(self._round)
        facts = {r: self._accept(self.members[r], self._round[r]) for r in pushed}
        self.version += 1
        self._round = {}
        self._open_next()
        self._deal()
        for rank in ready:
            self.members[rank].version = self.version
        found: list[Instruction] = [Merge(facts)]
        for rank in ready:
            member = self.members[rank]
            if rank in facts:
                found.append(Answer(rank, "reply", "reply", self._tell(member)))
            elif self.rules.is_gang:
                member.is_parked = False
                found.append(Answer(rank, "merged", "reply", self._tell(member)))
            else:
                member.is_stale = not self.rules.is_elastic
        if self._joiners:
            found += self.ask()
        return found + self._epochs_done() + self._hand_out()

    # ------------------------------------------------- published snapshots

    def ask(self) -> list[Instruction]:
        """Asks one worker for its whole state, as gangs and the end of a run need."""
        ranks = self._ready_ranks()
        if self._publisher is not None or not ranks:
            return []
        parked = [r for r in ranks if self.members[r].is_parked]
        rank = (parked or ranks)[0]
        if parked:
            self._publisher = rank
            self.members[rank].is_parked = False
            return [Answer(rank, "publish")]
        # It computes: it is asked with the answer to its next message.
        self._asked.add(rank)
        return []

    def asked(self, rank: int) -> bool:
        """Whether the next answer to a worker must ask for a snapshot."""
        if rank not in self._asked:
            return False
        self._asked.discard(rank)
        self._publisher = rank
        return True

    def published(self, rank: int, incarnation: int) -> list[Instruction]:
        """A snapshot has arrived: the center is the gang's state of this version."""
        if not self.is_current(rank, incarnation) or self._publisher != rank:
            return []
        self._publisher = None
        self._saved = self.ledger.to_json()
        found: list[Instruction] = [EpochDone(e) for e in self._unpublished]
        self._unpublished = []
        for joiner in self._joiners:
            member = self.members[joiner]
            member.is_ready, member.is_stale = True, True
            member.version = self.version
        self._joiners = []
        return found + self._hand_out()

    def _roll_back(self) -> list[Instruction]:
        """The last worker of a gang is gone, and the weights after its snapshot."""
        self.lineage += 1
        if self._saved is None:
            epochs = self.ledger.epochs
            self.ledger = Ledger()
            for epoch in epochs:
                self._open(epoch)
        else:
            later = self.ledger.epochs
            self.ledger = Ledger.from_json(self._saved)
            for rank in range(max(self._incarnations, default=0) + 1):
                self.ledger.release(rank)
            for epoch in later:
                self._open(epoch)
        self._done = {e for e in self._done if self.ledger.is_done(e)}
        self._unpublished = []
        self.has_started = False
        for joiner in self._joiners:
            self.members[joiner].is_ready = True
            self.members[joiner].is_stale = True
        self._joiners = []
        return [Rollback(self.lineage)]

    # --------------------------------------------------------------- grants

    def _open_next(self) -> None:
        """Without a barrier the next epoch opens while the last one drains."""
        opened = max(self.ledger.epochs, default=self.rules.first_epoch - 1)
        more = opened + 1 < self.rules.epochs
        if not self.rules.has_barrier and more and not self._current_epochs():
            self._open(opened + 1)

    def _hand_out(self) -> list[Instruction]:
        """Gives data to every worker that waits and can get some."""
        if not self.has_started:
            if len(self._ready_ranks()) < (self.expected if self.rules.is_rounds else 1):
                return []
            self.has_started = bool(self._current_epochs())
        if self.rules.is_rounds:
            if not self._round:
                self._deal()
        else:
            for rank in self._ready_ranks():
                if self.members[rank].is_parked:
                    self._grant_asynchronous(self.members[rank])
        found: list[Instruction] = []
        for rank in self._ready_ranks():
            member = self.members[rank]
            if member.is_parked and member.untold:
                found.append(self._grant_answer(member))
        return found

    def _grant_answer(self, member: Member) -> Answer:
        body: Body = "none"
        if member.is_stale:
            body = "snapshot" if self.rules.is_gang else "center"
        member.is_stale = member.is_parked = False
        return Answer(member.rank, "grant", body, self._tell(member))

    def _tell(self, member: Member) -> tuple[Piece, ...]:
        pieces, member.untold = tuple(member.untold), []
        return pieces

    def _fair_rows(self, epoch: int) -> int:
        """Rows of one window, less near the end so that workers end together."""
        rules = self.rules
        workers = max(1, len(self._ready_ranks()))
        window = rules.window * rules.batch
        least = max(1, rules.window // 4)
        fair = -(-self.ledger.free(epoch) // (workers * rules.batch))
        return min(window, max(fair, least) * rules.batch)

    def _grant_asynchronous(self, member: Member) -> None:
        window = self.rules.window * self.rules.batch
        for epoch in self._current_epochs():
            while self.ledger.held_rows(member.rank) < AHEAD * window:
                piece = self.ledger.lease(member.rank, epoch, self._fair_rows(epoch))
                if piece is None:
                    break
                member.untold.append(piece)

    def _deal(self) -> None:
        """Deals whole rounds in rank order, so that a run repeats exactly."""
        ranks = self._ready_ranks()
        for epoch in self._current_epochs():
            while ranks and self.ledger.free(epoch):
                counts = [len(self.ledger.held(r)) for r in ranks]
                if min(counts) >= AHEAD:
                    return
                for rank, piece in self.ledger.deal(epoch, self._counts(ranks, epoch)):
                    if not self.rules.is_gang:
                        piece = piece._replace(gang=0)
                    self.members[rank].untold.append(piece)

    def _counts(self, ranks: Sequence[int], epoch: int) -> list[tuple[int, int]]:
        if not self.rules.is_gang:
            rows = self._fair_rows(epoch)
            return [(rank, rows) for rank in ranks]
        batch = min(self.rules.batch, self.ledger.free(epoch))
        share, more = divmod(batch, len(ranks))
        return [(rank, share + (i < more)) for i, rank in enumerate(ranks)]
