"""Events of a run while it is written: each is read once, and nothing is read twice.

This file decides what counts as new: whole lines behind the last position, and the rest
of a segment once a later one exists.
"""

from __future__ import annotations

from typing import final

from shoal.runs.events import (
    Event,
    decode_segment,
    read_segment,
    segment_list,
)
from shoal.runs.folder import Folder

MOST_BYTES = 4 << 20
"""Bytes that one poll reads at most, unless one line is longer."""


@final
class Follow:
    r"""Follows the events of one run, from a position.

    Args:
        folder: The run folder. It may be empty, or not exist yet.
        most_bytes: Bytes that one poll reads at most, unless one line is longer.

    Attributes:
        segment: Number of the last segment that was read, -1 for none.
        offset: Bytes of it that were read.
        is_removed: Whether the run had events, and has none any more.

    Example:
        >>> folder = Folder.at("memory://doctest-follow")
        >>> follow = Follow(folder)
        >>> follow.poll()
        []
        >>> folder.write("events/000000.jsonl", b'{"kind":"note"}\n{"kind":')
        >>> follow.poll()
        [{'kind': 'note'}]
        >>> follow.poll(), follow.segment, follow.offset
        ([], 0, 16)
    """

    def __init__(self, folder: Folder, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = folder, most_bytes
        self.segment, self.offset = -1, 0
        self.is_removed = False

    def poll(self) -> list[Event]:
        """Returns events since the last call, oldest first.

        An empty list means that there are no more at the moment; a list with events
        need not be complete, as one call reads a limited number of bytes. A line
        without its end waits for the next call.

        Raises:
            DataError: The run is damaged. The next call continues behind the damage.
        """
        numbers = segment_list(self._folder)
        self.is_removed = not numbers and self.segment >= 0
        for place, number in enumerate(numbers):
            if number < self.segment:
                continue
            if number > self.segment:
                self.segment, self.offset = number, 0
            # A segment with a successor does not grow any more: its rest is a line.
            is_sealed = place + 1 < len(numbers)
            while content := self._next(number, is_sealed=is_sealed):
                events = list(decode_segment(self._folder, number, content))
                if events:
                    return events
        return []

    def _next(self, number: int, *, is_sealed: bool) -> bytes:
        """Reads whole lines of a segment; none when there are no more."""
        most = self._most
        while True:
            content = read_segment(self._folder, number, self.offset, most)
            is_all = len(content) < most
            whole = content[: content.rfind(b"\n") + 1]
            if is_all and is_sealed:
                whole = content
            if whole or is_all:
                self.offset += len(whole)
                return whole
            most *= 2  # a line that is longer than the limit
