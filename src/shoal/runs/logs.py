"""Output of the workers of a run: new lines, the last ones, pages, and searches.

A log may have lines of any length, or may not be a text file: it is
read in pieces, so that little of it is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from shoal.errors import DataError
from shoal.runs.events import damaged
from shoal.runs.folder import Folder
from shoal.runs.store import LOG_NAME, LOGS
from shoal.terminal import LONGEST_BYTES, LinePiece, Lines


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
        found = (LOG_NAME.fullmatch(name) for name in folder.names(LOGS))
        return sorted(int(match[1]) for match in found if match)
    except OSError as error:
        raise damaged(folder, f"its logs cannot be listed: {error}") from error


def tail(folder: Folder, rank: int, count: int) -> list[str]:
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


PAGE_BYTES = LONGEST_BYTES
_BLOCK_BYTES = 1 << 20
_ENDS = re.compile(rb"\r\n|\n|\r")
_MOST_TEXT = 4000
_BEFORE = 200
"""Bytes before a text that is found far within a line."""


@final
@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a log, or the part of a long one that is on a page.

    Args:
        offset: Its first byte in the log, by which it can be found again.
        text: Its text, without its end.
        is_cut: Whether the line is longer than the text.
    """

    offset: int
    text: str
    is_cut: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class LogPage:
    """A part of a log.

    Args:
        start: First byte.
        end: First byte behind it, where the next page starts.
        size: Bytes of the log.
        lines: Its lines.
    """

    start: int
    end: int
    size: int
    lines: tuple[LogLine, ...]


def page(
    folder: Folder,
    rank: int,
    offset: int,
    most_bytes: int = PAGE_BYTES,
    *,
    has_ends: bool = False,
) -> LogPage:
    """Returns the lines of a log from an offset on.

    Args:
        folder: The run folder.
        rank: Rank of the worker.
        offset: Offset of a line; within a line its rest is the first line.
        most_bytes: Bytes of the page at most.
        has_ends: Whether a last line without its end is left for the next page, unless
            it fills this one.

    Raises:
        DataError: The log cannot be read.
    """
    size = _size(folder, rank)
    start = min(max(0, offset), size)
    content = _read(folder, rank, start, most_bytes)
    if has_ends and len(content) < most_bytes:
        content = content[: content.rfind(b"\n") + 1]
    elif start + len(content) < size:
        content = content[: content.rfind(b"\n") + 1] or content
    return _page(start, content, size)


def page_before(
    folder: Folder, rank: int, end: int | None = None, most_bytes: int = PAGE_BYTES
) -> LogPage:
    """Returns the lines of a log up to an offset.

    Args:
        folder: The run folder.
        rank: Rank of the worker.
        end: Offset behind the page; default None: the end of the log.
        most_bytes: Bytes of the page at most.

    Raises:
        DataError: The log cannot be read.
    """
    size = _size(folder, rank)
    end = size if end is None else min(max(0, end), size)
    start = max(0, end - most_bytes)
    content = _read(folder, rank, start, end - start)
    if start:  # whole lines, unless one fills the page
        whole = content.find(b"\n") + 1
        if 0 < whole < len(content):
            start, content = start + whole, content[whole:]
    return _page(start, content, size)


def search(folder: Folder, rank: int, words: str, after: int = -1) -> Iterator[LogLine]:
    """Finds lines of a log that contain a text, in a stream.

    Args:
        folder: The run folder.
        rank: Rank of the worker.
        words: The text; capitals of ASCII are as small letters.
        after: Offset of a line: only later ones are found; default -1: all.

    Raises:
        DataError: The log cannot be read.
    """
    start: int | None = max(0, after) if words else None
    while start is not None:
        lines, start = search_block(folder, rank, words, start)
        yield from (line for line in lines if line.offset > after)


def search_block(
    folder: Folder, rank: int, words: str, start: int
) -> tuple[list[LogLine], int | None]:
    """Finds lines of a log that contain a text, in the next block of it.

    Args:
        folder: The run folder.
        rank: Rank of the worker.
        words: The text, as for `search`; not empty.
        start: Offset of a line.

    Returns:
        The lines, and the offset where the next block starts; None at the end.

    Raises:
        DataError: The log cannot be read.
    """
    wanted, held = words.encode(errors="replace").lower(), b""
    while True:
        data = _read(folder, rank, start + len(held), _BLOCK_BYTES)
        held += data
        cut = held.rfind(b"\n") + 1 if data else len(held)
        if not cut and len(held) > 4 * _BLOCK_BYTES:
            cut = len(held) - len(wanted) + 1  # one endless line
        if cut or not data:
            found = list(_found(held[:cut], wanted, start))
            return found, start + cut if data else None


def _found(block: bytes, wanted: bytes, base: int) -> Iterator[LogLine]:
    """Yields each line of a block that contains a text, as `_page` parts lines.

    Of a line that is longer than what is shown, each such part with the text is one.
    """
    lowered, at = block.lower(), 0
    while (at := lowered.find(wanted, at)) >= 0:
        start = block.rfind(b"\n", 0, at) + 1
        start = max(start, block.rfind(b"\r", start, at) + 1)
        if at + len(wanted) - start > _MOST_TEXT:
            start = _boundary(block, at - _BEFORE)
        ends = _ENDS.search(block, at)
        end = ends.start() if ends else len(block)
        yield _line(base + start, block[start:end])
        at = max(at + 1, min(end, start + _MOST_TEXT - len(wanted) + 1))


def _boundary(block: bytes, at: int) -> int:
    """Returns where the character of UTF-8 begins that an offset is within."""
    return next((n for n in range(at, at - 3, -1) if block[n] & 0xC0 != 0x80), at)


def _page(start: int, content: bytes, size: int) -> LogPage:
    lines: list[LogLine] = []
    at = 0
    while at < len(content):
        found = _ENDS.search(content, at)
        end, after = found.span() if found else (len(content), len(content))
        # A progress bar writes many lines over each other, some of them empty.
        if end > at or found is None or found[0] != b"\r":
            lines.append(_line(start + at, content[at:end]))
        at = after
    end = start + len(content)
    return LogPage(start=start, end=end, size=size, lines=tuple(lines))


def _line(offset: int, content: bytes) -> LogLine:
    text = content[:_MOST_TEXT].decode(errors="replace")
    return LogLine(offset=offset, text=text, is_cut=len(content) > _MOST_TEXT)


def _size(folder: Folder, rank: int) -> int:
    """Returns the bytes of a log, 0 without one."""
    try:
        return folder.size(log_name(rank))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise damaged(folder, f"a log cannot be read: {error}") from error


def _read(folder: Folder, rank: int, start: int, most: int) -> bytes:
    try:
        return folder.read(log_name(rank), start, most)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise damaged(folder, f"a log cannot be read: {error}") from error


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
        data = _read(self._folder, rank, start, LONGEST_BYTES)
        self._offsets[rank] = start + len(data)
        return data
