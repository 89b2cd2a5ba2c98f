"""A leading server and its standby under a seeded schedule, in one process.

Server, standby, replica, replication and reports, and the workers with their clients,
are those of a run; sockets, processes and the clock are simulated. Workers run in
threads of which one at a time has the turn. Every run checks itself.

    FailoverRun(draw(seed=7)).run()     # raises Violation if a promise is broken

`tests.simulation.protocol` simulates the sequencer alone, without a standby and with
recovery from checkpoints; it is a hundred times as fast.
"""

from tests.simulation.failover.scenario import KINDS, Scenario, draw
from tests.simulation.failover.schedule import FailoverRun

__all__ = ["KINDS", "FailoverRun", "Scenario", "draw"]
