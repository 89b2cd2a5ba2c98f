"""A server's state machine and simulated workers under a seeded random schedule.

Workers follow the protocol of `shoal.engine.member`; messages wait in queues, so
that they arrive late and in any order between workers; workers die at any moment,
repeat pushes, and old ones come back from the dead. Weights are numbers that stand
for a history: two gang workers that differ have gone through different rounds.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from shoal.engine.ledger import Piece
from shoal.engine.sequencer import (
    Answer,
    Apply,
    EpochDone,
    Merge,
    Push,
    Refuse,
    Rollback,
    Rules,
    Sequencer,
)

MOST_EVENTS = 20_000


@dataclass(eq=False)
class SimWorker:
    hint: int
    rank: int = -1
    incarnation: int = 0
    lineage: int = 0
    sequence: int = 0
    weights: object = None
    pieces: deque[Piece] = field(default_factory=deque)
    outbox: deque[tuple] = field(default_factory=deque)
    inbox: deque[tuple] = field(default_factory=deque)
    last: Push | None = None
    is_waiting: bool = False
    is_done: bool = False
    is_dead: bool = False


@dataclass
class Fleet:
    rules: Rules
    seed: int = 0
    kills: int = 0
    unreplaced: int = 0
    late: int = 0
    repeats: int = 0
    strays: int = 0
    stop_after: int | None = None
    is_halting: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.sequencer = Sequencer(self.rules)
        self.workers = [SimWorker(hint=i) for i in range(self.rules.workers)]
        for worker in self.workers:
            worker.outbox.append(("join",))
        self.control: deque[tuple] = deque([("proceed", self.rules.first_epoch)])
        self.pending: dict[int, Push] = {}
        self.past: list[Push] = []
        self.counts: dict[int, Counter[int]] = {}
        self.center: object = 0
        self.saved = (0, {})
        self.merges = 0
        self.ended: list[int] = []
        self.upcoming = self.rules.first_epoch
        self.is_over = self.is_halted = False
        self.deaths = 0
        self.log: list[object] = []
        self.rollbacks = 0
        self.version = self.lineage = 0

    # ------------------------------------------------------------ schedule

    def run(self) -> Fleet:
        for _ in range(MOST_EVENTS):
            events = self.events()
            if not events:
                break
            self.random.choice(events)()
            self.check()
        else:
            raise AssertionError(f"no end after {MOST_EVENTS} events")
        self.check_end()
        return self

    def events(self) -> list:
        found = []
        for worker in self.workers:
            if worker.outbox:
                found.append(lambda w=worker: self.deliver(w))
            if worker.inbox and not worker.is_dead:
                found.append(lambda w=worker: self.act(w))
        if self.control:
            found.append(self.obey)
        if not found:
            return []
        roll = self.random.random()
        living = [w for w in self.workers if not w.is_dead and not w.is_done]
        if self.kills and roll < 0.04 and living and not self.is_over:
            return [lambda: self.kill(self.random.choice(living))]
        if self.late and 0.04 < roll < 0.08 and not self.is_over:
            return [self.join_late]
        if self.is_halting and 0.12 < roll < 0.14 and not self.is_over:
            self.is_halting, self.is_halted = False, True
            self.control.append(("halt",))
        if self.strays and self.past and 0.08 < roll < 0.12:
            return [self.stray]
        return found

    def kill(self, worker: SimWorker) -> None:
        self.kills -= 1
        worker.outbox = deque(m for m in worker.outbox if self.random.random() < 0.5)
        if worker.rank < 0 and not worker.outbox:
            pass
        self.end(worker)

    def end(self, worker: SimWorker) -> None:
        worker.is_dead = True
        worker.inbox.clear()
        worker.outbox.append(("leave",))
        if worker.last is not None:
            self.past.append(worker.last)

    def join_late(self) -> None:
        self.late -= 1
        self.start(self.random.choice([-1, 0, 1, 2, 5]))

    def start(self, hint: int) -> None:
        worker = SimWorker(hint=hint)
        worker.outbox.append(("join",))
        self.workers.append(worker)

    def stray(self) -> None:
        self.strays -= 1
        push = self.random.choice(self.past)
        before = self.state()
        member = self.sequencer.members.get(push.rank)
        assert member is None or member.incarnation >= push.incarnation
        if member is not None and member.incarnation == push.incarnation:
            return
        for event in (
            lambda: self.sequencer.push(push),
            lambda: self.sequencer.need(push.rank, push.incarnation),
            lambda: self.sequencer.ready(push.rank, push.incarnation),
            lambda: self.sequencer.published(push.rank, push.incarnation),
            lambda: self.sequencer.leave(push.rank, push.incarnation),
        ):
            assert all(isinstance(i, Refuse) for i in event())
        assert self.state() == before

    def state(self) -> tuple:
        s = self.sequencer
        return s.ledger.to_json(), s.version, s.lineage, sorted(s.members), s.clock

    # ------------------------------------------------------------- workers

    def send(self, worker: SimWorker, *message: object) -> None:
        assert not worker.is_waiting
        worker.is_waiting = True
        worker.outbox.append(message)

    def act(self, worker: SimWorker) -> None:
        """Takes an answer and sends what follows from it."""
        worker.is_waiting = False
        answer, publish, lineage, payload = worker.inbox.popleft()
        if isinstance(answer, Refuse):
            self.end(worker)
            return
        if answer == "joined":
            worker.weights = payload
            self.send(worker, "ready")
            return
        is_push = answer != "stored" and answer.kind in ("reply", "repeat")
        if is_push and self.repeats and self.random.random() < 0.1:
            self.repeats -= 1
            # The answer was lost, an order to publish with it: TCP would lose the
            # connection too, so that only orders-free answers are lost here.
            if not publish:
                self.send(worker, "push", worker.last)
                return
        worker.lineage = lineage
        if answer != "stored":
            if answer.kind == "repeat":
                worker.pieces.clear()
            worker.pieces.extend(answer.pieces)
            if answer.body == "reply" and self.rules.is_gang:
                worker.weights = (worker.weights, payload)
            elif answer.body in ("center", "snapshot"):
                worker.weights = payload
            worker.is_done = answer.kind == "done"
        if worker.is_done:
            self.end(worker)
        elif publish:
            self.send(worker, "publish", worker.weights)
        elif worker.pieces:
            self.send(worker, "push", self.compute(worker))
        else:
            self.send(worker, "need")

    def compute(self, worker: SimWorker) -> Push:
        """Works on what a window takes of the leases; see `Worker`."""
        if self.rules.is_gang:
            pieces = [worker.pieces.popleft()]
        else:
            epoch = worker.pieces[0].epoch
            wanted = self.rules.window * self.rules.batch
            pieces = []
            while wanted and worker.pieces and worker.pieces[0].epoch == epoch:
                piece = worker.pieces.popleft()
                if piece.rows > wanted:
                    worker.pieces.appendleft(piece._replace(start=piece.start + wanted))
                    piece = piece._replace(stop=piece.start + wanted)
                pieces.append(piece)
                wanted -= piece.rows
        worker.sequence += 1
        rows = sum(p.rows for p in pieces)
        worker.last = Push(
            rank=worker.rank,
            incarnation=worker.incarnation,
            lineage=worker.lineage,
            sequence=worker.sequence,
            pieces=tuple(pieces),
            steps=-(-rows // self.rules.batch),
            samples=float(rows),
        )
        return worker.last

    # -------------------------------------------------------------- server

    def deliver(self, worker: SimWorker) -> None:
        kind, *rest = worker.outbox.popleft()
        sequencer = self.sequencer
        if kind == "join":
            member = sequencer.join(worker.hint)
            worker.rank, worker.incarnation = member.rank, member.incarnation
            # Only weights travel here, not the optimizer's state.
            payload = 0 if self.center == 0 else ("weights of", self.center)
            worker.inbox.append(("joined", False, sequencer.lineage, payload))
            return
        if worker.rank < 0:
            self.replace(worker)  # died before it had joined
            return
        who = worker.rank, worker.incarnation
        if kind == "ready":
            self.carry_out(sequencer.ready(*who))
        elif kind == "need":
            self.carry_out(sequencer.need(*who))
        elif kind == "push":
            [push] = rest
            self.pending[worker.rank] = push
            self.carry_out(sequencer.push(push))
        elif kind == "publish":
            [weights] = rest
            assert sequencer.publisher == worker.rank or sequencer.has_finished
            if self.rules.is_gang:
                self.center = weights
                self.saved = (weights, {e: c.copy() for e, c in self.counts.items()})
            self.carry_out(sequencer.published(*who))
            worker.inbox.append(("stored", False, sequencer.lineage, None))
            if self.is_over:
                self.control.append(("finish",))
        else:
            self.deaths += 1
            self.carry_out(sequencer.leave(*who))
            assert sequencer.ledger.held(worker.rank) == [] or (
                worker.rank in sequencer.members
            )
            self.replace(worker)

    def replace(self, worker: SimWorker) -> None:
        if self.is_over or worker.is_done:
            return
        coming = [w for w in self.workers if not w.is_dead]
        if self.unreplaced and coming:
            self.unreplaced -= 1
            self.control.append(("expect", len(coming)))
        else:
            self.start(worker.rank if worker.rank >= 0 else worker.hint)

    def find(self, rank: int) -> SimWorker | None:
        """The worker whose connection has a rank, None when it is gone."""
        member = self.sequencer.members.get(rank)
        for worker in self.workers:
            if member and (worker.rank, worker.incarnation) == (
                rank, member.incarnation
            ):  # fmt: skip
                return worker
        return None

    def carry_out(self, instructions: list) -> None:
        self.log += instructions
        for instruction in instructions:
            match instruction:
                case Apply(rank, facts):
                    assert facts.staleness >= 1
                    self.commit(self.pending.pop(rank))
                case Merge(facts):
                    self.merge(facts)
                case Answer() | Refuse():
                    self.answer(instruction)
                case EpochDone(epoch):
                    counts = self.counts.get(epoch, Counter())
                    assert set(counts.values()) <= {1}, epoch
                    rows = self.sequencer.ledger.committed(epoch)
                    assert rows == counts.total()
                    assert self.is_halted or rows == self.rules.rows_of(epoch)
                    assert epoch not in self.ended
                    self.ended.append(epoch)
                    self.control.append(("ended",))
                case Rollback():
                    self.rollbacks += 1
                    self.center, counts = self.saved
                    self.counts = {e: c.copy() for e, c in counts.items()}

    def answer(self, instruction: Answer | Refuse) -> None:
        worker = self.find(instruction.rank)
        assert worker is not None, instruction
        assert worker.is_dead or (worker.is_waiting and not worker.inbox), instruction
        publish, payload = False, None
        if isinstance(instruction, Answer):
            asked = self.sequencer.asked(instruction.rank)
            publish = instruction.kind == "publish" or asked
            payload = self.merges if instruction.body == "reply" else self.center
        worker.inbox.append((instruction, publish, self.sequencer.lineage, payload))
        if worker.is_dead:
            worker.inbox.clear()

    def commit(self, push: Push) -> None:
        assert push.lineage == self.sequencer.lineage
        for piece in push.pieces:
            counts = self.counts.setdefault(piece.epoch, Counter())
            counts.update(range(piece.start, piece.stop))
            assert max(counts.values()) == 1

    def merge(self, facts: dict) -> None:
        pushes = [self.pending.pop(rank) for rank in facts]
        assert pushes
        assert list(facts) == sorted(facts)
        self.merges += 1
        assert {f.staleness for f in facts.values()} == {1}
        for push in pushes:
            self.commit(push)
        if not self.rules.is_gang:
            return
        taking_part = [
            w for w in self.workers
            if not w.is_dead and w is self.find(w.rank)
            and self.sequencer.members[w.rank].is_ready
        ]  # fmt: skip
        # A worker that joins has its snapshot on the way, and nothing before it.
        weights = {
            w.weights
            if not any(getattr(m[0], "body", "") == "snapshot" for m in w.inbox)
            else "on the way"
            for w in taking_part
        } - {"on the way"}
        assert len(weights) <= 1, weights
        gangs = {p.gang for push in pushes for p in push.pieces}
        assert len(gangs) == 1, gangs
        if not self.deaths:
            rows = sum(p.rows for push in pushes for p in push.pieces)
            assert {rows} == gangs

    # ---------------------------------------------------------- controller

    def obey(self) -> None:
        kind, *rest = self.control.popleft()
        sequencer = self.sequencer
        if kind == "proceed":
            self.carry_out(sequencer.proceed(*rest))
        elif kind == "expect":
            self.carry_out(sequencer.expect(*rest))
        elif kind == "halt":
            self.carry_out(sequencer.halt())
        elif kind == "finish":
            self.carry_out(sequencer.finish())
        elif kind == "ended":
            while self.upcoming in self.ended and not self.is_over:
                self.upcoming += 1
                is_last = self.upcoming >= self.rules.epochs
                if is_last or self.stop_after == self.upcoming or self.is_halted:
                    self.is_over = True
                    self.carry_out(sequencer.ask())
                    if not any(not w.is_dead for w in self.workers):
                        self.control.append(("finish",))
                else:
                    self.carry_out(sequencer.proceed(self.upcoming))

    # -------------------------------------------------------------- checks

    def check(self) -> None:
        s = self.sequencer
        assert s.version >= self.version
        assert s.lineage >= self.lineage
        self.version, self.lineage = s.version, s.lineage
        ranks = range(12)  # no schedule has more
        leases = [piece for owner in ranks for piece in s.ledger.held(owner)]
        for epoch in s.ledger.epochs:
            held = sum(p.rows for p in leases if p.epoch == epoch)
            done, free = s.ledger.committed(epoch), s.ledger.free(epoch)
            whole = self.rules.rows_of(epoch)
            assert done + free + held == whole or self.is_halted
            assert done == sum(self.counts.get(epoch, Counter()).values())
        for owner in ranks:
            assert not s.ledger.held(owner) or s.members[owner].is_ready
        if not self.rules.has_barrier:
            assert max(s.ledger.epochs, default=0) <= max(self.upcoming + 1, 1)

    def check_end(self) -> None:
        assert self.is_over, self.story()
        first, last = self.rules.first_epoch, self.stop_after or self.rules.epochs
        if not self.is_halted:
            assert set(range(first, last)) <= set(self.ended)
        assert all(w.is_done or w.is_dead for w in self.workers), self.story()

    def story(self) -> str:
        living = [w for w in self.workers if not w.is_dead]
        return f"stuck: {self.sequencer.__dict__}\n{living}"
