"""Output of the workers of a run: all of it, new lines, or the last lines.

A log may have lines of any length, or may not be a text file: it is
read in pieces, so that little of it is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import final

from shoal.errors import DataError
from shoal.runs.events import damaged
from shoal.runs.folder import Folder
from shoal.runs.store import LOGS
from shoal.terminal import LONGEST_BYTES, LinePiece, Lines

_LOG = re.compile(r"worker-([0-9]{1,9})\.log")


def log_name(rank: int) -> str:
    """Returns the path of a worker's log within the run's folder.

    Example:
        >>> log_name(3)
        'experiments/worker-3.log'
    """
    return f"{LOGS}/worker-{rank}.log"


def ranks_with_logs(folder: Folder) -> list[int]:
    """Returns the ranks that have a log, in order.

    Raises:
        DataError: Logs cannot be listed.
    """
    try:
        found = (_LOG.fullmatch(name) for name in folder.names(LOGS))
        return sorted(int(match[1]) for match in found if match)
    except OSError as error:
        raise damaged(folder, f"its logs cannot be listed: {error}") from error


def last_lines(folder: Folder, rank: int, count: int) -> list[str]:
    """Returns the last lines of a worker's output, empty without any.

    If a line is longer than 64 KiB, only its end is returned, without lines before it.
    """
    try:
        if count == 0 or rank not in ranks_with_logs(folder):
            return []
        content = _end_of(folder, log_name(rank), count)
    except (OSError, DataError) as error:
        return [f"({error})"]
    lines = Lines(2 * len(content) + 1)
    found = [*lines.feed(content), *lines.end()]
    return [piece.text for piece in found[-count:]]


def _end_of(folder: Folder, name: str, count: int) -> bytes:
    """Returns the last lines of a file, read backwards from its end."""
    at = folder.size(name)
    parts: list[bytes] = []
    ends = held = 0
    # One more: the line after that line end is complete.
    while at > 0 and ends <= count and held < LONGEST_BYTES:
        start = max(0, at - LONGEST_BYTES)
        part = folder.read(name, start, at - start)
        found = part.count(b"\n")
        held = held + len(part) if not found else part.find(b"\n")
        parts.append(part)
        ends, at = ends + found, start
    content = b"".join(reversed(parts))
    begin = content.find(b"\n") + 1 if at > 0 and held < LONGEST_BYTES else 0
    return content[begin:]


@final
class LogReader:
    """Reads logs as they grow, each from its last position.

    Args:
        folder: The run folder.
        rank: Rank of one worker, which may not have begun yet; None: all workers.
    """

    def __init__(self, folder: Folder, rank: int | None = None) -> None:
        self._folder, self._rank = folder, rank
        self._offsets: dict[int, int] = {}
        self._lines: dict[int, Lines] = {}

    @property
    def is_silent(self) -> bool:
        """Whether there has been nothing to read so far."""
        return not any(self._offsets.values())

    def new(self, *, is_last: bool = False) -> Iterator[tuple[int, LinePiece]]:
        """Reads new lines; a line that is being written waits for its end.

        Args:
            is_last: Whether no process writes any more: the rest is a line too.

        Yields:
            The rank, and a line or a piece of a long one.

        Raises:
            DataError: A log cannot be read.
        """
        for rank in ranks_with_logs(self._folder):
            if self._rank in (None, rank):
                lines = self._lines.setdefault(rank, Lines())
                while data := self._read(rank):
                    for piece in lines.feed(data):
                        yield rank, piece
                for piece in lines.end() if is_last else ():
                    yield rank, piece

    def _read(self, rank: int) -> bytes:
        start = self._offsets.get(rank, 0)
        try:
            data = self._folder.read(log_name(rank), start, LONGEST_BYTES)
        except OSError as error:
            raise damaged(self._folder, f"a log cannot be read: {error}") from error
        self._offsets[rank] = start + len(data)
        return data
