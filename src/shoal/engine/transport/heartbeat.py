"""Timeouts of a silent server, and of the start of a process.

A hung server sends nothing, but its connection stays open. So the controller pings it
regularly. This file decides how long the answer, and the start of a process, may take;
both from measurements. `Heartbeat` and `start_limit_s` are pure, `hear` applies them.
How long a worker may be silent is decided in `coordination/timeouts.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from shoal.engine.coordination.timeouts import PAUSE_S, TIMES
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.controller_to_server import Ping
from shoal.engine.transport.messages.server_to_controller import (
    Pong,
    read_report,
)
from shoal.errors import ExchangeTimeout
from shoal.wire.frames import Link

FLOOR_S = 5.0  # a server that is given up costs a restart of every worker
STANDBY_FLOOR_S = 1.5  # a standby takes over, which costs little
PING_S = 1.0  # from an answer to the next ping
START_TIMES = 4.0  # factor on the longest start so far
SLOWEST = 5e8  # bytes per second that any server handles


class ServerSilent(ConnectionError):
    """The server has not answered for longer than its limit."""


@final
@dataclass
class Heartbeat:
    """A server's measured pace.

    Args:
        startup_s: Seconds from its start to the end of the handshake.
        work_s: Seconds for work in one piece that was not measured yet: arithmetic on
            the vectors of all workers.
        longest_s: The longest time it took to answer.
        asked: Time of the ping that it has not answered, in seconds of a monotonic
            clock; None without one.
        answered: Time of its last answer.
        looked: Time of the last look.
        has_standby: A standby is there to take over.
    """

    startup_s: float = 0.0
    work_s: float = 0.0
    longest_s: float = 0.0
    asked: float | None = None
    answered: float = 0.0
    looked: float = 0.0
    has_standby: bool = False

    @classmethod
    def of(
        cls, now: float, startup_s: float, slot_bytes: int, workers: int
    ) -> Heartbeat:
        """Returns the heartbeat of a server whose handshake has just ended.

        Args:
            now: Seconds of a monotonic clock.
            startup_s: Seconds from its start until then.
            slot_bytes: Bytes that it exchanges with one worker.
            workers: Number of workers.
        """
        work_s = slot_bytes * (workers + 1) / SLOWEST
        return cls(startup_s=startup_s, work_s=work_s, looked=now)

    @property
    def limit_s(self) -> float:
        """Seconds an answer may take.

        Example:
            >>> Heartbeat(startup_s=1.0, longest_s=0.5).limit_s
            8.0
            >>> Heartbeat(startup_s=1.0, longest_s=0.5, has_standby=True).limit_s
            3.5
        """
        floor_s = FLOOR_S + self.startup_s
        if self.has_standby:
            floor_s = STANDBY_FLOOR_S
        return floor_s + self.work_s + TIMES * self.longest_s

    def look(self, now: float) -> bool:
        """Returns whether to ping it now.

        The controller may have been busy, or stopped, and the server with it: silence
        in that time does not count.
        """
        pause_s, self.looked = now - self.looked, now
        if self.asked is not None:
            self.asked += pause_s if pause_s > PAUSE_S else 0.0
            return False
        return now - self.answered >= PING_S

    def ask(self, now: float) -> None:
        """Records a ping."""
        self.asked = now

    def answer(self, now: float) -> None:
        """Records an answer."""
        if self.asked is not None:
            self.longest_s = max(self.longest_s, now - self.asked)
        self.asked, self.answered = None, now

    def is_over(self, now: float) -> bool:
        """Whether it has not answered for too long."""
        return self.asked is not None and now - self.asked > self.limit_s


def start_limit_s(longest_s: float, *, is_warm: bool = False) -> float:
    """Seconds a process may take to start, from the longest start that was measured.

    Args:
        longest_s: The longest measured start, 0 for none.
        is_warm: It is a waiting process, with all imports done.

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
    """Returns one message of the server, None if none comes in time.

    It sends pings and records the answers. A server counts as silent only after all of
    its bytes were read.

    Args:
        link: Connection to the server.
        heartbeat: Its pings and answers so far.
        heard: Number of the last report that was received, which each ping repeats.
        timeout_s: Limit of the wait for a message.
        clock: Seconds of a monotonic clock.

    Raises:
        BadFrame: No server of this version reports this.
        ServerSilent: The server hangs.
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
