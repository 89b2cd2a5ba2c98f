"""Data that is read to its end to find its length: the user sees the progress.

Such data may have no end, which cannot be known. So the amount read so far is shown,
and the argument to pass for data without an end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, final

from shoal.data.batches import Packing
from shoal.terminal import say

TOLD_S = 10.0
"""Seconds between two progress messages."""
TOLD_BYTES = 256 << 20
"""Bytes after which the first message comes at once."""


@final
class Unended:
    """Reports the progress of reading.

    Args:
        packing: Settings of the data, for messages.
        name: Name of the part that is read, "" for all of it.
        most_bytes: Bytes at which reading stops; 0 if it does not.
    """

    def __init__(self, packing: Packing, name: str = "", most_bytes: float = 0) -> None:
        self._packing, self._name, self._most = packing, name, most_bytes
        self._batches = self._bytes = 0
        self._began = self._told = time.monotonic()
        self._has_told = False

    def note(self, size_bytes: int = 0) -> None:
        """Notes that a batch was read.

        Args:
            size_bytes: Bytes of it that are kept; 0 for none.
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
        stop = f" Reading stops at {self._most / 1e9:,.1f} GB." if self._most else ""
        say(
            f"{self._name}the {self._packing.kind} is read to its end, as {steps} is "
            f"not given: it has given {self._batches:,} batches{size} in "
            f"{now - self._began:,.0f} s and has not ended. "
            f"If it has no end, press Ctrl-C and pass {steps}=N, the number of "
            f"batches to take.{stop}",
            err=True,
        )

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Passes batches on, and counts them."""
        for batch in batches:
            yield batch
            self.note()
