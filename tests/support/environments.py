"""Environments whose clock a test sets."""

from __future__ import annotations

from typing import final

from shoal.engine.environment import SystemEnvironment


@final
class SettableClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@final
class SettableTime(SystemEnvironment):
    """The machine's environment, but for its clock.

    Args:
        clock: Clock of the environment.
    """

    def __init__(self, clock: SettableClock) -> None:
        self._settable = clock

    def clock(self) -> float:
        return self._settable()
