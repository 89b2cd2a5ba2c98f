"""A whole run in one process: server, workers and controller under a seeded schedule.

The sequencer, the ledger and the recovery function are those of a run. Workers and the
controller follow the engine's protocol, and connections, clock and storage are queues
and numbers that a random schedule moves. Every run checks itself.

    ProtocolRun(draw(seed=7)).run()          # raises Violation if a promise is broken
"""

from tests.simulation.protocol.scenario import KINDS, Scenario, draw
from tests.simulation.protocol.schedule import ProtocolRun
from tests.simulation.violation import Violation

__all__ = ["KINDS", "ProtocolRun", "Scenario", "Violation", "draw"]
