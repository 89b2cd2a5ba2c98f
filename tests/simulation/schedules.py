"""What the schedules of simulated runs share: the loop, faults, the log.

What can happen next, and what breaks, each simulation decides for itself, from a seed;
see `tests.simulation.protocol` and `tests.simulation.failover`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Self, TypeAlias, TypeVar

from tests.simulation.scenario import Scenario
from tests.simulation.violation import Violation

MOST_EVENTS = 20_000

Event: TypeAlias = Callable[[], None]


S = TypeVar("S", bound=Scenario)


class Schedule(ABC, Generic[S]):
    """One simulated run.

    A kind of trouble is a method of the subclass: `_kill` for "kill". It says whether
    there was something to break.

    Args:
        scenario: Parameters of the run, and how often each kind of trouble may come.
        chance: Chance of trouble at an event, while there is some left.

    Attributes:
        tally: Number of events of each kind.
        log: Every event, in order.
    """

    def __init__(self, scenario: S, chance: float) -> None:
        self.scenario = scenario
        self.random = random.Random(scenario.seed)
        self.tally: Counter[str] = Counter()
        self.log: list[tuple[object, ...]] = []
        self.left = Counter(scenario.trouble)
        self._chance = chance

    def run(self) -> Self:
        """Runs to the end.

        Raises:
            Violation: A promise was broken, or the run did not end.
        """
        try:
            with self._setting():
                for _ in range(MOST_EVENTS):
                    if not self.step():
                        self._look_at_end()
                        return self
            raise Violation("every run ends")
        except Violation as violation:
            violation.add_note(self.story())
            raise
        except Exception as error:
            violation = Violation(f"the engine raises nothing: {error!r}")
            violation.add_note(self.story())
            raise violation from error

    def step(self) -> bool:
        """Lets one event happen; returns False when the run is over."""
        events = self._events(is_slow=True)
        if not events:
            events = self._if_only_slow(self._events(is_slow=False))
        if not self._goes_on(events):
            return False
        self.tally["events"] += 1
        self._turn(events)
        self._after_turn()
        return True

    @abstractmethod
    def _events(self, *, is_slow: bool) -> list[Event]:
        """Events that can happen next.

        Args:
            is_slow: Slow workers are mostly passed over.
        """

    def _if_only_slow(self, events: list[Event]) -> list[Event]:
        """Events that can happen when only slow workers have anything to do."""
        return events

    def _goes_on(self, events: list[Event]) -> bool:
        """Whether the run is not over yet."""
        return bool(events)

    def _turn(self, events: list[Event]) -> None:
        """Causes a fault, or lets one event happen."""
        if not self._make_trouble():
            self.random.choice(events)()

    def _after_turn(self) -> None:
        """Checks the state after an event."""

    @abstractmethod
    def _look_at_end(self) -> None:
        """Checks the state after the run."""

    def _setting(self) -> AbstractContextManager[None]:
        """Context in which the run takes place."""
        return nullcontext()

    def _make_trouble(self) -> bool:
        """Causes a fault, if one is due and possible."""
        if self.random.random() >= self._chance:
            return False
        kinds = [kind for kind, count in self.left.items() if count]
        if not kinds:
            return False
        kind = self.random.choice(kinds)
        done = getattr(self, f"_{kind}")()
        if done:
            self._log("trouble", kind)
            self.left[kind] -= 1
            self.tally[kind] += 1
        return done

    def _part(self, whole: int) -> int:
        """How many of the messages on their way still arrive."""
        return self.random.randint(0, whole)

    def _log(self, *what: object) -> None:
        self.log.append(what)

    def story(self, lines: int = 40) -> str:
        """The scenario and the last events, one a line."""
        events = [" ".join(map(str, entry)) for entry in self.log[-lines:]]
        return "\n".join([str(self.scenario), *events])
