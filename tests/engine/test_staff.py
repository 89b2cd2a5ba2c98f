"""Who counts as lost when processes end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shoal.engine.recovery import RecoveryPolicy
from shoal.engine.staff import Staff
from shoal.launchers.base import Exit


def test_workers_that_end_with_their_server_are_nobodys_loss() -> None:
    """All are found gone in one look, with no replacement to spend on workers."""
    ended = [Exit(name=name, code=1, reason="exited") for name in ("w0", "w1", "s")]
    stage: Any = SimpleNamespace(
        server="s",
        worker=lambda hint: f"w{hint}",
        give=lambda *_: None,
        poll=lambda: {gone.name: gone for gone in ended},
    )
    told: list[str] = []
    observer: Any = SimpleNamespace(on_event=lambda kind, **_: told.append(kind))
    policy = RecoveryPolicy(max_restarts=0, min_workers=2)
    staff = Staff(stage, policy, lambda _: None, observer, lambda _: None)
    spec: Any = None
    staff.give(2, lambda hint, token: spec)
    found = staff.watch()
    assert found is not None
    assert found.name == "s"
    assert told == []
