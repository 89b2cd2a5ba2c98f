"""A simulated worker: the protocol of `shoal.engine.worker`, without a model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import final

from shoal.engine.coordination.instructions import Group, PushMetadata, Rules
from shoal.engine.coordination.ledger import Piece
from shoal.engine.worker.gradient_loop import whole_steps
from shoal.engine.worker.weight_loop import next_batches
from tests.simulation.protocol.lines import Letter, Line, Message, Work
from tests.simulation.violation import require


def mix(*numbers: int) -> int:
    """A number that stands for a history: equal only if all inputs were."""
    return hash(numbers)


@final
@dataclass(eq=False)
class SimWorker:
    """One worker process.

    Args:
        number: Number of the process, never given twice.
        hint: The rank it was started for.
        line: Its present connection.
        is_summed: Its loss is a sum over the batch.
        is_dead: The process has ended.
        is_waiting: It waits for an answer.
        is_pushing: It waits for the answer to a push.
        lineage: Lineage of the server in the last answer.
        era: The history it learns from.
        sequence: Number of its last push on this connection.
        serial: Windows it has worked on.
        weights: Under all_reduce, the rounds they have gone through.
        group: The group that averages its next step.
        workers: Number of workers that the last answer told.
        pieces: Leases it has heard of.
        last: Its last message.
        past: Its last message before it lost its server, if it will send that again.
    """

    number: int
    hint: int
    line: Line
    is_summed: bool = False
    is_dead: bool = False
    is_waiting: bool = False
    is_pushing: bool = False
    lineage: int = 0
    era: int = 0
    sequence: int = 0
    serial: int = 0
    weights: int = 0
    group: Group | None = None
    workers: int = 0
    pieces: deque[Piece] = field(default_factory=deque[Piece])
    last: Message | None = None
    past: Message | None = None

    def join(self, line: Line, *, is_stubborn: bool = False) -> None:
        """Joins on a new connection; work in progress is dropped.

        Args:
            line: The connection.
            is_stubborn: What it pushed last is sent again to a new server, which is
                wrong: it was learnt from a center that was rolled back.
        """
        self.past = self.last if self.is_pushing and is_stubborn else None
        self.line, self.last = line, None
        self.sequence, self.is_waiting, self.is_pushing = 0, True, False
        self.pieces.clear()
        line.say(Message("join", hint=self.hint))

    def hear(self, letter: Letter, rules: Rules) -> None:
        """Takes an answer and sends what follows from it."""
        self._give_up_repeat()
        self.is_waiting = self.is_pushing = False
        self.lineage, self.era = letter.lineage, letter.era
        self.workers = letter.workers
        if letter.kind == "welcome":
            self.hint, self.weights = letter.rank, letter.weights
            self._say(Message("ready"))
            return
        self.group = letter.group
        if letter.kind == "again":
            self._push_again(letter.sums)
            return
        if letter.kind == "repeat":
            self.pieces.clear()  # it tells of all there are
        self.pieces.extend(letter.pieces)
        if letter.body == "reply" and rules.exchanges_gradients:
            self.weights = mix(self.weights, letter.weights)
        elif letter.body in ("center", "snapshot"):
            self.weights = letter.weights
        if letter.is_order:
            work = Work(self.number, self.serial, self.era, self.weights)
            self._say(Message("publish", work=work))
        elif self.pieces:
            self._push(rules)
        else:
            self._say(Message("need"))

    def _say(self, message: Message) -> None:
        require(not self.is_waiting, "a worker asks one thing at a time", self)
        self.is_waiting, self.is_pushing = True, message.kind == "push"
        self.line.say(message)

    def _push(self, rules: Rules) -> None:
        """Computes a window of its leases; see `engine/worker/weight_loop.py`."""
        if self._insists():
            return
        own: tuple[float, ...] = ()
        assumed: tuple[float, ...] = ()
        is_alone = self._is_alone(rules)
        if is_alone:
            taken = whole_steps(self.pieces, rules.batch, rules.alone_steps)
            steps = len(taken)
        elif rules.exchanges_gradients:
            taken, steps = [self.pieces.popleft()], 1
            if self.is_summed:
                own, assumed = (float(taken[0].rows),), (float(taken[0].step_rows),)
        else:
            taken, steps = self._window(rules)
        self.sequence += 1
        self.serial += 1
        push = PushMetadata(
            rank=self.line.rank,
            incarnation=self.line.incarnation,
            lineage=self.lineage,
            sequence=self.sequence,
            pieces=tuple(taken),
            steps=steps,
            samples=float(sum(piece.rows for piece in taken)),
            group=self._group_mean(),
            own=own,
            assumed=assumed,
            is_alone=is_alone,
        )
        work = Work(self.number, self.serial, self.era, self.weights)
        self.last = Message("push", push=push, work=work)
        self._say(self.last)

    def _is_alone(self, rules: Rules) -> bool:
        piece = self.pieces[0]
        is_whole = piece.rows == piece.step_rows
        return rules.alone_steps > 0 and self.workers == 1 and is_whole

    def _group_mean(self) -> int:
        """The group whose mean it has; one in four means fails, for one or for all."""
        is_broken = mix(self.number, self.serial) % 4 == 0
        return 0 if self.group is None or is_broken else self.group.generation

    def _push_again(self, sums: tuple[float, ...]) -> None:
        """Pushes again, with the vector, or computed for a step that is smaller now."""
        last = self.last
        if last is None or last.push is None:
            require(False, "who has pushed pushes again", self)
            return
        self.sequence += 1
        assumed = sums or last.push.assumed
        push = last.push._replace(sequence=self.sequence, group=0, assumed=assumed)
        self.last = last._replace(push=push)
        self._say(self.last)

    def _insists(self) -> bool:
        """Sends a push of an older lineage, under its new rank."""
        past, self.past = self.past, None
        if past is None or past.push is None or past.push.lineage == self.lineage:
            return False
        push = past.push._replace(
            rank=self.line.rank,
            incarnation=self.line.incarnation,
            sequence=self.sequence + 1,
        )
        self.last = past._replace(push=push)
        self._say(self.last)
        return True

    def _window(self, rules: Rules) -> tuple[list[Piece], int]:
        taken: list[Piece] = []
        steps = 0
        while steps < rules.window and self.pieces:
            most = rules.window - steps
            batches = next_batches(self.pieces, rules.batch, most, taken)
            if not batches:
                break
            rows = sum(piece.rows for piece in batches)
            taken += batches
            steps += max(1, rows // rules.batch)
            if rows % rules.batch:
                break
        return taken, steps

    # ------------------------------------------------------------ misbehaviour

    def can_repeat(self) -> bool:
        """Whether only the answer to its push can be lost."""
        line = self.line
        is_ordered = any(x.is_order or x.kind == "refused" for x in line.down)
        return self.is_pushing and not (line.is_cut or line.up or is_ordered)

    def _give_up_repeat(self) -> None:
        """The answer has come: the push is not sent a second time."""
        up = self.line.up
        while up and up[-1] is self.last:
            up.pop()

    def repeat(self) -> None:
        """Sends its push again, as it does not know whether it arrived."""
        self.line.down.clear()
        if self.last is not None:
            self.line.say(self.last)
