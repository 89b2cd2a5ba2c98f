"""In which order things happened at the server that decides it, for the other shards.

Each shard carries the same events out in the same order. What not all of them have yet
is kept here, and on the standby as well: whichever server leads can tell a shard, or
its standby, what it lacks. A message is entered when all parts of it have arrived, so
that nothing is committed of which a part might be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from shoal.engine.transport.messages.events import Event
from shoal.engine.transport.messages.events import Flush as Flush


class LogEntry(NamedTuple):
    """An event, in its place among all.

    Args:
        number: How many there were until then.
        event: What happened.
        at: Seconds of the run.
    """

    number: int
    event: Event
    at: float


@final
@dataclass
class EventLog:
    """What was ordered.

    Args:
        shards: That hear of it, by number; none where one server has all.
        number: Of the last order.

    Example:
        >>> event_log = EventLog(shards=(1,))
        >>> event_log.add(Flush(), at=0.5).number
        1
        >>> [order.number for order in event_log.after(0)]
        [1]
        >>> event_log.took(1, 1), list(event_log.after(0))
        (True, [])
    """

    shards: tuple[int, ...] = ()
    number: int = 0
    _kept: deque[LogEntry] = field(default_factory=deque[LogEntry])
    _known: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, event: Event, at: float) -> LogEntry:
        """Enters an event.

        Args:
            event: What happens.
            at: Seconds of the run.
        """
        self.number += 1
        order = LogEntry(self.number, event, at)
        if self.shards:
            self._kept.append(order)
        return order

    def after(self, number: int) -> Iterator[LogEntry]:
        """Orders that are kept, after this one."""
        return (order for order in self._kept if order.number > number)

    def took(self, shard: int, number: int) -> bool:
        """A shard, and its standby if it has one, knows orders up to this number.

        Returns:
            Whether some need not be kept any more.

        Raises:
            ValueError: It cannot.
        """
        if not self._known.get(shard, 0) <= number <= self.number:
            raise ValueError(f"order {number} of {self.number}")
        before = len(self._kept)
        self._known[shard] = number
        self.forget(min(self._known.get(other, 0) for other in self.shards))
        return len(self._kept) < before

    @property
    def oldest(self) -> int:
        """Number before the first order that is kept."""
        return self._kept[0].number - 1 if self._kept else self.number

    def forget(self, number: int) -> None:
        """All shards know orders up to this number."""
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()

    def freeze(self) -> dict[str, Any]:
        """Everything that another server would need."""
        return {"number": self.number, "kept": list(self._kept)}

    def thaw(self, frozen: dict[str, Any]) -> None:
        """The inverse of `freeze`."""
        self.number = frozen["number"]
        self._kept = deque(LogEntry(*order) for order in frozen["kept"])


@final
class Arrivals:
    """Which parts of whose messages have arrived at the other shards.

    Args:
        shards: By number.

    Example:
        >>> arrivals = Arrivals((1, 2))
        >>> arrivals.note(1, (0, 1), 7)
        >>> arrivals.has_all((0, 1), 7)
        False
        >>> arrivals.note(2, (0, 1), 7)
        >>> arrivals.has_all((0, 1), 7)
        True
    """

    def __init__(self, shards: tuple[int, ...] = ()) -> None:
        self._questions: dict[int, dict[tuple[int, int], int]] = {n: {} for n in shards}

    def note(self, shard: int, who: tuple[int, int], question: int) -> None:
        """A shard has its part of a message.

        Args:
            shard: By number.
            who: Rank and incarnation of the sender.
            question: Number of the message.
        """
        self._questions[shard][who] = question

    def has_all(self, who: tuple[int, int], question: int) -> bool:
        """Whether all shards have theirs."""
        found = self._questions.values()
        return all(known.get(who, 0) >= question for known in found)

    def forget(self, who: tuple[int, int]) -> None:
        """A worker is gone."""
        for known in self._questions.values():
            known.pop(who, None)
