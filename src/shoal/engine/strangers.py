"""What is told of callers that were turned away: a line now and then, with a count."""

from __future__ import annotations

from typing import final

from shoal.engine.wire import Head

EVERY_S = 10.0  # a flood fills no disk


@final
class Strangers:
    """Counts callers between two lines; the first of them is told of at once."""

    def __init__(self) -> None:
        self._count, self._last = 0, ("", "")
        self._next = 0.0

    def note(self, name: str, reason: str) -> None:
        """One was turned away."""
        self._count, self._last = self._count + 1, (name, reason)

    def take(self, now: float) -> Head | None:
        """The line that is due, None for none.

        Args:
            now: Seconds of a monotonic clock.

        Example:
            >>> strangers = Strangers()
            >>> strangers.note("10.0.0.9", "no proof of the secret in time")
            >>> strangers.take(100.0)["count"]
            1
            >>> strangers.note("10.0.0.9", "no proof of the secret in time")
            >>> strangers.take(101.0) is None
            True
        """
        if not self._count or now < self._next:
            return None
        count, self._count = self._count, 0
        self._next = now + EVERY_S
        peer, reason = self._last
        return {"kind": "stranger", "peer": peer, "reason": reason, "count": count}
