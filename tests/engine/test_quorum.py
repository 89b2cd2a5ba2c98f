"""Rounds that close without late workers, in small schedules and in random ones.

When they do, by a clock, is in `test_overdue.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal.engine.coordination.instructions import (
    EpochDone,
    Merge,
    PushMetadata,
    Respond,
    Rules,
)
from shoal.engine.coordination.ledger import Piece
from shoal.engine.coordination.rounds import RoundProgress
from shoal.engine.coordination.sequencer import Sequencer
from tests.engine.cases import ROUNDS
from tests.simulation.protocol import ProtocolRun, draw


class Table:
    """Workers that have joined and hold data, moved by the test."""

    def __init__(self, **fields: Any) -> None:
        self.sequencer: Any = Sequencer(Rules(**{**ROUNDS, **fields}))
        self.sequences: dict[int, int] = {}
        for rank in range(self.sequencer.rules.workers):
            self.join_ready(rank)
        self.sequencer.proceed(0)

    def join_ready(self, rank: int) -> None:
        member = self.sequencer.join(rank)
        self.sequences[rank] = 0
        self.sequencer.ready(member.rank, member.incarnation)

    def asked(self, rank: int) -> bool:
        """Whether a worker was asked for its state, or will be with its next answer."""
        publishing = self.sequencer._publishing
        publishing.request_with([Respond(rank, "reply")])
        return publishing.publisher == rank

    def push(self, rank: int, piece: Piece | None = None, **fields: Any) -> list[Any]:
        piece = piece or self.held(rank)[0]
        self.sequences[rank] += 1
        push = PushMetadata(
            rank=rank,
            incarnation=self.sequencer.members[rank].incarnation,
            lineage=0,
            sequence=self.sequences[rank],
            pieces=(piece,),
            steps=1,
            samples=float(piece.rows),
        )
        return self.sequencer.push(push._replace(**fields))

    def pushes(self, *ranks: int) -> list[Any]:
        return [instruction for rank in ranks for instruction in self.push(rank)]

    def need(self, rank: int) -> list[Any]:
        return self.sequencer.need(rank, self.sequencer.members[rank].incarnation)

    def leave(self, rank: int) -> list[Any]:
        return self.sequencer.leave(rank, self.sequencer.members[rank].incarnation)

    def held(self, rank: int) -> list[Piece]:
        return self.sequencer.ledger.held(rank)

    def drain(self, *ranks: int) -> list[Any]:
        """These workers push until they have no data left."""
        found: list[Any] = []
        while any(self.held(rank) for rank in ranks):
            for rank in ranks:
                found += self.push(rank) if self.held(rank) else self.need(rank)
        return found

    @property
    def is_quorate(self) -> bool:
        return self.sequencer.round_progress.is_quorate


class TestQuorum:
    def test_a_round_without_its_quorum_is_never_overdue(self) -> None:
        table = Table()
        assert not table.is_quorate
        table.pushes(0, 1)
        assert not table.is_quorate
        assert table.sequencer.overdue() == []
        assert table.sequencer.version == 0

    def test_with_a_quorum_the_others_take_over_the_leases_of_late_workers(
        self,
    ) -> None:
        table = Table()
        lost = table.held(3)
        table.pushes(0, 1, 2)
        assert table.sequencer.round_progress == RoundProgress(
            0, 1, 3, (3,), is_quorate=True
        )
        merge, *answers = table.sequencer.overdue()
        assert sorted(merge.facts) == [0, 1, 2]
        assert [answer.rank for answer in answers] == [0, 1, 2]
        assert table.held(3) == []
        told = [piece for answer in answers for piece in answer.pieces]
        assert set(lost) & set(told)
        assert not table.is_quorate

    def test_the_next_round_does_not_wait_for_late_workers(self) -> None:
        table = Table()
        table.pushes(0, 1, 2)
        table.sequencer.overdue()
        found = table.pushes(0, 1, 2)
        assert isinstance(found[0], Merge)
        assert table.sequencer.version == 2

    def test_two_late_workers_of_four_prevent_a_quorum_of_three(self) -> None:
        table = Table()
        table.pushes(0, 1, 2)
        table.sequencer.overdue()
        table.pushes(0, 1)
        assert not table.is_quorate

    def test_a_worker_without_data_counts_for_the_quorum(self) -> None:
        table = Table(epoch_rows=(8,))  # a step for ranks 0 and 1
        table.push(0)
        assert table.sequencer.round_progress.awaited == (1,)
        assert table.is_quorate
        found = table.sequencer.overdue()
        taken = [i for i in found if isinstance(i, Respond) and i.pieces]
        assert len(taken) == 1
        assert taken[0].rank != 1

    def test_the_last_leases_of_a_late_worker_go_to_another(self) -> None:
        # The others all waited for the one that had it, and it hung.
        table = Table(epoch_rows=(4,))
        assert table.sequencer.round_progress == RoundProgress(
            0, 1, 0, (0,), is_quorate=True
        )
        [grant] = table.sequencer.overdue()
        assert (grant.rank, grant.kind) == (1, "grant")
        assert table.sequencer.round_progress[:2] == (0, 2)
        assert not table.is_quorate

    def test_the_last_leases_do_not_go_to_a_worker_that_was_late(self) -> None:
        table = Table(epoch_rows=(4,), quorum=1)
        table.sequencer.overdue()
        table.need(0)
        [grant] = table.sequencer.overdue()
        assert grant.rank == 2
        assert table.sequencer.round_progress.fruitless == 2
        table.push(2)
        assert table.sequencer.round_progress.fruitless == 0

    def test_a_message_in_time_resets_the_missed_rounds(self) -> None:
        table = Table(quorum=1)
        table.push(1)
        table.sequencer.overdue()
        table.need(0)
        members = table.sequencer.members
        assert [members[rank].missed for rank in range(4)] == [1, 0, 1, 1]
        table.pushes(1, 0, 1)  # with the first the next round begins, with data for 0
        assert [members[rank].missed for rank in range(4)] == [0, 0, 1, 1]

    def test_fewer_workers_than_the_quorum_are_all_waited_for(self) -> None:
        table = Table()
        table.leave(2)
        table.leave(3)
        table.push(0)
        assert not table.is_quorate
        assert isinstance(table.push(1)[0], Merge)

    @pytest.mark.parametrize(
        "fields",
        [
            {"quorum": -1},
            {"exchanges_gradients": True, "window": 1},
            {"is_rounds": False},
        ],
    )
    def test_rules_refuse_a_quorum_where_it_cannot_be(self, fields: Any) -> None:
        with pytest.raises(ValueError, match="quorum"):
            Rules(**{**ROUNDS, **fields})

    def test_without_a_quorum_no_progress_is_reported(self) -> None:
        table = Table(quorum=0)
        table.pushes(0, 1, 2)
        assert table.sequencer.round_progress == RoundProgress()
        assert table.sequencer.overdue() == []

    def test_a_finished_run_reports_no_progress(self) -> None:
        table = Table()
        table.sequencer.finish()
        assert not table.is_quorate


class TestTheLate:
    def test_an_old_message_does_not_mark_a_computing_worker_as_waiting(self) -> None:
        table = Table()
        table.need(3)  # again, as it has data since
        table.pushes(0, 1, 2)
        table.sequencer.overdue()
        member = table.sequencer.members[3]
        assert (member.is_late, member.is_parked) == (True, False)

    def late(self, **fields: Any) -> tuple[Table, Piece]:
        """Makes rank 3 late with this piece."""
        table = Table(**fields)
        piece = table.held(3)[0]
        table.pushes(0, 1, 2)
        table.sequencer.overdue()
        return table, piece

    def test_a_late_push_changes_nothing_and_its_worker_adopts_the_center(self) -> None:
        table, piece = self.late()
        before = table.sequencer.to_json()
        [answer] = table.push(3, piece)
        assert answer == Respond(3, "repeat", "center", ())
        assert table.sequencer.to_json() == before

    def test_a_late_elastic_worker_keeps_its_weights(self) -> None:
        table, piece = self.late(is_elastic=True)
        assert table.push(3, piece) == [Respond(3, "repeat", "none", ())]

    def test_a_late_worker_takes_part_again_after_its_answer(self) -> None:
        # Dealt in at once it had less time for the round than the others.
        table, piece = self.late()
        table.push(3, piece)
        assert table.need(3) == []
        found = table.pushes(0, 1, 2)
        [grant] = [i for i in found if isinstance(i, Respond) and i.rank == 3]
        assert (grant.kind, grant.body) == ("grant", "center")
        table.pushes(0, 1, 2)
        assert table.sequencer.version == 2
        merge, *_ = table.push(3)
        assert merge.facts[3].staleness == 1
        assert sorted(merge.facts) == [0, 1, 2, 3]

    def test_a_late_push_sent_twice_is_answered_twice(self) -> None:
        # The second one found new leases of the same samples, and was committed.
        table, piece = self.late(epoch_rows=(32,))
        first = table.push(3, piece)
        assert table.push(3, piece, sequence=table.sequences[3]) == first

    def test_a_late_repeat_is_a_repeat(self) -> None:
        table = Table()
        piece = table.held(3)[0]
        table.pushes(0, 1, 2, 3)
        table.pushes(0, 1, 2)
        table.sequencer.overdue()
        [answer] = table.push(3, piece, sequence=1)
        assert answer == Respond(3, "repeat", "center", ())
        assert not table.sequencer.members[3].is_late

    def test_a_late_worker_may_be_lost(self) -> None:
        table, _ = self.late()
        assert table.leave(3) == []
        table.join_ready(3)
        assert not table.held(3)
        table.pushes(0, 1, 2)
        assert table.held(3)
        assert not table.sequencer.members[3].is_late

    def test_a_late_worker_may_miss_the_end_of_the_run(self) -> None:
        table, piece = self.late()
        assert EpochDone(0) in table.drain(0, 1, 2)
        for rank in (0, 1, 2):
            table.need(rank)
        done = table.sequencer.finish()
        assert [answer.rank for answer in done] == [0, 1, 2]
        assert table.push(3, piece) == [Respond(3, "done")]

    def test_a_late_worker_is_not_asked_for_its_state(self) -> None:
        table = Table()
        table.sequencer.ask()  # of rank 0, with its next answer
        table.pushes(1, 2, 3)
        table.sequencer.overdue()
        assert not table.asked(0)
        assert table.asked(1)

    def test_a_worker_is_not_late_while_it_publishes(self) -> None:
        table = Table()
        table.sequencer.ask()
        table.pushes(0, 1, 2, 3)
        assert table.asked(0)
        table.pushes(1, 2, 3)
        assert not table.is_quorate
        table.sequencer.published(0, 1)
        assert table.is_quorate


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 5), st.booleans())
def test_with_any_straggler_timeout_every_sample_counts_once(
    seed: int, quorum: int, is_elastic: bool
) -> None:
    """`ProtocolRun` checks all invariants; see `tests.simulation.protocol`."""
    scenario = draw(seed, "elastic rounds" if is_elastic else "rounds")
    rules = replace(scenario.rules, quorum=quorum)
    ProtocolRun(replace(scenario, rules=rules, haste=1.0)).run()
