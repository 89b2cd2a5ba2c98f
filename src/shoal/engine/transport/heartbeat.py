"""Whether the server still lives, and whether a worker will ever start.

A server that hangs says nothing: its connection stays open. So the controller asks it
for a sign of life now and then. This file decides how long the answer, and the start of
a process, may take; both from what was measured. `Heartbeat` and `start_limit_s` are
pure, `hear` does what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from shoal.engine.coordination.timeouts import PAUSE_S, TIMES
from shoal.engine.transport.messages.controller_to_server import Ping
from shoal.engine.transport.messages.server_to_controller import (
    Pong,
    Report,
    read_report,
)
from shoal.errors import ExchangeTimeout
from shoal.wire.frames import Link

FLOOR_S = 5.0  # what follows costs every worker its start
RELIEVED_FLOOR_S = 1.5  # what follows costs next to nothing: a standby takes over
PING_S = 1.0  # between an answer and the next question
START_TIMES = 4.0  # longest starts that are still believed
SLOWEST = 5e8  # bytes a second that any server gets through


class ServerSilent(ConnectionError):
    """The server has answered nothing for longer than it may."""


@final
@dataclass
class Heartbeat:
    """What is known of a server's pace.

    Args:
        startup_s: From its start until it greeted.
        work_s: For what it may have to do in one go and has not shown yet: arithmetic
            on the vectors of all workers.
        longest_s: The longest it ever took to answer.
        asked: When it was asked what it has not answered yet, in seconds of a monotonic
            clock; None when nothing is open.
        answered: When it last answered.
        looked: When somebody last looked.
        is_relieved: A standby is there to take over.
    """

    startup_s: float = 0.0
    work_s: float = 0.0
    longest_s: float = 0.0
    asked: float | None = None
    answered: float = 0.0
    looked: float = 0.0
    is_relieved: bool = False

    @classmethod
    def of(
        cls, now: float, startup_s: float, slot_bytes: int, workers: int
    ) -> Heartbeat:
        """Of a server that has just greeted.

        Args:
            now: Seconds of a monotonic clock.
            startup_s: From its start until then.
            slot_bytes: Of what it exchanges with one worker.
            workers: How many there are.
        """
        work_s = slot_bytes * (workers + 1) / SLOWEST
        return cls(startup_s=startup_s, work_s=work_s, looked=now)

    @property
    def limit_s(self) -> float:
        """Seconds an answer may take.

        Example:
            >>> Heartbeat(startup_s=1.0, longest_s=0.5).limit_s
            8.0
            >>> Heartbeat(startup_s=1.0, longest_s=0.5, is_relieved=True).limit_s
            3.5
        """
        floor_s = FLOOR_S + self.startup_s
        if self.is_relieved:
            floor_s = RELIEVED_FLOOR_S
        return floor_s + self.work_s + TIMES * self.longest_s

    def look(self, now: float) -> bool:
        """Tells whether it should be asked now.

        Whoever looks may have been busy, or stopped, and the server with it: what was
        not heard meanwhile is not held against the server.
        """
        pause_s, self.looked = now - self.looked, now
        if self.asked is not None:
            self.asked += pause_s if pause_s > PAUSE_S else 0.0
            return False
        return now - self.answered >= PING_S

    def ask(self, now: float) -> None:
        """It is asked."""
        self.asked = now

    def answer(self, now: float) -> None:
        """It has answered."""
        if self.asked is not None:
            self.longest_s = max(self.longest_s, now - self.asked)
        self.asked, self.answered = None, now

    def is_over(self, now: float) -> bool:
        """Whether it has not answered for too long."""
        return self.asked is not None and now - self.asked > self.limit_s


def start_limit_s(longest_s: float, *, is_warm: bool = False) -> float:
    """Seconds a process may take to start, from the longest start that was measured.

    Args:
        longest_s: The longest, 0 for none.
        is_warm: It has waited for its part, with all it needs imported.

    Example:
        >>> start_limit_s(2.0), start_limit_s(2.0, is_warm=True), start_limit_s(0.0)
        (13.0, 7.0, inf)
    """
    times = 1.0 if is_warm else START_TIMES
    return FLOOR_S + times * longest_s if longest_s else float("inf")


def hear(
    link: Link,
    heartbeat: Heartbeat,
    heard: int,
    timeout_s: float,
    clock: Callable[[], float],
) -> tuple[Report, memoryview] | None:
    """One message of the server, None when none comes in time.

    Signs of life are asked for and kept here. Only a server of which nothing is left
    to be read counts as silent.

    Raises:
        BadFrame: It is not what a server of ours reports.
        ServerSilent: It hangs.
        OSError: The connection is lost.
    """
    now = clock()
    if heartbeat.look(now):
        link.send(Ping(heard=heard).pack())
        heartbeat.ask(now)
    if link.has_input(timeout_s):
        try:
            head, body = link.receive(
                timeout_s=heartbeat.limit_s, stall_s=heartbeat.limit_s
            )
        except (ExchangeTimeout, TimeoutError):  # it stopped within a frame
            raise _silent(heartbeat) from None
        report = read_report(head)
        if not isinstance(report, Pong):
            return report, body
        heartbeat.answer(clock())
    elif heartbeat.is_over(clock()):
        raise _silent(heartbeat)
    return None


def _silent(heartbeat: Heartbeat) -> ServerSilent:
    return ServerSilent(
        f"hung: it answered nothing for more than {heartbeat.limit_s:.1f} s"
    )
