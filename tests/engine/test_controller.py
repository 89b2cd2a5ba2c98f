"""Commands of a controller to a server that replaces a lost one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.engine.controller.controller import Controller
from shoal.engine.controller.spec import ControllerSpec
from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.restart_policy import RestartPolicy
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.environment import SYSTEM
from shoal.engine.server.checkpoint import ServerCheckpoint
from shoal.engine.transport.changes import Changes
from shoal.engine.transport.messages.controller_to_server import (
    Command,
    Halt,
    Proceed,
)
from shoal.engine.transport.messages.server_to_worker import RunState
from shoal.engine.transport.messages.state_reports import (
    EpochEnded,
    RestartState,
)
from shoal.plan.often import Often


@pytest.fixture
def controller() -> Controller:
    """A controller without processes that was not given a server."""
    anybody: Any = SimpleNamespace(on_event=lambda *_, **__: None, environment=SYSTEM)
    anybody.on_checkpoint = anybody.pair = lambda _: None
    job = ControllerSpec(
        workers=2,
        policy=RestartPolicy(),
        first_epoch=0,
        epochs=1,
        log=lambda _: None,
        often=Often(),
    )
    return Controller(job, anybody, anybody)


def test_a_pending_checkpoint_is_requested_again(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        controller._servers, "command", lambda command, _: told.append(command.kind)
    )
    vector = np.zeros(3, np.float32)
    table = (("vector", "float32", 3),)
    report = RestartState(sequencer={"lineage": 0}, arrays=table)
    controller._repeat()
    controller._checkpoint()
    controller._repeat()
    assert told == ["learning_rate", "checkpoint", "learning_rate", "checkpoint"]
    controller._hear(report, memoryview(vector.tobytes()))
    controller._repeat()
    assert told[4:] == ["learning_rate"]


class Heard:
    """An observer that keeps the reported epochs, and may want to stop."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.wants_stop = self.is_in_step = False
        self.changes, self.environment = Changes(), SYSTEM

    def on_epoch(self, end: Any) -> None:
        self.ends.append(end.epoch)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def checkpoint(complete: int) -> ServerCheckpoint:
    """A checkpoint with this number of complete epochs."""
    sequencer = Sequencer(RULES)
    for epoch in range(complete):
        book = sequencer.ledger
        book.open(epoch, 8)
        piece = book.lease(0, epoch, 8)
        assert piece is not None
        book.commit(0, [piece])
        book.close(epoch)
    return ServerCheckpoint(sequencer=sequencer.to_json(), arrays={})


STATE = RunState(version=1, lineage=0, clock=1, workers=1, learning_rate=None)
RULES = Rules(
    epoch_rows=(8,), first_epoch=0, epochs=6, workers=1, batch=8, window=1,
    is_rounds=False, exchanges_gradients=False, is_elastic=False,
)  # fmt: skip


@pytest.mark.parametrize("is_halted", [False, True])
def test_epochs_after_the_checkpoint_are_trained_again(
    is_halted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ends were reported: none is reported twice, and none is left out."""
    observer: Any = Heard()
    job = ControllerSpec(
        workers=1, policy=RestartPolicy(), first_epoch=0, epochs=6,
        log=lambda _: None, often=Often(),
    )  # fmt: skip
    controller, told = Controller(job, observer, observer), list[Any]()

    def command(command: Command, _: bytes) -> None:
        if isinstance(command, Proceed):
            told.append(command.epoch)
        elif isinstance(command, Halt):
            told.append("halt")

    monkeypatch.setattr(controller._servers, "command", command)
    monkeypatch.setattr(controller, "_ask", lambda *_: None)
    monkeypatch.setattr(
        "shoal.engine.controller.controller.read_epoch",
        lambda report, *_: SimpleNamespace(epoch=report.epoch),
    )

    def end(epoch: int) -> None:
        report = EpochEnded(epoch=epoch, rows=8, state=STATE, size=0, statistics=0)
        controller._hear(report, memoryview(b""))

    controller._open(0)
    for epoch in range(4):
        end(epoch)
    assert told == [0, 1, 2, 3, 4]
    controller._standing.is_halted = is_halted
    resume_point: Any = SimpleNamespace(
        server=SimpleNamespace(checkpoint=checkpoint(complete=2), rules=RULES)
    )
    controller._go_back(resume_point)
    controller._repeat()
    end(2)
    end(3)
    assert told[5:] == [2, 3, 4, *(["halt"] if is_halted else [])]
    assert observer.ends == [0, 1, 2, 3]
    end(4)
    assert observer.ends == [0, 1, 2, 3, 4]
