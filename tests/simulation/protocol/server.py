"""A simulated server: the sequencer, and a center that remembers what went into it.

It carries out instructions through `Interpreter`, like the engine's `Replica`, and
checks each against the messages it knows, of which the sequencer has only metadata.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, final

from shoal.engine.coordination.instructions import (
    Group,
    Instruction,
    PushMetadata,
    Refuse,
    Respond,
    Rules,
)
from shoal.engine.coordination.interpreter import Interpreter
from shoal.engine.coordination.sequencer import Sequencer
from shoal.strategies.base import Facts
from tests.simulation.protocol.latecomers import Latecomers
from tests.simulation.protocol.lines import Letter, Line, Message, Work
from tests.simulation.protocol.store import Center, Checkpoint, Place
from tests.simulation.protocol.worker import mix
from tests.simulation.violation import require

JOINED = 1  # weights without the state of an optimizer are not the common ones


class Report(NamedTuple):
    """A report to the controller.

    Args:
        kind: "epoch", "state" or "lost".
        epoch: The complete epoch.
        center: As it is then.
    """

    kind: str
    epoch: int = -1
    center: Center | None = None


@final
class SimServer(Interpreter):
    """One server process.

    Args:
        sequencer: New, or from a checkpoint.
        center: The same.
        era: The history it begins.
    """

    def __init__(self, sequencer: Sequencer, center: Center, era: int) -> None:
        self.sequencer, self.rules = sequencer, sequencer.rules
        self.center, self.era = center, era
        self.snapshot = center.copy()
        self.reports: deque[Report] = deque()
        self.peers: dict[int, Line] = {}
        self.losses = self.rollbacks = self.repeats = self.outdated = 0
        self.belated = self.grouped = self.ungrouped = self.alone = 0
        self.most_rank = 0
        self.has_new_lineage = False
        self._common = center.value
        self._rounds = 0
        self._sent: dict[int, tuple[PushMetadata, Work]] = {}
        self._applied: set[tuple[int, int]] = set()
        self._ended: set[int] = set()
        self._told: dict[int, tuple[Group | None, int]] = {}
        self._late = Latecomers()

    # ------------------------------------------------------------- messages

    def hear(self, line: Line, message: Message) -> list[Instruction]:
        """Handles a message of a worker; answers go to it, or to other workers."""
        sequencer, who = self.sequencer, (line.rank, line.incarnation)
        if message.kind == "join":
            self._welcome(line, message.hint)
            return []
        if message.kind == "gone":
            return self._lose(line)
        line.is_asked = True
        if message.kind == "push":
            return self._push(line, message)
        if message.kind == "publish":
            return self._publish(line, message)
        self._late.speaks(line.rank)
        answer = sequencer.ready if message.kind == "ready" else sequencer.need
        return self.carry_out(answer(*who))

    def _welcome(self, line: Line, hint: int) -> None:
        member = self.sequencer.join(hint)
        require(member.rank not in self.peers, "a rank has one living process", member)
        line.rank, line.incarnation = member.rank, member.incarnation
        self.peers[member.rank] = line
        self.most_rank = max(self.most_rank, member.rank)
        value = self.center.value
        line.answer(
            Letter(
                "welcome",
                lineage=self.sequencer.lineage,
                era=self.era,
                weights=mix(value, JOINED) if value else 0,
                rank=member.rank,
                incarnation=member.incarnation,
                workers=len(self.peers),
            )
        )

    def _lose(self, line: Line) -> list[Instruction]:
        if line.rank < 0:
            return []
        require(self.peers.get(line.rank) is line, "a leaving peer was there", line)
        del self.peers[line.rank]
        self._late.speaks(line.rank)
        self.losses += 1
        return self.carry_out(self.sequencer.leave(line.rank, line.incarnation))

    def _push(self, line: Line, message: Message) -> list[Instruction]:
        push, work = message.push, message.work
        assert push is not None and work is not None  # noqa: PT018 - how it is made
        is_repeat = (work.worker, work.serial) in self._applied
        is_current = work.era == self.era
        if self._late.speaks(line.rank) and is_current and not is_repeat:
            self._late.lose(work)
            self.belated += 1
        is_repeat |= self._late.is_lost(work)
        before = self.center.value, self.sequencer.version
        self._sent[line.rank] = (push, work)
        found = self.sequencer.push(push)
        if is_repeat and not self.sequencer.has_finished:
            self.repeats += 1
            kinds = {(i.kind, i.body) for i in found if isinstance(i, Respond)}
            body = "none" if self.rules.is_elastic else "center"
            wanted = set() if self.rules.exchanges_gradients else {("repeat", body)}
            require(kinds == wanted, "a repeat is answered as one", found)
        self.outdated += not is_current
        self.carry_out(found)
        if is_repeat or not is_current:
            now = self.center.value, self.sequencer.version
            require(
                now == before,
                "what is repeated, late or of the past changes nothing",
                push,
                work,
            )
        return found

    def _publish(self, line: Line, message: Message) -> list[Instruction]:
        work = message.work
        assert work is not None
        is_asked = self.sequencer.publisher == line.rank or self.sequencer.has_finished
        require(is_asked, "a snapshot was asked for", line)
        if self.rules.exchanges_gradients and not self.sequencer.has_finished:
            require(
                work.weights == self._common,
                "all_reduce has one state",
                work,
                self._common,
            )
            self.center.value = work.weights
            self.snapshot = self.center.copy()
        found = self.carry_out(self.sequencer.published(line.rank, line.incarnation))
        self._tell(line, Letter("stored"))
        self.reports.append(Report("state"))
        return found

    def obey(self, kind: str, value: int) -> list[Instruction]:
        """Handles a command of the controller."""
        sequencer = self.sequencer
        if kind == "proceed":
            return self.carry_out(sequencer.proceed(value))
        if kind == "expect":
            return self.carry_out(sequencer.expect(value))
        if kind == "halt":
            return self.carry_out(sequencer.halt())
        if kind == "ask":
            return self.carry_out(sequencer.ask())
        return self.carry_out(sequencer.finish())

    def overdue(self) -> list[Instruction]:
        """The straggler timeout is over; that can be at any moment."""
        sequencer = self.sequencer
        for rank in sequencer.round_progress.awaited:
            self._late.miss(self.peers[rank])
        return self.carry_out(sequencer.overdue())

    def stray(self, worker: int, push: PushMetadata) -> bool:
        """An earlier process returns; returns False if it is not known to be lost."""
        who = push.rank, push.incarnation
        line = self.peers.get(push.rank)
        is_seated = line is not None and line.incarnation == push.incarnation
        if line is not None and is_seated and line.worker == worker:
            return False
        require(not is_seated, "an incarnation is given once", push)
        sequencer = self.sequencer
        before = sequencer.to_json(), sorted(sequencer.members)
        found = [
            *sequencer.push(push), *sequencer.need(*who), *sequencer.ready(*who),
            *sequencer.published(*who), *sequencer.leave(*who),
        ]  # fmt: skip
        is_refused = all(isinstance(i, Refuse) for i in found)
        require(is_refused, "a fenced-off incarnation is refused", push, found)
        after = sequencer.to_json(), sorted(sequencer.members)
        require(after == before, "a fenced-off incarnation changes nothing", push)
        return True

    # --------------------------------------------------------- instructions

    def carry_out(self, instructions: list[Instruction]) -> list[Instruction]:
        """Carries out the instructions of the sequencer, in order."""
        self._carry_out(instructions)
        return instructions

    def _apply(self, rank: int, facts: Facts) -> None:
        require(facts.staleness >= 1, "staleness counts from one", facts)
        push, work = self._sent.pop(rank)
        self._commit(push, work)
        self.center.value = mix(self.center.value, work.worker, work.serial)

    def _refuse(self, rank: int, incarnation: int, reason: str) -> None:
        line = self.peers.get(rank)
        if line is not None and line.incarnation == incarnation:
            self._tell(line, Letter("refused", body=reason))

    def _ungroup(self) -> None:
        self.ungrouped += 1

    def _merge(
        self, facts: dict[int, Facts], replied_to: Sequence[int], *, is_grouped: bool
    ) -> None:
        del replied_to
        self._look_at_group([*facts], is_grouped=is_grouped)
        require(list(facts) == sorted(facts), "a round is merged in rank order", facts)
        require(bool(facts), "a round has messages")
        self._rounds += 1
        sent = [self._sent.pop(rank) for rank in facts]
        for push, work in sent:
            self._commit(push, work)
        if self.rules.exchanges_gradients:
            self._step(sent)
        else:
            parts = [n for _, work in sent for n in (work.worker, work.serial)]
            self.center.value = mix(self.center.value, *parts)

    def _step(self, sent: list[tuple[PushMetadata, Work]]) -> None:
        """Applies a round of gradients: one step, from one state."""
        for _, work in sent:
            require(
                work.weights == self._common,
                "all_reduce has one state",
                work,
                self._common,
            )
        self._common = mix(self._common, self._mean())
        pieces = [piece for push, _ in sent for piece in push.pieces]
        if sent[0][0].is_alone:
            for piece in pieces:
                is_whole = piece.rows == piece.step_rows
                require(is_whole, "who is alone has all rows of a step", piece)
                self.center.learn([[piece]], piece.step_rows)
            return
        steps = {piece.step_rows for piece in pieces}
        require(len(steps) == 1, "a round is one step", pieces)
        if not self.losses:
            rows = sum(piece.rows for piece in pieces)
            require({rows} == steps, "a round is a whole step", pieces)
        assumed = {push.assumed for push, _ in sent}
        require(len(assumed) == 1, "a round is computed for one step", sent)
        for rows in assumed.pop():
            self.center.learn([push.pieces for push, _ in sent], int(rows))

    def _look_at_group(self, ranks: list[int], *, is_grouped: bool) -> None:
        """Checks the source of the mean: a group of all workers, or the server."""
        groups = {self._sent[rank][0].group for rank in ranks}
        if any(self._sent[rank][0].is_alone for rank in ranks):
            is_one = len(ranks) == 1 and list(self.peers) == ranks
            ready = [m.rank for m in self.sequencer.members.values() if m.is_ready]
            require(is_grouped and ready == ranks, "who is alone has no partner", ready)
            self.alone += is_one
            return
        if not is_grouped:
            require(groups == {0}, "the server has all vectors", groups)
            return
        ready = sorted(m.rank for m in self.sequencer.members.values() if m.is_ready)
        require(ranks == ready, "a group is all workers", ranks, ready)
        told = {self._told[rank][0] for rank in ranks}
        require(len(told) == 1, "all of a round hear of the same group", told)
        is_new = all(self._told[r][1] == self.peers[r].incarnation for r in ranks)
        require(is_new, "a group is of the living", ranks)
        [group] = told
        is_its = group and (list(group.ranks), {group.generation}) == (ranks, groups)
        require(
            bool(is_its), "the mean is that of the group of the round", group, groups
        )
        self.grouped += 1

    def _mean(self) -> int:
        return mix(self.era, self._rounds)

    def _commit(self, push: PushMetadata, work: Work) -> None:
        """Commits what was applied: once, and only from a sender that may push now."""
        line = self.peers.get(push.rank)
        is_current = line is not None and line.worker == work.worker
        require(is_current, "only the living change the center", push, work)
        require(
            work.era == self.era, "nothing of an older lineage comes in", push, work
        )
        self._late.look(work)
        name = work.worker, work.serial
        require(name not in self._applied, "a push is applied once", push)
        self._applied.add(name)
        for epoch, start, stop, _ in push.pieces:
            rows = self.rules.rows_of(epoch)
            counts = self.center.counts.setdefault(epoch, bytearray(rows))
            is_fresh = not any(counts[start:stop]) and 0 <= start < stop <= rows
            require(is_fresh, "a sample is committed once", push)
            counts[start:stop] = b"\1" * (stop - start)

    def _respond(self, answer: Respond) -> None:
        line = self.peers.get(answer.rank)
        if line is None:
            require(False, "answers go to the living", answer)
            return
        is_order = answer.kind == "publish" or answer.wants_snapshot
        is_mean = answer.body == "reply" and self.rules.exchanges_gradients
        value = self._mean() if is_mean else self.center.value
        letter = Letter(answer.kind, answer.body, answer.pieces, weights=value)
        letter = letter._replace(group=answer.group, sums=answer.sums)
        self._told[answer.rank] = answer.group, line.incarnation
        self._tell(line, letter._replace(is_order=is_order))

    def _tell(self, line: Line, letter: Letter) -> None:
        require(line.is_asked, "who did not ask is not answered", letter, line)
        line.is_asked = False
        letter = letter._replace(workers=len(self.peers))
        line.answer(letter._replace(lineage=self.sequencer.lineage, era=self.era))

    def _end_epoch(self, epoch: int) -> None:
        rows = self.sequencer.ledger.committed(epoch)
        whole = self.rules.rows_of(epoch)
        is_whole = rows == whole or self.sequencer.is_halted
        require(is_whole, "an epoch ends with its last sample", epoch, rows, whole)
        require(epoch not in self._ended, "an epoch ends once", epoch)
        is_shown = (
            not self.rules.exchanges_gradients or self.center.value == self._common
        )
        require(is_shown, "the center shows the epoch that ends", epoch)
        self._ended.add(epoch)
        self.reports.append(Report("epoch", epoch, self.center.copy()))

    def _roll_back(self, lineage: int) -> None:
        del lineage  # `era` counts lineages, and servers as well
        self.rollbacks += 1
        self.era += 1
        self.center = self.snapshot.copy()
        self._common = self.center.value
        self._applied.clear()
        self.has_new_lineage = True

    # ----------------------------------------------------------- checkpoints

    def checkpoint(self, place: Place) -> Checkpoint:
        """Returns the state from which a new server can continue."""
        text = json.dumps(self.sequencer.to_json())
        center = self.snapshot if self.rules.exchanges_gradients else self.center
        return Checkpoint(text, center.copy(), place)

    @classmethod
    def restore(
        cls, rules: Rules, checkpoint: Checkpoint, newest_lineage: int, era: int
    ) -> SimServer:
        """Returns a new server that continues from a checkpoint."""
        sequencer = Sequencer.from_json(
            rules, checkpoint.document, newest_lineage=newest_lineage
        )
        return cls(sequencer, checkpoint.center.copy(), era)
