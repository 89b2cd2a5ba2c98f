"""Bugs put into the engine on purpose: the simulation finds each of them.

Every mutant is one line that somebody could write. None may live through the schedules
that CI runs; most die within a few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.engine.coordination.epochs import Epochs
from shoal.engine.coordination.groups import Grouping
from shoal.engine.coordination.instructions import (
    Apply,
    EpochDone,
    PushMetadata,
    Respond,
)
from shoal.engine.coordination.leases import Leases
from shoal.engine.coordination.ledger import Ledger
from shoal.engine.coordination.published_weights import PublishedWeights
from shoal.engine.coordination.pushes import Pushes
from shoal.engine.coordination.roster import Roster
from shoal.engine.coordination.rounds import Round
from shoal.engine.coordination.sequencer import Sequencer
from tests.simulation.protocol import ProtocolRun, Violation, draw, worker
from tests.simulation.protocol.server import SimServer
from tests.simulation.protocol.store import Checkpoint

MOST_SEEDS = 600
Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[plant.__name__] = plant
    return plant


def after_restore(patch: Patch, spoil: Callable[[Sequencer], None]) -> None:
    """Spoils each sequencer that comes from a checkpoint."""
    original = Sequencer.from_json.__func__

    def from_json(cls: Any, *args: Any, **fields: Any) -> Sequencer:
        found = original(cls, *args, **fields)
        spoil(found)
        return found

    patch.setattr(Sequencer, "from_json", classmethod(from_json))


# --------------------------------------------- a worker of all_reduce that is alone


@mutant
def takes_steps_without_its_partners(patch: Patch) -> None:
    def is_alone(self: Any, rules: Any) -> bool:
        piece = self.pieces[0]
        return rules.alone_steps > 0 and piece.rows == piece.step_rows

    original = Pushes.check

    def check(self: Any, push: Any, **given: Any) -> Any:
        return original(self, push._replace(is_alone=False), **given)

    patch.setattr(worker.SimWorker, "_is_alone", is_alone)
    patch.setattr(Pushes, "check", check)


@mutant
def lets_workers_join_while_one_is_alone(patch: Patch) -> None:
    original = Sequencer.ready

    def ready(self: Any, rank: int, incarnation: int) -> Any:
        if self.rules.alone_steps:
            self._grants.has_started = False
        return original(self, rank, incarnation)

    patch.setattr(Sequencer, "ready", ready)


# ------------------------------------------------------- groups of all_reduce


@mutant
def takes_a_mean_that_not_all_have(patch: Patch) -> None:
    patch.setattr(Grouping, "unfit", lambda *_: [])


@mutant
def asks_for_no_vector_of_those_whose_group_lost_a_member(patch: Patch) -> None:
    original = Grouping.unfit

    def unfit(self: Any, ready: Any, pushes: Any) -> Any:
        is_mixed = len({push.group for push in pushes.values()}) > 1
        return original(self, ready, pushes) if is_mixed else []

    patch.setattr(Grouping, "unfit", unfit)


@mutant
def keeps_a_group_whose_members_have_changed(patch: Patch) -> None:
    original = Grouping.announce

    def announce(self: Any, ready: Any, ledger: Any) -> Any:
        found = original(self, ready, ledger)
        return found and found._replace(ranks=found.ranks[:2])

    patch.setattr(Grouping, "announce", announce)


@mutant
def merges_what_was_computed_for_a_larger_step(patch: Patch) -> None:
    patch.setattr(Round, "outdated", lambda _: [])


@mutant
def scales_by_the_rows_that_were_dealt(patch: Patch) -> None:
    original = worker.SimWorker._push_again

    def push_again(self: Any, sums: Any) -> None:
        original(self, sums)
        push = self.last.push._replace(
            assumed=(float(self.last.push.pieces[0].step_rows),)
        )
        self.last = self.last._replace(push=push._replace(own=(), assumed=push.assumed))
        self.line.up[-1] = self.last

    patch.setattr(worker.SimWorker, "_push_again", push_again)


# ------------------------------------------------------------- exactly once


@mutant
def skips_the_dedup(patch: Patch) -> None:
    original = Pushes.commit

    def commit(self: Any, push: PushMetadata, version: int) -> Any:
        facts = original(self, push, version)
        self._roster.members[push.rank].sequence = 0
        return facts

    patch.setattr(Pushes, "commit", commit)


@mutant
def commits_and_forgets_to_apply(patch: Patch) -> None:
    original = Sequencer.push

    def push(self: Any, message: PushMetadata) -> list[Any]:
        return [i for i in original(self, message) if not isinstance(i, Apply)]

    patch.setattr(Sequencer, "push", push)


@mutant
def applies_and_forgets_to_commit(patch: Patch) -> None:
    patch.setattr(Ledger, "commit", Ledger.covers)


@mutant
def commits_to_a_checkpoint_before_it_applies(patch: Patch) -> None:
    original, before = SimServer.checkpoint, {}

    def checkpoint(self: Any, place: Any) -> Checkpoint:
        found = original(self, place)
        center = before.get(self, found.center)
        before[self] = found.center
        return Checkpoint(found.text, center, found.place)

    patch.setattr(SimServer, "checkpoint", checkpoint)


@mutant
def forgets_the_last_window(patch: Patch) -> None:
    def is_done(self: Ledger, epoch: int) -> bool:
        return self.committed(epoch) > 0 and not self.free(epoch)

    patch.setattr(Ledger, "is_done", is_done)


@mutant
def counts_an_epochs_rows_wrong(patch: Patch) -> None:
    original = Ledger.open

    def opens(self: Ledger, epoch: int, rows: int) -> None:
        original(self, epoch, rows - rows % 2)

    patch.setattr(Ledger, "open", opens)


@mutant
def loses_the_short_rest_of_a_lease(patch: Patch) -> None:
    original = worker.next_batches

    def next_batches(pieces: Any, size: int, *rest: Any) -> Any:
        found = original(pieces, size, *rest)
        if pieces and pieces[0].rows < size:
            pieces.popleft()
        return found

    patch.setattr(worker, "next_batches", next_batches)


@mutant
def answers_a_repeat_with_a_reply(patch: Patch) -> None:
    def repeat(self: Any, member: Any, version: int) -> Respond:
        held = tuple(self._epochs.ledger.held(member.rank))
        return Respond(member.rank, "reply", "reply", held)

    patch.setattr(Pushes, "repeat", repeat)


@mutant
def tells_a_repeat_of_no_leases(patch: Patch) -> None:
    original = Pushes.repeat

    def repeat(self: Any, member: Any, version: int) -> Any:
        found = original(self, member, version)
        return found._replace(pieces=()) if isinstance(found, Respond) else found

    patch.setattr(Pushes, "repeat", repeat)


# ------------------------------------------------------------------ fencing


@mutant
def accepts_an_older_lineage(patch: Patch) -> None:
    original = Sequencer.push

    def push(self: Any, message: PushMetadata) -> list[Any]:
        return original(self, message._replace(lineage=self.lineage))

    patch.setattr(Sequencer, "push", push)


@mutant
def accepts_a_fenced_off_incarnation(patch: Patch) -> None:
    def is_current(self: Roster, rank: int, incarnation: int) -> bool:
        return rank in self.members

    patch.setattr(Roster, "is_current", is_current)


@mutant
def keeps_leases_of_the_dead(patch: Patch) -> None:
    patch.setattr(Ledger, "release", lambda self, owner: 0)


@mutant
def leases_twice_after_a_death(patch: Patch) -> None:
    original = Ledger.release

    def release(self: Any, owner: int) -> int:
        held = self.held(owner)
        rows = original(self, owner)
        self._leases[owner] = held
        return rows

    patch.setattr(Ledger, "release", release)


@mutant
def merges_the_message_of_a_dead_worker(patch: Patch) -> None:
    original = Sequencer.leave

    def leave(self: Any, rank: int, incarnation: int) -> list[Any]:
        kept = self._round.pushes.get(rank)
        found = original(self, rank, incarnation)
        if kept is not None:
            self._round.pushes[rank] = kept
        return found

    patch.setattr(Sequencer, "leave", leave)


# ---------------------------------------------------------- quorum and grace


@mutant
def commits_a_push_that_came_too_late(patch: Patch) -> None:
    """Returns the leases of late workers to them, if no other worker has them yet."""
    original, lost = Sequencer.push, dict[Any, Any]()

    def pass_over(self: Round, ready: Any, ledger: Ledger) -> list[int]:
        held = {m.rank: ledger.held(m.rank) for m in self.awaited(ready, ledger)}
        lost.update({(ledger, rank): pieces for rank, pieces in held.items()})
        return taken(self, ready, ledger)

    def push(self: Any, message: PushMetadata) -> list[Any]:
        member = self.members.get(message.rank)
        if member is not None and member.is_late:
            member.is_late = False
            pieces = lost.pop((self.ledger, message.rank))
            for piece in pieces:
                self.ledger._books[piece.epoch].free.remove(piece.start, piece.stop)
            self.ledger._leases[message.rank] = pieces
        return original(self, message)

    taken = Round.pass_over
    patch.setattr(Round, "pass_over", pass_over)
    patch.setattr(Sequencer, "push", push)


@mutant
def closes_without_the_late_and_takes_their_push_for_the_next(patch: Patch) -> None:
    original = Round.awaited
    closing = list[Sequencer]()

    def overdue(self: Any) -> list[Any]:
        closing.append(self)
        try:
            return self._close_round() + self._hand_out()
        finally:
            closing.clear()

    def awaited(self: Round, ready: Any, ledger: Ledger) -> list[Any]:
        return [] if closing else original(self, ready, ledger)

    patch.setattr(Sequencer, "overdue", overdue)
    patch.setattr(Round, "awaited", awaited)


@mutant
def keeps_the_leases_of_the_late(patch: Patch) -> None:
    def pass_over(self: Round, ready: Any, ledger: Ledger) -> list[int]:
        late = self.awaited(ready, ledger)
        for member in late:
            member.is_late = True
        return [member.rank for member in late]

    patch.setattr(Round, "pass_over", pass_over)


@mutant
def releases_the_leases_of_the_late_again_when_they_speak(patch: Patch) -> None:
    original, late = Round.pass_over, dict[Any, Any]()

    def pass_over(self: Round, ready: Any, ledger: Ledger) -> list[int]:
        held = {m.rank: ledger.held(m.rank) for m in self.awaited(ready, ledger)}
        found = original(self, ready, ledger)
        late.update({(ledger, rank): held[rank] for rank in found})
        return found

    repeat = Pushes.repeat

    def release(self: Any, member: Any, version: int) -> Any:
        ledger = self._epochs.ledger
        if member.is_late:
            for piece in late.pop((ledger, member.rank), []):
                ledger._books[piece.epoch].free.add(piece.start, piece.stop)
        return repeat(self, member, version)

    patch.setattr(Round, "pass_over", pass_over)
    patch.setattr(Pushes, "repeat", release)


@mutant
def deals_to_the_late(patch: Patch) -> None:
    patch.setattr(Roster, "punctual", Roster.ready)


@mutant
def forgets_that_a_late_push_was_answered(patch: Patch) -> None:
    original = Sequencer.push

    def push(self: Any, message: PushMetadata) -> list[Any]:
        members = dict(self.members)
        late = [m for rank, m in members.items() if rank == message.rank and m.is_late]
        before = [member.sequence for member in late]
        found = original(self, message)
        for member, sequence in zip(late, before, strict=True):
            member.sequence = sequence
        return found

    patch.setattr(Sequencer, "push", push)


@mutant
def never_waits_again_for_late_workers(patch: Patch) -> None:
    original = Sequencer.need

    def need(self: Any, rank: int, incarnation: int) -> list[Any]:
        late = [m for m in self.members.values() if m.rank == rank and m.is_late]
        found = original(self, rank, incarnation)
        for member in late:
            member.is_late = True
        return found

    def repeat(self: Any, member: Any, version: int) -> Any:
        was_late = member.is_late
        found = answers(self, member, version)
        member.is_late = was_late
        return found

    answers = Pushes.repeat
    patch.setattr(Sequencer, "need", need)
    patch.setattr(Pushes, "repeat", repeat)


# -------------------------------------------------------------- checkpoints


@mutant
def restores_without_a_new_lineage(patch: Patch) -> None:
    def spoil(sequencer: Sequencer) -> None:
        sequencer.lineage -= 1

    after_restore(patch, spoil)


@mutant
def restores_incarnations_from_scratch(patch: Patch) -> None:
    def spoil(sequencer: Any) -> None:
        sequencer._roster.floor = 0

    after_restore(patch, spoil)


@mutant
def restores_without_releasing_leases(patch: Patch) -> None:
    patch.setattr(Ledger, "release_all", lambda self: None)


@mutant
def restores_and_tells_of_no_epoch_that_was_complete(patch: Patch) -> None:
    original = Epochs.proceed

    def proceed(self: Epochs, epoch: int) -> list[int]:
        original(self, epoch)
        return []

    patch.setattr(Epochs, "proceed", proceed)


@mutant
def serves_before_its_lineage_is_stored(patch: Patch) -> None:
    original = ProtocolRun._keep

    def keep(self: ProtocolRun, server: SimServer) -> None:
        server.has_new_lineage = not self.store.kept
        original(self, server)

    patch.setattr(ProtocolRun, "_keep", keep)


@mutant
def falls_back_to_the_lineage_of_an_old_checkpoint(patch: Patch) -> None:
    original = Sequencer.from_json.__func__
    patch.setattr(
        Sequencer,
        "from_json",
        classmethod(lambda cls, rules, document, **_: original(cls, rules, document)),
    )


# ----------------------------------------------------------------- all_reduce


@mutant
def keeps_the_ledger_of_now_beside_the_snapshot(patch: Patch) -> None:
    original = Epochs.to_json

    def to_json(self: Epochs) -> dict[str, Any]:
        return {**original(self), "ledger": self.ledger.to_json()}

    patch.setattr(Epochs, "to_json", to_json)


@mutant
def gives_a_joiner_no_snapshot(patch: Patch) -> None:
    original = PublishedWeights.welcome

    def welcome(self: Any, fresh: Any, version: int) -> list[Any]:
        found = original(self, fresh, version)
        return [answer._replace(body="none") for answer in found]

    patch.setattr(PublishedWeights, "welcome", welcome)


@mutant
def ends_an_epoch_before_its_center_is_published(patch: Patch) -> None:
    def end_epochs(self: Any) -> list[Any]:
        return [EpochDone(epoch) for epoch in self._epochs.end()]

    patch.setattr(Sequencer, "_end_epochs", end_epochs)


@mutant
def rolls_the_version_back_with_the_center(patch: Patch) -> None:
    original = Sequencer._roll_back

    def roll_back(self: Any) -> list[Any]:
        self.version = self._epochs.saved_version
        return original(self)

    patch.setattr(Sequencer, "_roll_back", roll_back)


@mutant
def deals_a_joiner_into_steps_that_were_dealt(patch: Patch) -> None:
    original = Leases.deal

    def deal(self: Any, ledger: Any, members: Any) -> None:
        for member in members:
            if not ledger.pieces_held(member.rank):
                original(self, ledger, [member])
        original(self, ledger, members)

    patch.setattr(Leases, "deal", deal)


# -------------------------------------------------------------------- tests


def first_violation() -> tuple[int, Violation] | None:
    for seed in range(MOST_SEEDS):
        try:
            ProtocolRun(draw(seed)).run()
        except Violation as violation:
            return seed, violation
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    found = first_violation()
    assert found is not None, f"{name} lived through {MOST_SEEDS} schedules"
    print(f"{name}: seed {found[0]}: {str(found[1])[:100]}")


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 10
