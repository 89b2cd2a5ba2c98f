"""The order of events, decided by one server and followed by the other shards.

Each shard handles the same events in the same order. Events that some shards still
lack are kept here, and on the standby as well, so that the server that leads can send
them to a shard or its standby. A push gets its place in the log when all its parts
have arrived: if a server died with one of them, a committed sample would be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from shoal.engine.transport.messages.events import Event
from shoal.engine.transport.messages.events import Flush as Flush


class LogEntry(NamedTuple):
    """An event with its place in the order.

    Args:
        number: Number of events up to this one.
        event: The event.
        at: Seconds of the run.
    """

    number: int
    event: Event
    at: float


@final
@dataclass
class EventLog:
    """The ordered events.

    Args:
        shards: Numbers of the shards that follow; none if one server has all parts.
        number: Number of the last entry.

    Example:
        >>> event_log = EventLog(shards=(1,))
        >>> event_log.add(Flush(), at=0.5).number
        1
        >>> [entry.number for entry in event_log.after(0)]
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
            event: The event.
            at: Seconds of the run.
        """
        self.number += 1
        entry = LogEntry(self.number, event, at)
        if self.shards:
            self._kept.append(entry)
        return entry

    def after(self, number: int) -> Iterator[LogEntry]:
        """Returns the kept entries after a number."""
        return (entry for entry in self._kept if entry.number > number)

    def took(self, shard: int, number: int) -> bool:
        """Records that a shard, and its standby, have entries up to a number.

        Returns:
            Whether some entries were dropped.

        Raises:
            ValueError: The number is impossible.
        """
        if not self._known.get(shard, 0) <= number <= self.number:
            raise ValueError(f"entry {number} of {self.number}")
        before = len(self._kept)
        self._known[shard] = number
        self.forget(min(self._known.get(other, 0) for other in self.shards))
        return len(self._kept) < before

    @property
    def oldest(self) -> int:
        """Number before the first entry that is kept."""
        return self._kept[0].number - 1 if self._kept else self.number

    def forget(self, number: int) -> None:
        """Drops entries up to a number, which all shards have."""
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()

    def freeze(self) -> dict[str, Any]:
        """Returns the state for another server."""
        return {"number": self.number, "kept": list(self._kept)}

    def thaw(self, frozen: dict[str, Any]) -> None:
        """The inverse of `freeze`."""
        self.number = frozen["number"]
        self._kept = deque(LogEntry(*entry) for entry in frozen["kept"])
