"""Commands that another server is sent again, and the time of checkpoints."""

from __future__ import annotations

from shoal.engine.controller.checkpoint_schedule import SNAPSHOT_S, CheckpointSchedule
from shoal.engine.controller.standing_commands import StandingCommands
from shoal.engine.transport.messages.controller_to_server import (
    AskCenter,
    AskCheckpoint,
    Expect,
    Finish,
    Halt,
    Proceed,
)
from shoal.plan.often import Often


def test_the_newest_commands_are_sent_again() -> None:
    standing = StandingCommands()
    for command in (Expect(workers=3), Proceed(epoch=0), Expect(workers=2)):
        standing.note(command)
    standing.note(Proceed(epoch=1))
    standing.note(Finish())
    again = [Expect(workers=2), Proceed(epoch=1)]
    assert standing.of_run(next_epoch=1) == again
    assert standing.requests() == []


def test_requests_are_sent_again_until_they_are_answered() -> None:
    standing = StandingCommands()
    standing.note(AskCheckpoint(wants_snapshot=True))
    standing.note(AskCenter())
    assert standing.requests() == [AskCenter(), AskCheckpoint()]
    standing.answered()
    assert standing.requests() == [AskCheckpoint()]
    standing.checkpoint_came()
    assert standing.requests() == []


def test_a_halt_waits_while_a_reported_epoch_is_trained_again() -> None:
    standing = StandingCommands()
    standing.note(Proceed(epoch=3))
    assert standing.halts(next_epoch=3) == []
    standing.is_halted = True
    assert standing.of_run(next_epoch=3) == [Proceed(epoch=3), Halt()]
    standing.go_back(upcoming=1)
    assert standing.of_run(next_epoch=3) == [Proceed(epoch=1)]
    standing.go_back(upcoming=2)
    assert standing.of_run(next_epoch=1) == [Proceed(epoch=1), Halt()]


def test_a_checkpoint_is_due_after_a_number_of_samples() -> None:
    schedule = CheckpointSchedule(Often(seconds=None, samples=10), now=0.0)
    schedule.count(9)
    assert not schedule.is_due
    schedule.count(1)
    assert schedule.is_due
    schedule.request(1.0)
    assert not schedule.is_due


def test_a_snapshot_is_requested_with_some_checkpoints() -> None:
    schedule = CheckpointSchedule(Often(), now=0.0)
    times = (1.0, SNAPSHOT_S, SNAPSHOT_S + 1, 2 * SNAPSHOT_S)
    wanted = [schedule.request(now).wants_snapshot for now in times]
    assert wanted == [False, True, False, True]
