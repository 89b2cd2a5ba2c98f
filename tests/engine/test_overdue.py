"""A sequencer with its straggler timeout: what slow workers cost the others."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from shoal.engine.coordination.instructions import (
    EpochDone,
    Merge,
    PushMetadata,
    Respond,
    Rules,
)
from shoal.engine.coordination.ledger import Piece
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.coordination.timeouts import StragglerTimeout
from shoal.engine.worker.weight_loop import next_batches
from tests.engine.cases import ROUNDS


class Race:
    """Workers of given speeds under a sequencer and a straggler timeout.

    Args:
        speeds: Seconds of a step of each worker; infinite for one that hangs.
        tired: When all of them become slower, and how many times.
        fields: Fields of the rules.
    """

    def __init__(
        self,
        speeds: Sequence[float],
        tired: tuple[float, float] = (float("inf"), 1.0),
        **fields: Any,
    ) -> None:
        given: dict[str, Any] = {**ROUNDS, "workers": len(speeds), **fields}
        rules = Rules(**given)
        self.sequencer, self.straggler_timeout = Sequencer(rules), StragglerTimeout()
        self.speeds, self.tired, self.now, self.late = speeds, tired, 0.0, 0
        self.pieces = {rank: deque[Piece]() for rank in range(len(speeds))}
        self.work: dict[int, list[Piece]] = {}
        self.sequences = dict.fromkeys(self.pieces, 0)
        self.commits = dict.fromkeys(self.pieces, 0)
        self.due: list[tuple[float, int]] = []
        self.is_done = False
        for rank in self.pieces:
            member = self.sequencer.join(rank)
            self.carry_out(self.sequencer.ready(rank, member.incarnation))

    def run(self) -> float:
        """Trains an epoch; returns its duration."""
        self.carry_out(self.sequencer.proceed(0))
        while not self.is_done:
            if self.straggler_timeout.due < self.due[0][0]:
                self.now = self.straggler_timeout.due
                self.late += len(self.sequencer.round_progress.awaited)
                self.carry_out(self.sequencer.overdue())
            else:
                self.now, rank = heapq.heappop(self.due)
                self.push(rank)
        return self.now

    def begin(self, rank: int) -> None:
        """A worker begins a window."""
        rules = self.sequencer.rules
        work = next_batches(self.pieces[rank], rules.batch, rules.window, ())
        self.work[rank] = work
        rows = sum(piece.rows for piece in work)
        pace = self.speeds[rank] * (self.tired[1] if self.now >= self.tired[0] else 1)
        busy = -(-rows // rules.batch) * pace
        heapq.heappush(self.due, (self.now + busy, rank))

    def push(self, rank: int) -> None:
        self.sequences[rank] += 1
        pieces = self.work.pop(rank)
        push = PushMetadata(
            rank=rank,
            incarnation=1,
            lineage=0,
            sequence=self.sequences[rank],
            pieces=tuple(pieces),
            steps=1,
            samples=float(sum(piece.rows for piece in pieces)),
        )
        self.carry_out(self.sequencer.push(push))

    def carry_out(self, instructions: list[Any]) -> None:
        asking: list[int] = []
        for instruction in instructions:
            match instruction:
                case Merge(facts):
                    for rank, fact in facts.items():
                        self.commits[rank] += int(fact.samples)
                case Respond(rank, kind, _, pieces):
                    if kind == "repeat":
                        self.pieces[rank].clear()
                    self.pieces[rank].extend(pieces)
                    if self.pieces[rank]:
                        self.begin(rank)
                    else:
                        asking.append(rank)
                case EpochDone():
                    self.is_done = True
        self.straggler_timeout.look(self.sequencer.round_progress, self.now)
        for rank in asking:
            self.carry_out(self.sequencer.need(rank, 1))


@pytest.mark.parametrize(("step_s", "most"), [(0.01, 1.6), (0.1, 1.4), (60.0, 1.3)])
@pytest.mark.parametrize("quorum", [1, 3])
def test_a_worker_five_times_slower_does_not_delay_the_others(
    step_s: float, most: float, quorum: int
) -> None:
    rows: dict[str, Any] = {"epoch_rows": (16_000,)}
    speeds = [step_s, 1.01 * step_s, 1.02 * step_s, 5 * step_s]
    alone = Race(speeds[:3], **rows, quorum=0).run()
    held_back = Race(speeds, **rows, quorum=0).run()
    race = Race(speeds, **rows, quorum=quorum)
    assert race.run() < most * alone
    assert held_back > 3.5 * alone
    assert sum(race.commits.values()) == 16_000


@pytest.mark.parametrize("step_s", [0.01, 1.0])
def test_a_hanging_worker_is_late_once(step_s: float) -> None:
    race = Race([step_s, step_s, step_s, float("inf")], epoch_rows=(4_000,))
    alone = Race([step_s] * 3, epoch_rows=(4_000,), quorum=0).run()
    assert race.run() < 1.1 * alone + 0.3
    assert race.late == 1
    assert race.commits[3] == 0


def test_a_slightly_slower_worker_is_never_late() -> None:
    race = Race([1.0, 1.1, 1.3, 1.9], epoch_rows=(4_000,))
    race.run()
    assert race.late == 0


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.001, 100.0), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(1, 400),
    st.tuples(st.floats(0.0, 100.0), st.floats(0.1, 1000.0)),
)
@example([12.0, 64.0, 14.0, 4.0], 1, 119, (0.0, 1.0))  # the slow took turns for ever
@example([1.0, 1.0, 1.0, 1.0], 1, 400, (30.0, 1000.0))
def test_at_any_speeds_an_epoch_ends(
    speeds: list[float], quorum: int, rows: int, tired: tuple[float, float]
) -> None:
    race = Race(speeds, tired, quorum=quorum, epoch_rows=(rows,))
    race.run()
    assert sum(race.commits.values()) == rows
