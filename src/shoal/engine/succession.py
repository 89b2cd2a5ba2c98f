"""What a standby leaves to the server that it becomes."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.engine.connections import Peer
from shoal.engine.grace import Grace
from shoal.engine.machine import Machine, StrategyFailed
from shoal.engine.reporter import Reporter
from shoal.engine.wire import Head


@dataclass(frozen=True, kw_only=True)
class Succession:
    """What a standby leaves to the server that it becomes.

    Args:
        machine: The run.
        reporter: What the controller was not told yet.
        grace: How long rounds took.
        controller: Who says that it leads, None where that one is gone again.
        lead: What it says: reports it has heard, and tokens of living processes.
        callers: Who has said what since the leader was lost, or before that was clear.
        failure: Of the strategy, at an event that the leader may not have told of.
    """

    machine: Machine
    reporter: Reporter
    grace: Grace
    controller: Peer | None
    lead: Head
    callers: list[tuple[Peer, Head]]
    failure: StrategyFailed | None
