"""Where strangers wait: a selector inside the server's own, and a share of its time.

A flood of callers that know no secret may slow itself down, not the workers. What it
costs to hear strangers is measured by the clock on the wall, as that is what workers
wait for; when they have used up their share, the porch is closed for a moment and they
wait in their sockets.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from typing import final

SHARE = 0.05  # of the server's time
SLICE_S = 0.001  # before workers are heard again
SAVED_S = 0.2  # what is put by while nobody calls: a hundred workers that join at once


@final
class Porch:
    """The strangers' selector, open or closed.

    Args:
        house: The selector that wakes the server when a stranger speaks.
    """

    def __init__(self, house: selectors.BaseSelector) -> None:
        self._house = house
        self.selector = selectors.DefaultSelector()
        self._left_s, self._looked = SAVED_S, time.monotonic()
        self._is_open, self._turn = False, 0
        self._open()

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._house.register(self.selector, selectors.EVENT_READ, None)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._house.unregister(self.selector)

    def _count(self) -> float:
        """Seconds that are left for strangers now."""
        now = time.monotonic()
        earned_s, self._looked = SHARE * (now - self._looked), now
        self._left_s = min(SAVED_S, self._left_s + earned_s)
        return self._left_s

    def wait_s(self, timeout_s: float) -> float:
        """How long the server may wait for others before the porch opens again."""
        left_s = self._count()
        if left_s > 0:
            self._open()
            return timeout_s
        return min(timeout_s, -left_s / SHARE)

    def visit(self) -> Iterator[tuple[selectors.SelectorKey, int]]:
        """Whoever has something to say, while there is time; it is counted."""
        if not self._is_open:
            return
        found = self.selector.select(0)
        self._turn += 1  # somebody else is first each time
        first = self._turn % max(1, len(found))
        began, spent_s = time.monotonic(), 0.0
        for visitor in found[first:] + found[:first]:
            yield visitor
            spent_s = time.monotonic() - began
            if spent_s > SLICE_S:
                break
        self._left_s -= spent_s
        if self._left_s <= 0:
            self._close()

    def close(self) -> None:
        """Closes it for good."""
        self._close()
        self.selector.close()
