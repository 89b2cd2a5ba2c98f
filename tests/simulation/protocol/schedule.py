"""The schedule of a simulated run: the next event, and faults.

This file decides it, from a seed: every message waits until it is drawn, so that it
is late by any number of events; and any process may die, and the clock move, between
any two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import final

from shoal.engine.coordination.instructions import PushMetadata
from shoal.engine.coordination.sequencer import Sequencer
from tests.simulation.protocol.controller import SimController
from tests.simulation.protocol.invariants import Watch, look_at_end, look_at_weights
from tests.simulation.protocol.lines import Line
from tests.simulation.protocol.scenario import Scenario
from tests.simulation.protocol.server import Report, SimServer
from tests.simulation.protocol.store import Center, Checkpoint, Place, Store
from tests.simulation.protocol.worker import SimWorker
from tests.simulation.schedules import Event, Schedule
from tests.simulation.violation import require

TROUBLE = 0.08  # chance of trouble at an event, while there is some left
SLOW = 3  # every third worker may be
STUBBORN = 0.5  # chance that a worker sends what it pushed to a server that is gone


@final
class ProtocolRun(Schedule[Scenario]):
    """One simulated run.

    Args:
        scenario: Parameters of the run; see `draw`.

    Example:
        >>> from tests.simulation.protocol import draw
        >>> run = ProtocolRun(draw(seed=1)).run()
        >>> run.tally["events"] > 0, run.controller.is_over
        (True, True)
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, TROUBLE)
        self.rules = scenario.rules
        self.store, self.watch = Store(), Watch()
        self.workers: dict[int, SimWorker] = {}
        self.lines: list[Line] = []
        self.past: list[tuple[int, PushMetadata]] = []
        self.exits: list[tuple[int, int]] = []
        self.started = self.era = 0
        place = Place(self.rules.first_epoch)
        self.controller = SimController(scenario, place, now=0.0)
        self.reports: deque[Report] = deque()
        self.server: SimServer | None = None
        for hint in range(self.rules.workers):
            self._start_worker(hint)
        self._serve(SimServer(Sequencer(self.rules), Center(), self.era))

    # ------------------------------------------------------------ schedule

    def _after_turn(self) -> None:
        if self.controller.is_aborted:
            self._log("abort")
            self.tally["abort"] += 1
            self._blackout()
        server = self.server
        if server is None:
            return
        if server.has_new_lineage or self.random.random() < self.scenario.checkpoints:
            self._keep(server)
        self.watch.look(server)

    def _events(self, *, is_slow: bool) -> list[Event]:
        found: list[Event] = []
        for line in self.lines if self.server is not None else ():
            if line.up and not (is_slow and self._is_passed_over(line.worker)):
                found.append(partial(self._deliver, line))
        for worker in self.workers.values():
            is_late = is_slow and self._is_passed_over(worker.number)
            if worker.line.down and not is_late:
                found.append(partial(self._act, worker))
        return found + self._events_beside()

    def _events_beside(self) -> list[Event]:
        """Events that are no message to or from a worker."""
        found: list[Event] = []
        controller, is_up = self.controller, self.server is not None
        if controller.commands and is_up:
            found.append(self._obey)
        if self.reports:
            found.append(self._report)
        if self.exits:
            found.append(self._exit)
        if self.store.coming is not None:
            found.append(self.store.end)
        if self._may_be_overdue():
            found.append(self._overdue)
        if controller.timers and (is_up or not controller.is_over):
            found.append(self._tick)
        return found

    def _is_passed_over(self, number: int) -> bool:
        slowness = self.scenario.slowness
        is_slow = slowness > 0 and number % SLOW == SLOW - 1
        return is_slow and self.random.random() < slowness

    def _may_be_overdue(self) -> bool:
        server = self.server
        is_quorate = server is not None and server.sequencer.round_progress.is_quorate
        return is_quorate and self.random.random() < self.scenario.haste

    # -------------------------------------------------------------- messages

    def _deliver(self, line: Line) -> None:
        server = self._the_server()
        message = line.up.popleft()
        found = server.hear(line, message)
        self._log("server hears", line.worker, message, found)
        self._take_reports(server)
        if message.kind == "gone":
            self.lines.remove(line)

    def _act(self, worker: SimWorker) -> None:
        letter = worker.line.down.popleft()
        self._log("worker hears", worker.number, letter)
        if letter.kind == "done":
            self._end(worker)
        elif letter.kind in ("refused", "lost"):
            self.tally[letter.kind] += 1
            self._lose_line(worker, up=len(worker.line.up), down=0)
            if self.random.random() < self.scenario.rejoins:
                self._connect(worker)
            else:
                self._end(worker)
        else:
            worker.hear(letter, self.rules)

    def _obey(self) -> None:
        server = self._the_server()
        order = self.controller.commands.popleft()
        self._log("server obeys", order, server.obey(*order))
        self._take_reports(server)

    def _overdue(self) -> None:
        server = self._the_server()
        self.tally["overdue"] += 1
        self._log("a round is overdue", server.overdue())
        self._take_reports(server)

    def _report(self) -> None:
        report = self.reports.popleft()
        self._log("controller hears", report)
        self.controller.hear(report)

    def _exit(self) -> None:
        number, hint = self.exits.pop(0)
        self._log("controller misses", number)
        self.controller.exited(number, hint)

    def _tick(self) -> None:
        timer = self.controller.tick()
        self._log("clock", timer)
        if timer.task == "worker":
            self._start_worker(timer.hint)
        elif timer.task == "server":
            self._restart()

    def _take_reports(self, server: SimServer) -> None:
        self.reports.extend(server.reports)
        server.reports.clear()

    # --------------------------------------------------------------- workers

    def _start_worker(self, hint: int) -> None:
        self.started += 1
        line, is_summed = Line(self.started), self.scenario.is_summed
        worker = SimWorker(self.started, hint, line, is_summed)
        self.workers[worker.number] = worker
        self.controller.hired(worker.number, hint)
        self._connect(worker)

    def _connect(self, worker: SimWorker) -> None:
        line = Line(worker.number)
        self.lines.append(line)
        worker.join(line, is_stubborn=self.random.random() < STUBBORN)

    def _end(self, worker: SimWorker) -> None:
        """Ends a process at any point of its work."""
        self._lose_line(worker, up=self._part(len(worker.line.up)), down=0)
        del self.workers[worker.number]
        self.exits.append((worker.number, worker.hint))

    def _lose_line(self, worker: SimWorker, up: int, down: int) -> None:
        worker.line.cut(up, down)
        if worker.last is not None and worker.last.push is not None:
            self.past.append((worker.number, worker.last.push))

    # --------------------------------------------------------------- trouble

    def _any_worker(self, wanted: Callable[[SimWorker], bool]) -> SimWorker | None:
        found = [worker for worker in self.workers.values() if wanted(worker)]
        return self.random.choice(found) if found else None

    def _kill(self) -> bool:
        worker = self._any_worker(lambda _: True)
        if worker is not None:
            self._end(worker)
        return worker is not None

    def _cut(self) -> bool:
        worker = self._any_worker(lambda worker: not worker.line.is_cut)
        if worker is not None:
            line = worker.line
            self._lose_line(
                worker, self._part(len(line.up)), self._part(len(line.down))
            )
        return worker is not None

    def _late(self) -> bool:
        if not self.controller.is_over:
            self._start_worker(self.random.choice([-1, 0, 1, 2, 5]))
        return not self.controller.is_over

    def _repeat(self) -> bool:
        worker = self._any_worker(SimWorker.can_repeat)
        if worker is not None:
            worker.repeat()
        return worker is not None

    def _stray(self) -> bool:
        if self.server is None or not self.past:
            return False
        number, push = self.random.choice(self.past)
        return self.server.stray(number, push)

    def _halt(self) -> bool:
        if self.controller.is_over:
            return False
        self.controller.halt()
        return True

    # ------------------------------------------------------ server and storage

    def _the_server(self) -> SimServer:
        if self.server is None:
            raise RuntimeError("a message reached a server that is not there")
        return self.server

    def _keep(self, server: SimServer) -> None:
        checkpoint = server.checkpoint(self.controller.place)
        self.tally["checkpoint"] += 1
        if server.has_new_lineage:
            # Before anybody is answered: who restores must not begin with it as well.
            self.store.write(checkpoint)
            server.has_new_lineage = False
        else:
            self.store.begin(checkpoint)

    def _serve(self, server: SimServer) -> None:
        self.server = server
        self.controller.greet(server)
        server.has_new_lineage = True
        self._keep(server)

    def _crash(self) -> bool:
        """The server is killed alone; what it had sent may still arrive."""
        if self.server is None:
            return False
        self._drop_server()
        for worker in self.workers.values():
            self._lose_line(worker, -1, self._part(len(worker.line.down)))
        for _ in range(self._part(len(self.reports))):
            self.reports.pop()
        self.reports.append(Report("lost"))
        return True

    def _drop_server(self) -> None:
        server, self.server = self.server, None
        self.lines.clear()
        if server is not None:
            self.era = server.era
            self.tally["rollback"] += server.rollbacks
            self.tally["repeated"] += server.repeats
            self.tally["outdated"] += server.outdated
            self.tally["belated"] += server.belated
            self.tally["grouped"] += server.grouped
            self.tally["ungrouped"] += server.ungrouped
            self.tally["alone"] += server.alone

    def _restart(self) -> None:
        """A new server continues from the last checkpoint that can be read."""
        checkpoint = self.store.read(self.random, self.scenario.damages)
        self._restore(checkpoint)

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.era += 1
        newest = self.store.newest_lineage
        server = SimServer.restore(self.rules, checkpoint, newest, self.era)
        self.watch.restarted(server)
        self._serve(server)

    def _blackout(self) -> bool:
        """All processes are killed, and the run is resumed, with other workers."""
        if self.controller.is_over:
            return False
        self._drop_server()
        for worker in self.workers.values():
            self._lose_line(worker, -1, 0)
        self.workers.clear()
        self.exits.clear()
        self.reports.clear()
        checkpoint = self.store.read(self.random, self.scenario.damages)
        self.rules = replace(self.rules, workers=self.random.randint(1, 5))
        now = self.controller.now
        self.controller = SimController(self.scenario, checkpoint.place, now)
        for hint in range(self.rules.workers):
            self._start_worker(hint)
        self._restore(checkpoint)
        return True

    # ---------------------------------------------------------------- the end

    def _look_at_end(self) -> None:
        controller, server = self.controller, self.server
        require(controller.is_over, "every run ends: it is stuck")
        if server is not None:  # else the controller ends who waits for it
            require(not self.workers, "every worker ends", list(self.workers))
            members = server.sequencer.members
            require(not members, "nobody stays in a run that is over", members)
        self._drop_server()
        if not controller.is_halted:
            look_at_end(controller.final, self.rules, controller.end)
        if self.scenario.is_summed:
            look_at_weights(controller.final)
        self.tally["damaged"] = self.store.damaged
