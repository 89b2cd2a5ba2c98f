"""The server's state machine in small, readable schedules.

Random ones, thousands of them, are in `tests/simulation`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from shoal.engine.coordination.instructions import (
    Apply,
    EpochDone,
    Merge,
    PushMetadata,
    Refuse,
    Respond,
    Rollback,
    Rules,
)
from shoal.engine.coordination.ledger import Piece
from shoal.engine.coordination.sequencer import Sequencer


def rules(**fields: Any) -> Rules:
    defaults: dict[str, Any] = {
        "epoch_rows": (40,),
        "first_epoch": 0,
        "epochs": 2,
        "workers": 2,
        "batch": 4,
        "window": 2,
        "is_rounds": False,
        "exchanges_gradients": False,
        "is_elastic": False,
    }
    return Rules(**{**defaults, **fields})


# -------------------------------------------------- small, readable schedules


class Table:
    """A sequencer whose members are moved by the test."""

    def __init__(self, **fields: Any) -> None:
        self.sequencer: Any = Sequencer(rules(**fields))
        self.sequences: dict[int, int] = {}

    def restart(self, document: Any = None, **fields: Any) -> None:
        """Continues with a new server from a checkpoint, by default one of now."""
        document = json.loads(json.dumps(document or self.sequencer.to_json()))
        rules = replace(self.sequencer.rules, **fields)
        self.sequencer = Sequencer.from_json(rules, document)

    def join_ready(self, *hints: int) -> list[Any]:
        """Joins and is ready; returns the instructions of the last event."""
        found: list[Any] = []
        for hint in hints:
            member = self.sequencer.join(hint)
            self.sequences[member.rank] = 0
            found = self.sequencer.ready(member.rank, member.incarnation)
        return found

    def incarnation(self, rank: int) -> int:
        return self.sequencer.members[rank].incarnation

    def asked(self, rank: int) -> bool:
        """Whether a worker was asked for its state, or will be with its next answer."""
        publishing = self.sequencer._publishing
        publishing.request_with([Respond(rank, "reply")])
        return publishing.publisher == rank

    def push(self, rank: int, *pieces: Piece, **fields: Any) -> list[Any]:
        self.sequences[rank] += 1
        rows = sum(piece.rows for piece in pieces)
        push = PushMetadata(
            rank=rank,
            incarnation=self.incarnation(rank),
            lineage=self.sequencer.lineage,
            sequence=self.sequences[rank],
            pieces=pieces,
            steps=1,
            samples=float(rows),
        )
        return self.sequencer.push(push._replace(**fields))

    def need(self, rank: int) -> list[Any]:
        return self.sequencer.need(rank, self.incarnation(rank))

    def leave(self, rank: int) -> list[Any]:
        return self.sequencer.leave(rank, self.incarnation(rank))

    def publish(self, rank: int) -> list[Any]:
        return self.sequencer.published(rank, self.incarnation(rank))

    def held(self, rank: int) -> list[Piece]:
        return self.sequencer.ledger.held(rank)


def answers(found: list[Any], rank: int) -> list[Respond]:
    return [i for i in found if isinstance(i, Respond) and i.rank == rank]


def gradient_table(**fields: Any) -> Table:
    return Table(is_rounds=True, exchanges_gradients=True, window=1, **fields)


class TestMembers:
    def test_a_rank_has_one_living_process(self) -> None:
        table = Table()
        table.join_ready(1, 1, -1)
        assert sorted(table.sequencer.members) == [0, 1, 2]

    def test_a_replacement_fences_the_process_before_it(self) -> None:
        table = Table()
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        table.leave(0)
        table.join_ready(0)
        [refusal] = table.push(0, grant.pieces[0], incarnation=1)
        assert isinstance(refusal, Refuse)
        assert table.sequencer.clock == 0
        for event in ("need", "ready"):
            assert isinstance(getattr(table.sequencer, event)(0, 1)[0], Refuse)
        assert table.sequencer.leave(0, 1) == []

    def test_a_push_without_samples_or_of_others_is_refused(self) -> None:
        table = Table()
        table.sequencer.proceed(0)
        table.join_ready(0, 1)
        assert isinstance(table.push(0)[0], Refuse)
        assert isinstance(table.push(0, table.held(1)[0])[0], Refuse)
        assert table.sequencer.version == 0

    def test_a_second_ready_asks_for_data(self) -> None:
        table = Table()
        table.join_ready(0)
        assert table.sequencer.ready(0, 1) == []
        [grant] = table.sequencer.proceed(0)
        assert grant.kind == "grant"


class TestRepeats:
    def test_a_repeated_push_gets_all_its_leases_and_the_center(self) -> None:
        table = Table(epoch_rows=(80,))
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        table.push(0, grant.pieces[0])
        [again] = table.push(0, grant.pieces[0], sequence=1)
        assert (again.kind, again.body) == ("repeat", "center")
        # The answer that was lost had told of new leases: nobody else would do them.
        assert list(again.pieces) == table.held(0)
        assert table.sequencer.version == 1

    def test_a_repeated_elastic_push_keeps_its_weights(self) -> None:
        table = Table(is_elastic=True)
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        table.push(0, grant.pieces[0])
        [again] = table.push(0, grant.pieces[0], sequence=1)
        assert again.body == "none"

    def test_a_worker_that_lost_a_mean_starts_over(self) -> None:
        table = gradient_table(workers=1)
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        table.push(0, grant.pieces[0])
        assert isinstance(table.push(0, grant.pieces[0], sequence=1)[0], Refuse)

    def test_a_push_ends_a_wait_that_an_old_message_reported(self) -> None:
        table = Table(is_elastic=True, workers=2)
        table.sequencer.proceed(0)
        [grant], [other] = table.join_ready(0), table.join_ready(1)
        table.push(0, grant.pieces[0])
        table.need(0)  # said before it was answered, and delivered late
        refused = table.push(0, other.pieces[0])
        assert [type(instruction) for instruction in refused] == [Refuse]
        assert not table.sequencer.members[0].is_parked


class TestAsynchronous:
    def test_every_worker_gets_data_of_small_epochs(self) -> None:
        # Without a barrier a waiting worker got a new epoch only by chance.
        table = Table(epoch_rows=(4,), epochs=3, workers=1, has_barrier=False)
        table.sequencer.proceed(0)
        [first] = table.join_ready(0)
        [second] = table.join_ready(1)
        assert {piece.epoch for piece in second.pieces} == {1}
        assert table.join_ready(2) == []
        found = table.push(0, *first.pieces)
        assert EpochDone(0) in found
        [third] = answers(table.sequencer.proceed(1), 2)
        assert {piece.epoch for piece in third.pieces} == {2}

    def test_without_a_barrier_one_epoch_ahead_and_no_more(self) -> None:
        table = Table(epoch_rows=(4,), epochs=9, workers=1, has_barrier=False)
        table.sequencer.proceed(0)
        found = table.join_ready(0)
        for _ in range(4):
            [answer] = answers(found, 0)
            if not answer.pieces:
                break
            found = table.push(0, *answer.pieces)
        assert table.sequencer.ledger.epochs == [0, 1]
        table.need(0)
        assert table.sequencer.proceed(1)[0].pieces[0].epoch == 2

    def test_near_the_end_no_worker_takes_all_the_rest(self) -> None:
        table = Table(epoch_rows=(40,), batch=1, window=20)
        table.sequencer.proceed(0)
        table.join_ready(0, 1)
        rows = [table.sequencer.ledger.held_rows(rank) for rank in (0, 1)]
        assert min(rows) >= 5, rows

    def test_finish_ends_a_worker_in_the_middle_of_a_window(self) -> None:
        table = Table()
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        assert table.sequencer.finish() == []
        [answer] = table.push(0, grant.pieces[0])
        assert answer.kind == "done"
        assert table.sequencer.version == 0
        assert table.join_ready(1)[0].kind == "done"
        assert table.leave(0) == []

    def test_a_stale_joiner_is_given_the_center(self) -> None:
        table = Table(epoch_rows=(400,))
        table.sequencer.proceed(0)
        member = table.sequencer.join(1)
        [grant] = table.join_ready(0)
        table.push(0, grant.pieces[0])
        [late] = table.sequencer.ready(member.rank, member.incarnation)
        assert late.body == "center"
        table.sequences[1] = 0
        apply, *_ = table.push(1, late.pieces[0])
        assert isinstance(apply, Apply)
        assert apply.facts.staleness == 1


class TestRounds:
    def test_rounds_wait_for_all_that_are_expected_and_no_longer(self) -> None:
        table = Table(is_rounds=True, workers=3)
        table.sequencer.proceed(0)
        assert table.join_ready(0, 1) == []
        found = table.sequencer.expect(2)
        assert [answer.rank for answer in found] == [0, 1]

    def test_a_worker_without_data_is_not_awaited_and_adopts_the_center(self) -> None:
        table = Table(is_rounds=True, epoch_rows=(8,))
        table.sequencer.proceed(0)
        table.join_ready(0, 1)
        table.leave(1)
        table.join_ready(1)
        pieces = table.held(0)
        found = table.push(0, *pieces)
        assert isinstance(found[0], Merge)
        assert list(found[0].facts) == [0]

    def test_a_round_closes_when_the_awaited_worker_is_lost(self) -> None:
        table = Table(is_rounds=True)
        table.sequencer.proceed(0)
        table.join_ready(0, 1)
        assert table.push(0, table.held(0)[0]) == []
        found = table.leave(1)
        assert isinstance(found[0], Merge)
        assert answers(found, 0)[0].body == "reply"

    def test_the_leases_of_a_lost_worker_are_shared(self) -> None:
        table = Table(is_rounds=True, epoch_rows=(96,), workers=3, epochs=1)
        table.sequencer.proceed(0)
        table.join_ready(0, 1, 2)
        before = [table.sequencer.ledger.held_rows(rank) for rank in (0, 1, 2)]
        assert len(set(before)) == 1
        table.leave(2)
        for rank in (0, 1):
            found = table.push(rank, table.held(rank)[0])
        pieces = [answers(found, rank)[0].pieces for rank in (0, 1)]
        assert all(sum(p.rows for p in told) for told in pieces)

    def test_finish_while_a_round_is_open(self) -> None:
        table = Table(is_rounds=True)
        table.sequencer.proceed(0)
        table.join_ready(0, 1)
        table.push(0, table.held(0)[0])
        assert table.sequencer.finish() == [Respond(0, "done")]


class TestGradientExchange:
    def test_shares_of_one_step_are_merged_in_one_round(self) -> None:
        table = gradient_table(batch=10, workers=3, epoch_rows=(25,))
        table.sequencer.proceed(0)
        table.join_ready(0, 1, 2)
        assert [table.held(r)[0].rows for r in range(3)] == [4, 3, 3]
        assert {table.held(r)[0].step_rows for r in range(3)} == {10}

    def test_a_joiner_waits_for_steps_that_were_dealt_before_it(self) -> None:
        # It was dealt the next step while others held shares of an earlier one: one
        # round then held parts of two steps.
        table = gradient_table(workers=2, epoch_rows=(400,))
        table.sequencer.proceed(0)
        table.join_ready(0, 1)
        table.join_ready(2)
        found = table.push(0, table.held(0)[0]) + table.push(1, table.held(1)[0])
        assert table.asked(0)
        found = table.publish(0)
        assert answers(found, 2) == [Respond(2, "grant", "snapshot")]
        table.need(2)
        rounds = [self.round(table) for _ in range(3)]
        shares = [
            [a.pieces for a in found if isinstance(a, Respond)] for found in rounds
        ]
        assert shares[0] == [(), (), ()]
        steps = zip(*shares[1], strict=True)
        for step in steps:
            assert sum(piece.rows for piece in step) == step[0].step_rows == 4

    def round(self, table: Table) -> list[Any]:
        """Pushes what every worker holds; workers without data wait."""
        found: list[Any] = []
        for rank in sorted(table.sequencer.members):
            held = table.held(rank)
            found = table.push(rank, held[0]) if held else found or table.need(rank)
        return found

    def test_a_joiner_gets_the_snapshot_before_any_round_moves_on(self) -> None:
        # With a round open, or an empty pool, it was told nothing at first; the next
        # round's mean then went onto weights of its own.
        table = gradient_table(workers=3, batch=6, epoch_rows=(6,), epochs=2)
        table.sequencer.proceed(0)
        table.join_ready(0, 1, 2)
        table.leave(2)
        table.push(1, table.held(1)[0])
        table.join_ready(2)
        table.push(0, table.held(0)[0])
        assert table.asked(0)
        [welcome] = answers(table.publish(0), 2)
        assert (welcome.kind, welcome.body) == ("grant", "snapshot")

    def test_a_joiner_between_epochs(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(4,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.push(0, table.held(0)[0])
        assert table.asked(0)
        assert EpochDone(0) in table.publish(0)
        table.need(0)
        assert table.join_ready(1) == [Respond(0, "publish")]
        [welcome] = table.publish(0)
        assert welcome == Respond(1, "grant", "snapshot")
        table.need(0)
        table.need(1)
        found = table.sequencer.proceed(1)
        assert [a.pieces[0].rows for a in found] == [2, 2]

    @pytest.mark.parametrize("is_told", [False, True])
    def test_another_worker_is_asked_when_the_asked_one_is_lost(
        self, is_told: bool
    ) -> None:
        table = gradient_table(workers=2, epoch_rows=(400,))
        table.sequencer.proceed(0)
        table.join_ready(0, 1)
        table.join_ready(2)
        if is_told:
            assert table.asked(0)
            assert table.sequencer.publisher == 0
        table.leave(0)
        assert table.sequencer.publisher is None
        assert table.asked(1)

    def test_the_controllers_request_survives_the_loss_of_the_asked_worker(
        self,
    ) -> None:
        table = Table(workers=1)
        table.sequencer.proceed(0)
        assert table.sequencer.ask() == []
        assert table.join_ready(0)[0] == Respond(0, "publish")
        table.leave(0)
        assert table.join_ready(1)[0] == Respond(1, "publish")
        table.publish(1)
        assert table.sequencer.publisher is None
        assert not table.asked(1)

    def test_only_one_is_asked_at_a_time(self) -> None:
        # A second one was, and its older state could arrive last.
        table = gradient_table(workers=3, epoch_rows=(400,))
        table.sequencer.proceed(0)
        table.join_ready(0, 1, 2)
        table.join_ready(3)
        table.push(1, table.held(1)[0])
        assert table.join_ready(4) == []
        assert table.asked(0)
        assert not table.asked(1)
        assert table.publish(1) == []

    def test_the_loss_of_all_workers_rolls_back_to_the_snapshot(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(8,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.push(0, table.held(0)[0])
        found = table.leave(0)
        assert found == [Rollback(1)]
        assert table.sequencer.clock == 0
        [grant] = table.join_ready(0)
        assert grant.pieces[0].start == 0
        [refusal] = table.push(0, grant.pieces[0], lineage=0)
        assert isinstance(refusal, Refuse)

    def test_a_replacement_after_a_rollback_gets_the_optimizers_state(self) -> None:
        # Its version was the center's, so it got no snapshot: weights yes, state no.
        table = gradient_table(workers=1, epoch_rows=(4,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.push(0, table.held(0)[0])
        assert table.asked(0)
        table.publish(0)
        table.leave(0)
        [welcome] = table.join_ready(0)
        assert welcome.body == "snapshot"

    def test_publishing_ends_a_wait_that_an_old_message_reported(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(4,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.push(0, table.held(0)[0])
        assert table.asked(0)
        table.need(0)  # said before it was asked, and delivered late
        assert table.publish(0) == [EpochDone(0)]
        assert not table.sequencer.members[0].is_parked

    def test_joiners_take_over_when_all_others_are_lost(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(40,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.join_ready(1)
        rollback, grant = table.leave(0)
        assert isinstance(rollback, Rollback)
        assert (grant.rank, grant.kind) == (1, "grant")

    def test_halt_ends_the_epoch_with_the_leased_samples(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(400,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.sequencer.halt()
        for piece in table.held(0):
            table.push(0, piece)
        assert table.asked(0)
        assert table.publish(0) == [EpochDone(0)]
        assert table.sequencer.ledger.committed(0) == 8

    def test_proceed_of_an_old_epoch_opens_nothing_in_a_halted_run(self) -> None:
        table = Table(workers=1, epoch_rows=(16,), has_barrier=False, epochs=3)
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.sequencer.halt()
        pieces = table.held(0)
        assert EpochDone(0) in table.push(0, *pieces)
        table.need(0)
        # As a controller does after a take-over: what it said, in its order.
        assert table.sequencer.proceed(0) == []
        assert table.sequencer.halt() == []
        assert table.sequencer.ledger.epochs == [0]

    def test_a_rollback_after_halt_still_ends_the_epoch(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(400,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.sequencer.halt()
        table.leave(0)
        table.join_ready(0)
        assert table.asked(0)
        assert EpochDone(0) in table.publish(0)


class TestCheckpoints:
    def test_after_a_restart_commits_stay_and_leases_are_free(self) -> None:
        table = Table(workers=1)
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        table.push(0, grant.pieces[0])
        table.restart(workers=3)
        sequencer = table.sequencer
        assert (sequencer.lineage, sequencer.version, sequencer.clock) == (1, 1, 2)
        assert sequencer.members == {}
        assert (sequencer.ledger.committed(0), sequencer.ledger.free(0)) == (8, 32)
        assert sequencer.expected == 3

    def test_after_a_restart_earlier_processes_are_refused(self) -> None:
        table = Table(workers=1)
        table.sequencer.proceed(0)
        document = table.sequencer.to_json()
        [grant] = table.join_ready(
            0
        )  # after the checkpoint: its number is not in there
        table.restart(document)
        [again] = table.join_ready(0)
        assert again.pieces == grant.pieces
        late = table.push(0, *grant.pieces, incarnation=1, lineage=0)
        assert isinstance(late[0], Refuse)
        assert isinstance(table.push(0, *grant.pieces, lineage=0)[0], Refuse)
        assert isinstance(table.sequencer.need(0, 1)[0], Refuse)
        assert table.sequencer.version == 0

    def test_an_older_document_still_raises_the_newest_lineage(self) -> None:
        table = Table()
        document = table.sequencer.to_json()
        assert document["lineage"] == 0
        rules_ = table.sequencer.rules
        newer = Sequencer.from_json(rules_, document, newest_lineage=4)
        assert newer.lineage == 5

    def test_complete_epochs_are_reported_again_on_request(self) -> None:
        table = Table(workers=1, epoch_rows=(4,), epochs=3)
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        assert EpochDone(0) in table.push(0, *grant.pieces)
        document = table.sequencer.to_json()
        table.restart(document)
        assert table.sequencer.upcoming == 1
        assert table.sequencer.proceed(0) == [EpochDone(0)]
        table.restart(document)
        assert table.sequencer.proceed(1) == []

    def test_a_halted_run_stays_halted(self) -> None:
        table = Table(workers=1, epoch_rows=(400,))
        table.sequencer.proceed(0)
        [grant] = table.join_ready(0)
        table.push(0, grant.pieces[0])
        table.sequencer.halt()
        table.restart()
        assert table.sequencer.is_halted
        assert table.sequencer.proceed(0) == [EpochDone(0)]
        assert table.sequencer.ledger.committed(0) == 8
        assert table.join_ready(0) == []

    def test_gradient_exchange_goes_on_from_what_was_published(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(4, 8))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.push(0, table.held(0)[0])
        assert table.asked(0)
        table.publish(0)
        table.sequencer.proceed(1)
        table.need(0)
        table.push(0, table.held(0)[0])
        assert table.sequencer.version == 2
        table.restart(workers=2)
        assert table.sequencer.version == 1
        ledger = table.sequencer.ledger
        assert [ledger.committed(epoch) for epoch in ledger.epochs] == [4, 0]
        assert table.join_ready(0) == [Respond(0, "grant", "snapshot")]
        assert table.join_ready(1) == [Respond(1, "grant", "snapshot")]
        shares = [answer.pieces[0] for r in (0, 1) for answer in table.need(r)]
        assert shares == [Piece(1, 0, 2, step_rows=4), Piece(1, 2, 4, step_rows=4)]

    def test_gradient_exchange_without_a_snapshot_begins_again(self) -> None:
        table = gradient_table(workers=1, epoch_rows=(8,))
        table.sequencer.proceed(0)
        table.join_ready(0)
        table.push(0, table.held(0)[0])
        table.restart()
        assert (table.sequencer.version, table.sequencer.clock) == (0, 0)
        [grant] = table.join_ready(0)
        assert (grant.body, grant.pieces[0].start) == ("none", 0)


def test_the_clock_counts_short_batches_of_earlier_epochs() -> None:
    table = Table(workers=1, epoch_rows=(6, 4), epochs=2)
    table.sequencer.proceed(0)
    [grant] = table.join_ready(0)
    table.push(0, *grant.pieces)
    assert table.sequencer.clock == 2
    table.need(0)
    [grant] = table.sequencer.proceed(1)
    table.push(0, *grant.pieces)
    assert table.sequencer.clock == 3
