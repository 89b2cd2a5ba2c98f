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
"""Number of batches after which the first message comes at once."""


@final
class Unended:
    """Reports the progress of reading.

    Args:
        packing: Settings of the data, for messages.
        name: Name of the part that is read, "" for all of it.
    """

    def __init__(self, packing: Packing, name: str = "") -> None:
        self._packing, self._name = packing, name
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
        say(
            f"{self._name}the {self._packing.kind} is read to its end, as {steps} is "
            f"not given: it has given {self._batches:,} batches{size} in "
            f"{now - self._began:,.0f} s and has not ended. "
            f"If it has no end, stop this and pass {steps}.",
            err=True,
        )

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Passes batches on, and counts them."""
        for batch in batches:
            yield batch
            self.note()
