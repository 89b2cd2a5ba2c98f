"""What a controller tells a server that takes another one's place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.engine.controller import Controller, Job
from shoal.engine.recovery import RecoveryPolicy
from shoal.engine.wire import Head
from shoal.plan.often import Often


@pytest.fixture
def controller() -> Controller:
    """One without processes, that was never given a server."""
    anybody: Any = SimpleNamespace(on_event=lambda *_, **__: None)
    anybody.on_checkpoint = lambda _: None
    job = Job(
        workers=2,
        policy=RecoveryPolicy(),
        first_epoch=0,
        epochs=1,
        log=lambda _: None,
        often=Often(),
    )
    return Controller(job, anybody, anybody)


def test_a_checkpoint_that_was_asked_for_is_asked_for_again(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        controller._servers, "command", lambda kind, **_: told.append(kind)
    )
    vector = np.zeros(3, np.float32)
    table = [["vector", "float32", 3]]
    head: Head = {"kind": "restart", "sequencer": {"lineage": 0}, "arrays": table}
    controller._repeat()
    controller._checkpoint()
    controller._repeat()
    assert told == ["learning_rate", "checkpoint", "learning_rate", "checkpoint"]
    controller._hear(head, memoryview(vector.tobytes()))
    controller._repeat()
    assert told[4:] == ["learning_rate"]
