"""What a standby leaves to the server that it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from shoal.engine.connections import Peer
from shoal.engine.grace import Grace
from shoal.engine.machine import Machine, StrategyFailed
from shoal.engine.reporter import Reporter
from shoal.engine.wire import Head


class Caller(NamedTuple):
    """Who has said something that only whoever leads can answer.

    Args:
        peer: Its connection.
        head: What it said.
        since: When, in seconds of a monotonic clock.
    """

    peer: Peer
    head: Head
    since: float


@final
@dataclass(frozen=True, kw_only=True)
class Handover:
    """What a standby leaves to the server that it becomes.

    Args:
        machine: The run.
        reporter: What the controller was not told yet.
        grace: How long rounds took.
        controller: Who says that it leads.
        lead: What it says: reports it has heard, and tokens of living processes.
        callers: Since the leader was lost, or before that was clear.
        failure: Of the strategy, at an event that the leader may not have told of.
    """

    machine: Machine
    reporter: Reporter
    grace: Grace
    controller: Peer
    lead: Head
    callers: list[Caller]
    failure: StrategyFailed | None
