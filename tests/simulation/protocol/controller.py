"""A simulated controller: epochs in order, lost processes replaced, and a clock.

It does what `controller` and `supervisor` of `shoal.engine.controller` do, with the
restart policy of a run, and what follows when the server comes back from a checkpoint.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Literal, NamedTuple, TypeAlias, final

from shoal.engine.coordination import restart_policy
from tests.simulation.controller import Controller
from tests.simulation.protocol.scenario import Scenario
from tests.simulation.protocol.server import Report, SimServer
from tests.simulation.protocol.store import Center, Place

RESTART_S = 2.0  # until a server is there again
STATE_S = 20.0  # for the last worker's state

Task: TypeAlias = Literal["worker", "server", "finish"]


class Timer(NamedTuple):
    """An action that is due later."""

    due: float
    order: int
    task: Task
    hint: int = -1


@final
class SimController(Controller[int]):
    """One controller process.

    Args:
        scenario: Parameters of the run.
        place: Progress of an earlier controller.
        now: Seconds.
    """

    def __init__(self, scenario: Scenario, place: Place, now: float) -> None:
        self._scenario, self.now = scenario, now
        end = scenario.rules.epochs
        if scenario.stop_after is not None:
            end = min(end, scenario.stop_after)
        super().__init__(place.upcoming, end)
        self.is_halted = place.is_halted
        self.commands: deque[tuple[str, int]] = deque()
        self.timers: list[Timer] = []
        self.restarts = self._made = 0
        self.is_finishing = self.is_aborted = False
        self.final = self._shown = Center()

    @property
    def place(self) -> Place:
        """The progress of this controller."""
        return Place(self.upcoming, self.is_halted)

    # ------------------------------------------------------------------ epochs

    def greet(self, server: SimServer) -> None:
        """Continues with a server, which may know less than this controller or more."""
        sequencer = server.sequencer
        upcoming = self.upcoming = min(self.upcoming, sequencer.upcoming)
        self.is_halted |= sequencer.is_halted
        self._ended.clear()  # what is complete will be told again
        self.commands.clear()
        self.commands.append(("expect", self.expected))
        if self.is_halted and upcoming not in sequencer.ledger.epochs:
            self._shown = server.center
            self._end_run()  # it was halted between two epochs
            return
        self._proceed(upcoming)
        if self.is_halted:
            self.commands.append(("halt", 0))

    @property
    def expected(self) -> int:
        """Workers that live or will be started."""
        due = sum(timer.task == "worker" for timer in self.timers)
        return len(self.hands) + due

    def halt(self) -> None:
        """A callback stops the run."""
        self.is_halted = True
        self.commands.append(("halt", 0))

    def hear(self, report: Report) -> None:
        """Handles a report of the server."""
        if report.kind == "epoch":
            self._end_epoch(report)
        elif report.kind == "state" and self.is_over:
            self._finish()
        elif report.kind == "lost" and not self.is_over:
            self._wait(RESTART_S, "server")

    def _end_epoch(self, report: Report) -> None:
        if not self.is_over:
            self._shown = report.center or Center()
            self._epoch_ended(report.epoch)

    def _proceed(self, epoch: int) -> None:
        self.commands.append(("proceed", epoch))

    def _end_run(self) -> None:
        self.final, self.is_over = self._shown, True
        self.timers = [timer for timer in self.timers if timer.task == "finish"]
        self.commands.append(("ask", 0))
        self._wait(STATE_S, "finish")

    def _finish(self) -> None:
        if not self.is_finishing:
            self.is_finishing = True
            self.commands.append(("finish", 0))

    # --------------------------------------------------------------- processes

    def exited(self, number: int, hint: int) -> None:
        """A worker's process has ended."""
        self._lost(number, hint)

    def _replace(self, hint: int) -> None:
        loss = restart_policy.Loss(
            name="worker",
            reason="died",
            living=self.expected,
            failures=self.restarts,
        )
        policy = self._scenario.policy
        match restart_policy.decide(loss, policy, self.restarts):
            case restart_policy.Restart(after_s):
                self.restarts += 1
                self._wait(after_s, "worker", hint)
            case restart_policy.Shrink(workers):
                self.commands.append(("expect", workers))
            case restart_policy.Abort():
                self.is_aborted = True

    # ------------------------------------------------------------------- clock

    def _wait(self, seconds: float, task: Task, hint: int = -1) -> None:
        self._made += 1
        heapq.heappush(self.timers, Timer(self.now + seconds, self._made, task, hint))

    def tick(self) -> Timer:
        """Moves the clock to what is due next."""
        timer = heapq.heappop(self.timers)
        self.now = max(self.now, timer.due)
        if timer.task == "finish":
            self._finish()
        return timer
