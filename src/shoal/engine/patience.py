"""How long a worker may be silent before it counts as hung. Pure.

This file decides it from what was measured of the worker itself: a model whose
step takes a minute is given minutes, one that steps in milliseconds is not.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOOR_S = 3.0  # for what no step has shown yet: a slow disk, a busy machine
STARTUP_TIMES = 2.0  # how much longer another program may take to compile
TIMES = 4.0  # longest silences that are still believed
PAUSE_S = 1.0  # the server itself did not run for so long: nobody is to blame


@dataclass
class Patience:
    """What is known of one worker's pace.

    Args:
        startup_s: From joining until it had compiled, 0 before.
        longest_s: The longest it ever took to say something after an answer.
        since: When it was answered and so has to say something next, in seconds of a
            monotonic clock; None while it waits for an answer.
        is_compiling: It has said that a batch of another size has to be compiled.
        more_s: For which it may wait for other workers without a word.
        busy_s: Seconds that it has been busy, and said so.
    """

    startup_s: float = 0.0
    longest_s: float = 0.0
    since: float | None = None
    is_compiling: bool = False
    more_s: float = 0.0
    busy_s: float = 0.0

    def answered(self, now: float) -> None:
        """It has been answered: the next word is the worker's."""
        self.since = now

    def moves(self, now: float) -> None:
        """Bytes go to it or come from it: it is not silent until they have arrived."""
        if self.since is not None:
            self.since = now

    def waits(self) -> None:
        """It has said again what it waits for an answer to."""
        self.since = None

    def heard(
        self,
        now: float,
        *,
        is_ready: bool = False,
        is_reading: bool = False,
        is_busy: bool = False,
    ) -> None:
        """It has said something, and waits for an answer.

        Args:
            now: Seconds of the clock.
            is_ready: It said that it has compiled.
            is_reading: It said, as it does every second then, that it waits for data,
                which is no pace of its own.
            is_busy: It said the same of steps of a kind that it takes for the first
                time. When they are taken it is known how long that is.
        """
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
        """It will be silent for longer than it ever was, and says so."""
        self.is_compiling = True

    @property
    def limit_s(self) -> float:
        """Seconds it may be silent; for ever until it has compiled once.

        Example:
            >>> Patience(startup_s=2.0, longest_s=0.5).limit_s
            5.0
            >>> Patience(startup_s=2.0, longest_s=0.5, is_compiling=True).limit_s
            9.0
        """
        if not self.startup_s:
            return float("inf")
        more = STARTUP_TIMES * self.startup_s if self.is_compiling else 0.0
        return FLOOR_S + self.more_s + more + TIMES * self.longest_s

    def is_over(self, now: float) -> bool:
        """Whether it has been silent for too long."""
        return self.since is not None and now - self.since > self.limit_s

    def forgive(self, pause_s: float) -> None:
        """The server was not there to hear it."""
        if self.since is not None:
            self.since += pause_s
