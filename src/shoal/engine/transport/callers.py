"""Callers that have not proved the secret of the run yet.

They wait in their own selector, which gets a small share of the server's time: a flood
of them slows itself down, not the workers. When the share is used up, they wait in
their sockets.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator
from typing import final

from shoal.engine.transport.messages.server_to_controller import CallerRejected

EVERY_S = 10.0  # so that a flood does not fill the disk


@final
class RejectedCallers:
    """Counts rejected callers between two reports; the first is reported at once."""

    def __init__(self) -> None:
        self._count, self._last = 0, ("", "")
        self._next = 0.0

    def note(self, name: str, reason: str) -> None:
        """Counts a rejected caller."""
        self._count, self._last = self._count + 1, (name, reason)

    def take(self, now: float) -> CallerRejected | None:
        """Returns the report that is due, None for none.

        Args:
            now: Seconds of a monotonic clock.

        Example:
            >>> rejected = RejectedCallers()
            >>> rejected.note("10.0.0.9", "no proof of the secret in time")
            >>> rejected.take(100.0).count
            1
            >>> rejected.note("10.0.0.9", "no proof of the secret in time")
            >>> rejected.take(101.0) is None
            True
        """
        if not self._count or now < self._next:
            return None
        count, self._count = self._count, 0
        self._next = now + EVERY_S
        peer, reason = self._last
        return CallerRejected(peer=peer, reason=reason, count=count)


SHARE = 0.05  # part of the server's time
SLICE_S = 0.001  # limit before workers have their turn
SAVED_S = 0.2
"""Most time that is saved while no caller comes: a hundred workers may join at once."""


@final
class UnverifiedCallers:
    """The selector of unverified callers, open or closed.

    Args:
        main: The selector that wakes the server when a caller sends.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self, main: selectors.BaseSelector, clock: Callable[[], float]
    ) -> None:
        self._main, self._clock = main, clock
        self.selector = selectors.DefaultSelector()
        self._left_s, self._looked = SAVED_S, clock()
        self._is_open, self._turn = False, 0
        self._open()

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._main.register(self.selector, selectors.EVENT_READ, None)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._main.unregister(self.selector)

    def _count(self) -> float:
        """Seconds that are left for callers now."""
        now = self._clock()
        earned_s, self._looked = SHARE * (now - self._looked), now
        self._left_s = min(SAVED_S, self._left_s + earned_s)
        return self._left_s

    def wait_s(self, timeout_s: float) -> float:
        """How long the server may wait for others before callers have their turn."""
        left_s = self._count()
        if left_s > 0:
            self._open()
            return timeout_s
        return min(timeout_s, -left_s / SHARE)

    def take_turn(self) -> Iterator[tuple[selectors.SelectorKey, int]]:
        """Yields callers with input while there is time, and counts the time."""
        if not self._is_open:
            return
        found = self.selector.select(0)
        self._turn += 1  # another caller is first each time
        first = self._turn % max(1, len(found))
        began, spent_s = self._clock(), 0.0
        for caller in found[first:] + found[:first]:
            yield caller
            spent_s = self._clock() - began
            if spent_s > SLICE_S:
                break
        # One caller may take more than a slice; `wait_s` makes all wait the longer.
        self._left_s -= spent_s
        if self._left_s <= 0:
            self._close()

    def close(self) -> None:
        """Closes it for good."""
        self._close()
        self.selector.close()
