"""Data that is read to its end to learn how long it is: the user is told meanwhile.

An end may never come, and nobody can know that. So what was read so far is said, and
what to pass where there is no end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, final

from shoal.data.batches import Packing
from shoal.terminal import say

TOLD_S = 10.0
"""Between two words of how far reading has come."""
TOLD_BYTES = 256 << 20
"""After so many the first word comes at once."""


@final
class Unended:
    """Says how far reading has come.

    Args:
        packing: Of the data, for messages.
        name: Of the part that is read, "" for all of it.
    """

    def __init__(self, packing: Packing, name: str = "") -> None:
        self._packing, self._name = packing, name
        self._batches = self._bytes = 0
        self._began = self._told = time.monotonic()
        self._has_told = False

    def note(self, size_bytes: int = 0) -> None:
        """A batch was read.

        Args:
            size_bytes: Of what is kept of it; 0 where nothing is.
        """
        self._batches += 1
        self._bytes += size_bytes
        now = time.monotonic()
        is_much = self._bytes > TOLD_BYTES and not self._has_told
        if not is_much and now - self._told <= TOLD_S:
            return
        self._told, self._has_told = now, True
        size = f" ({self._bytes / 1e9:,.1f} GB)" if self._bytes else ""
        steps = self._packing.steps_name
        say(
            f"{self._name}the {self._packing.kind} is read to its end, as {steps} is "
            f"not given: it has given {self._batches:,} batches{size} in "
            f"{now - self._began:,.0f} s and has not ended. "
            f"Where it has no end, stop this and pass {steps}.",
            err=True,
        )

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Gives batches on, of which nothing is kept."""
        for batch in batches:
            yield batch
            self.note()
