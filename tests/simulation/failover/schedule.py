"""The schedule of a simulated run with a standby: the next event, and faults.

This file decides it, from a seed, as `tests.simulation.protocol.schedule` does for runs
without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import final

from shoal.engine.server.base import BaseServer
from shoal.engine.server.standby import Standby
from tests.simulation.failover.controller import SimController
from tests.simulation.failover.invariants import look_at_end, look_at_weights
from tests.simulation.failover.network import Network, Wire
from tests.simulation.failover.processes import Process, SimProcesses
from tests.simulation.failover.scenario import Scenario
from tests.simulation.failover.strand import Strand
from tests.simulation.schedules import Event, Schedule
from tests.simulation.violation import require

MOST_IDLE = 2_000  # turns in which nothing can happen but that time passes
IDLE_S = 0.5
TICK = 0.05  # chance that an event is only the clock's
TROUBLE = 0.06  # chance of trouble at an event, while there is some left
UNRELIEVED = 0.02  # chance that it may hit a leader whose standby is not ready
SLOWNESS = 0.9  # chance that a slow peer is passed over
LATENESS = 0.7  # chance that time passes while only who is late could speak
NOTICED = 0.1  # chance that a leader that is stopped is found to be


@final
class FailoverRun(Schedule[Scenario]):
    """One simulated run.

    Args:
        scenario: Parameters of the run; see `draw`.

    Example:
        >>> from tests.simulation.failover import draw
        >>> run = FailoverRun(draw(seed=1)).run()
        >>> run.tally["events"] > 0, run.controller.is_over
        (True, True)
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, TROUBLE)
        self.network = Network()
        self.processes = SimProcesses(scenario, self.network, self.random)
        self.controller = self.processes.controller
        self._idle = 0

    # ------------------------------------------------------------ schedule

    @contextmanager
    def _setting(self) -> Generator[None]:
        try:
            yield
        finally:
            for strand in self.processes.strands.values():
                strand.kill()

    def step(self) -> bool:
        """Lets one event happen; returns False when the run is over."""
        controller = self.controller
        if (controller.is_over or controller.is_lost) and not self.network.is_closed:
            self._log("over", "lost" if controller.is_lost else "")
            self.tally["lost"] += controller.is_lost
            self.processes.close()
        return super().step()

    def _if_only_slow(self, events: list[Event]) -> list[Event]:
        if events and self._is_waited_for():
            return [partial(self._tick, IDLE_S)]
        return events

    def _goes_on(self, events: list[Event]) -> bool:
        if not events and self.network.is_closed:
            return False
        self._idle = 0 if events else self._idle + 1
        require(self._idle < MOST_IDLE, "every run ends: it is stuck")
        return True

    def _turn(self, events: list[Event]) -> None:
        if not events:
            self._tick(IDLE_S)
        elif not self._make_trouble():
            is_tick = self.random.random() < TICK
            tick = partial(self._tick, self.scenario.tick_s)
            (tick if is_tick else self.random.choice(events))()

    def _after_turn(self) -> None:
        self.processes.bury()

    def _events(self, *, is_slow: bool) -> list[Event]:
        processes = self.processes
        found = [
            partial(self._hears, process, wire)
            for process in processes.servers
            if not process.connections.is_stopped
            for wire in process.connections.speaking
            if not (is_slow and self._is_passed_over(process, wire))
        ]
        found += [
            partial(self._works, token, strand)
            for token, strand in processes.strands.items()
            if strand.can_go
        ]
        return found + self._events_of_controller()

    def _events_of_controller(self) -> list[Event]:
        found: list[Event] = [self._miss] if self.processes.exits else []
        if self.network.is_closed:
            return found
        controller, leader = self.controller, self.processes.leader
        if controller.wire is not None and controller.wire.down:
            found.append(self._report)
        if leader is not None and leader.connections.is_stopped:
            found.append(self._find_silent)
        follower = self.processes.follower
        is_hung = follower is not None and follower.connections.is_stopped
        if is_hung and not controller.is_called:
            found.append(self._find_missing)
        if leader is not None and controller.wants_standby:
            found.append(self.processes.start_standby)
        return found

    def _is_waited_for(self) -> bool:
        """Whether time passes while a worker is late: its round may close then."""
        return self.scenario.quorum > 0 and self.random.random() < LATENESS

    def _is_passed_over(self, process: Process, wire: Wire) -> bool:
        peer = process.connections.peers.get(wire)
        if peer is None:
            return False
        is_late = self.scenario.quorum > 0 and peer.role == "worker" and not peer.rank
        is_slow = is_late or peer.role == self.scenario.slow != ""
        return is_slow and self.random.random() < SLOWNESS

    # --------------------------------------------------------------- turns

    def _hears(self, process: Process, wire: Wire) -> None:
        process.connections.due = wire
        name = "leader" if process is self.processes.leader else "standby"
        self._log(name, "hears", *_glance(wire))
        self._gives_turn(process)

    def _tick(self, seconds: float) -> None:
        self.network.now += seconds * self.random.random()
        for process in self.processes.servers:
            if not process.connections.is_stopped:
                self._gives_turn(process)

    def _gives_turn(self, process: Process) -> None:
        body = process.body
        body.turn()
        if isinstance(body, Standby) and not body.is_following:
            self._succeed(process, body)
        elif isinstance(body, BaseServer) and not body.is_running:
            body.close()
            self.processes.ended(process)

    def _succeed(self, process: Process, body: Standby) -> None:
        successor = body.succeed()
        if successor is None:
            self.processes.ended(process)
            return
        self._log("the standby leads")
        self.tally["succession"] += 1
        version, told = successor.replica.sequencer.version, self.network.version
        require(version >= told, "what anybody was told, the standby knows", told)
        process.body = successor
        successor.begin()

    def _works(self, token: str, strand: Strand) -> None:
        link = self.processes.link_of(token)
        heard = () if link is None else _glance(link.socket)
        self._log("worker", token, *heard)
        self.network.strand = strand
        strand.resume()
        self.network.strand = None

    def _report(self) -> None:
        head = self.controller.hear()
        self.tally["overdue"] += head["kind"] == "late"
        self.network.hears(head)
        self._log("controller hears", head)

    def _miss(self) -> None:
        """The controller notices that a process has ended."""
        processes = self.processes
        what, which = processes.exits.pop(self.random.randrange(len(processes.exits)))
        self._log("controller misses", what)
        if self.network.is_closed:
            return
        if what == "worker":
            self.controller.worker_ended(str(which))
        elif which is processes.leader:
            self.controller.lost()
        elif which is processes.follower:
            self.controller.lose_standby()

    def _find_silent(self) -> None:
        if self.random.random() < NOTICED:
            self._log("controller gives up the leader")
            self.controller.lost()

    def _find_missing(self) -> None:
        if self.random.random() < NOTICED:
            self._log("controller gives up a standby that never called")
            self.controller.lose_standby()

    # --------------------------------------------------------------- trouble

    def _make_trouble(self) -> bool:
        return not self.network.is_closed and super()._make_trouble()

    def _can_lead(self) -> bool:
        """Whether the run can lose its leader; sometimes it may lose both servers."""
        has_standby = self.controller.standby_peer is not None
        is_there = has_standby and self.processes.follower is not None
        return is_there or self.random.random() < UNRELIEVED

    def _crash(self) -> bool:
        leader = self.processes.leader
        if leader is None or not self._can_lead():
            return False
        self.processes.ended(leader)
        return True

    def _hang(self) -> bool:
        leader = self.processes.leader
        if leader is None or leader.connections.is_stopped or not self._can_lead():
            return False
        leader.connections.is_stopped = True
        return True

    def _lose(self) -> bool:
        follower = self.processes.follower
        if follower is not None:
            self.processes.ended(follower)
        return follower is not None

    def _deafen(self) -> bool:
        follower = self.processes.follower
        if follower is None or follower.connections.is_stopped:
            return False
        follower.connections.is_stopped = True
        return True

    def _split(self) -> bool:
        follower = self.processes.follower
        link = None if follower is None else follower.link
        return link is not None and self.processes.cut(link)

    def _any_worker(self) -> str | None:
        living = list(self.processes.strands)
        return self.random.choice(living) if living else None

    def _kill(self) -> bool:
        token = self._any_worker()
        if token is not None:
            self.processes.end_worker(token)
        return token is not None

    def _cut(self) -> bool:
        token = self._any_worker()
        link = None if token is None else self.processes.link_of(token)
        return link is not None and self.processes.cut(link)

    def _late(self) -> bool:
        self.processes.start_worker(-1)
        return True

    def _jump(self) -> bool:
        self.network.now += self.random.uniform(2, 12)
        return True

    # --------------------------------------------------------------- the end

    def _look_at_end(self) -> None:
        left = list(self.processes.strands)
        require(not left, "every worker ends", left)
        if self.controller.is_lost:
            return
        look_at_end(self.controller, self.scenario)
        if self.scenario.has_steady_workers:
            has_lost = self.controller.has_lost_workers
            require(not has_lost, "what befalls servers costs no worker")
        if self.scenario.is_repeatable and self.scenario.trouble:
            calm = replace(self.scenario, trouble=Counter())
            look_at_weights(self.controller, _run(calm))


def _run(scenario: Scenario) -> SimController:
    return FailoverRun(scenario).run().controller


def _glance(wire: Wire) -> tuple[str, ...]:
    """The frame that comes next on a connection."""
    for way in (wire.up, wire.down):
        if way:
            return (way[0].text[:200] or "the end",)
    return ()
