"""Timeouts of silent workers, and of rounds that have their quorum. Pure.

Both limits are measured: a worker whose step takes a minute is given minutes. A round
waits for stragglers by a token bucket: it absorbs single delays, and repeated ones
use it up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import final

from shoal.engine.coordination.rounds import RoundProgress

FLOOR_S = 3.0  # for delays not measured yet: a slow disk, a busy machine
STARTUP_TIMES = 2.0  # factor on the first compilation, for another one
TIMES = 4.0  # factor on the longest silence so far
PAUSE_S = 1.0  # a longer gap means that the server itself did not run


@dataclass
class LivenessTimeout:
    """A worker's measured pace.

    Args:
        startup_s: Seconds from joining until it had compiled, 0 before.
        longest_s: The longest time from an answer to its next message.
        since: Time of the last answer, after which its next message is due, in seconds
            of a monotonic clock; None while it waits for an answer.
        is_compiling: It has reported that it compiles for a batch of another size.
        more_s: Additional seconds in which it may wait for other workers in silence.
        busy_s: Seconds in which it has reported that it is busy.
        return_s: Seconds that it may take to find the server that leads now.
    """

    startup_s: float = 0.0
    longest_s: float = 0.0
    since: float | None = None
    is_compiling: bool = False
    more_s: float = 0.0
    busy_s: float = 0.0
    return_s: float = 0.0

    def answered(self, now: float) -> None:
        """It has been answered: its next message is due."""
        self.since, self.return_s = now, 0.0

    def returns(self, now: float, within_s: float) -> None:
        """Its server was lost: its return to the next one is due.

        Args:
            now: Seconds of the clock.
            within_s: Seconds that a call at an address without a server may take.
        """
        self.since, self.return_s = now, within_s

    def seeks(self, now: float, within_s: float) -> None:
        """A server that shares the vector is silent or lost, and it may wait for that.

        Args:
            now: Seconds of the clock.
            within_s: Seconds that a call at an address without a server may take.
        """
        if self.since is not None:
            self.returns(now, within_s)

    def moves(self, now: float) -> None:
        """Bytes go to it or come from it: it is not silent before they have arrived."""
        if self.since is not None:
            self.since = now

    def waits(self) -> None:
        """It has repeated the message that it waits for an answer to."""
        self.since = None

    def heard(
        self,
        now: float,
        *,
        is_ready: bool = False,
        is_reading: bool = False,
        is_busy: bool = False,
    ) -> None:
        """It has sent a message, and waits for an answer.

        Args:
            now: Seconds of the clock.
            is_ready: It reported that it has compiled.
            is_reading: It reported, as it does every second then, that it waits for
                data; this says nothing about its pace.
            is_busy: It reported the same about steps of a kind that it takes for the
                first time. Their duration is known when they are done.
        """
        self.return_s = 0.0
        if self.since is None:
            return
        silence, self.since = now - self.since, None
        if is_busy:
            self.busy_s += silence
            return
        if is_reading:
            return
        silence, self.busy_s = silence + self.busy_s, 0.0
        if is_ready:
            self.startup_s = silence
        elif self.startup_s and not self.is_compiling:
            self.longest_s = max(self.longest_s, silence)
        self.is_compiling = False

    def compiles(self) -> None:
        """It has reported that it will be silent for longer than ever."""
        self.is_compiling = True

    @property
    def limit_s(self) -> float:
        """Seconds that it may be silent; infinite until it has compiled once.

        Example:
            >>> LivenessTimeout(startup_s=2.0, longest_s=0.5).limit_s
            5.0
            >>> LivenessTimeout(startup_s=2.0, longest_s=0.5, is_compiling=True).limit_s
            9.0
        """
        if not self.startup_s:
            return float("inf")
        more = STARTUP_TIMES * self.startup_s if self.is_compiling else 0.0
        more += self.more_s + self.return_s
        return FLOOR_S + more + TIMES * self.longest_s

    def is_over(self, now: float) -> bool:
        """Whether it has been silent for too long."""
        return self.since is not None and now - self.since > self.limit_s

    def forgive(self, pause_s: float) -> None:
        """Shifts the clock by a time in which the server itself did not run."""
        if self.since is not None:
            self.since += pause_s


HICCUP_S = 0.25  # size of the bucket: a slow disk, garbage collection, a busy machine
LEAST_S = 0.01  # one turn of the machine's scheduler
REFILL = 0.1  # refill of the bucket, as part of the time that rounds take
ROUNDS = 8  # the last rounds, of which the longest counts


@final
@dataclass
class StragglerTimeout:
    """Timeout of the open round; times are seconds of a monotonic clock.

    A round may take twice as long as its quorum took, or as the longest of the last
    rounds: workers that are up to twice as slow as the others always come in time,
    and the short windows at the end of an epoch do not count against long ones. A
    worker that is five times slower costs the others one such wait for each of its
    windows, about a quarter of their time, where waiting for it would cost five times.

    In addition there is a token bucket of `HICCUP_S`, for rounds of milliseconds,
    many of which fit into one delay of the machine: waiting takes from it, and a tenth
    of the time that rounds take comes back. So a single delay makes no worker late, and
    a worker that is always slow soon gets no more than the double time and `LEAST_S`.

    Each time a round gave up the workers that it waited for and had no message at
    all, it waits twice as long for the next ones: in the end one is in time, however
    slow all of them have become.

    Args:
        round_progress: Progress of the round at the last look.
        began: Time when data was dealt, or when the round before closed.
        reached: Time when it had its quorum and its first message, None before.
        spare_s: Seconds in the bucket.
        lengths: Seconds that the last rounds took to their quorum.

    Example:
        >>> straggler_timeout = StragglerTimeout()
        >>> straggler_timeout.look(RoundProgress(dealt=1, awaited=(0, 1, 2)), now=100.0)
        >>> straggler_timeout.is_over(200.0)
        False
        >>> late = RoundProgress(dealt=1, pushes=2, awaited=(2,), is_quorate=True)
        >>> straggler_timeout.look(late, now=103.0)
        >>> straggler_timeout.due, straggler_timeout.left_s(now=105.0)
        (106.25, 1.25)
        >>> straggler_timeout.is_over(106.2), straggler_timeout.is_over(106.3)
        (False, True)
    """

    round_progress: RoundProgress = field(default_factory=RoundProgress)
    began: float = 0.0
    reached: float | None = None
    spare_s: float = HICCUP_S
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS))

    def look(self, round_progress: RoundProgress, now: float) -> None:
        """Takes note of the round's progress; called whenever that may have changed."""
        before = self.round_progress
        if round_progress.closed != before.closed:
            self._settle(now)
        self.round_progress = round_progress
        if round_progress[:2] != before[:2]:  # closed, dealt
            self.began, self.reached = now, None
        is_first = round_progress.pushes > 0 and before.pushes == 0
        if not round_progress.is_quorate:
            self.reached = None
        elif self.reached is None or is_first:
            self.reached = now

    def _settle(self, now: float) -> None:
        """Learns from a round that has closed."""
        took = (now if self.reached is None else self.reached) - self.began
        overrun = 0.0 if self.reached is None else max(0.0, now - self._end())
        left = self.spare_s - overrun + REFILL * took
        self.spare_s = min(HICCUP_S, max(0.0, left))
        self.lengths.append(took)

    def _end(self) -> float:
        """The time by which workers up to twice as slow as the others have come."""
        took = 0.0 if self.reached is None else self.reached - self.began
        double = 2.0 ** (1 + self.round_progress.fruitless)
        return self.began + double * max([took, *self.lengths])

    @property
    def due(self) -> float:
        """When the round is overdue; infinite without a quorum, or a measurement."""
        if self.reached is None or not (self.lengths or self.round_progress.pushes):
            return float("inf")
        return self._end() + max(self.spare_s, LEAST_S)

    def left_s(self, now: float) -> float:
        """Seconds until it is overdue, at least 0; infinite if it never is."""
        return max(0.0, self.due - now)

    def is_over(self, now: float) -> bool:
        """Whether the round is overdue."""
        return now > self.due

    def forgive(self, pause_s: float) -> None:
        """Shifts the clock by a time in which the server itself did not run."""
        self.began += pause_s
        if self.reached is not None:
            self.reached += pause_s
