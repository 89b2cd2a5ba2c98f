"""Worker logs on the console, once or as they grow; in memory there is little of them.

A log may have lines of any length, and may be no log at all: the folder of a run is
read as it is found.
"""

from __future__ import annotations

import re
import threading
from typing import final

from shoal.errors import ConfigError, DataError
from shoal.runs.catalogue import read_summary
from shoal.runs.events import damaged
from shoal.runs.folder import Folder
from shoal.runs.store import LOGS
from shoal.terminal import LONGEST_BYTES, Lines, Piece, say, say_output

POLL_S = 0.5
_LOG = re.compile(r"worker-([0-9]{1,9})\.log")


def print_logs(folder: Folder, rank: int | None) -> None:
    """Prints the logs of a run as they stand.

    Args:
        folder: The run folder.
        rank: Only this worker, without prefix; None: all, each line behind its rank.
            That there is nothing is said on standard error.

    Raises:
        ConfigError: There is no log of that worker.
        DataError: A log cannot be read.
    """
    ranks = _ranks(folder)
    if rank is not None and rank not in ranks:
        raise ConfigError(
            f"run {folder.name!r} has no log of worker {rank}. "
            f"Expected one of: {', '.join(map(str, ranks)) or 'none so far'}. "
            "Leave --rank out to see all."
        )
    logs = _Logs(folder, rank)
    logs.show(is_last=True)
    logs.note_silence()


def follow_logs(folder: Folder, rank: int | None, *, poll_s: float = POLL_S) -> None:
    """Prints logs as they grow, until the run has ended or Ctrl-C.

    Args:
        folder: The run folder.
        rank: As for `print_logs`; the worker may not have begun yet.
        poll_s: Seconds between two looks.

    Raises:
        DataError: A log cannot be read, or the run is damaged: nobody knows its end.
    """
    logs = _Logs(folder, rank)
    pause = threading.Event()
    try:
        while True:
            # Asked before reading, so that the last lines are not missed.
            try:
                is_last = read_summary(folder, is_outline=True).status != "running"
            except DataError:
                logs.show(is_last=True)
                raise
            logs.show(is_last=is_last)
            if is_last:
                logs.note_silence()
                return
            pause.wait(poll_s)
    except KeyboardInterrupt:
        return


def last_lines(folder: Folder, rank: int, count: int) -> list[str]:
    """Returns the last lines that a worker wrote, none where it wrote nothing.

    Of a line of more than 64 KiB it is the end, and no line before it is looked for.
    """
    try:
        if count == 0 or rank not in _ranks(folder):
            return []
        content = _end_of(folder, _name(rank), count)
    except (OSError, DataError) as error:
        return [f"({error})"]
    lines = Lines(2 * len(content) + 1)
    found = [*lines.feed(content), *lines.end()]
    return [piece.text for piece in found[-count:]]


def _end_of(folder: Folder, name: str, count: int) -> bytes:
    """The last lines of a file, read from its end on."""
    at = folder.size(name)
    parts: list[bytes] = []
    ends = held = 0
    # One more: the line that begins at the last end but `count` is whole.
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
class _Logs:
    """What is printed of the logs of a run, and how far that is.

    Args:
        folder: The run folder.
        rank: As for `print_logs`.
    """

    def __init__(self, folder: Folder, rank: int | None) -> None:
        self._folder, self._rank = folder, rank
        self._offsets: dict[int, int] = {}
        self._lines: dict[int, Lines] = {}
        self._open: int | None = None  # whose line is not at its end

    def show(self, *, is_last: bool) -> None:
        """Prints what is new; a line that is being written waits for its end.

        Args:
            is_last: Nobody writes any more.
        """
        for rank in _ranks(self._folder):
            if self._rank in (None, rank):
                lines = self._lines.setdefault(rank, Lines())
                while data := self._read(rank):
                    for piece in lines.feed(data):
                        self._print(rank, piece)
                for piece in lines.end() if is_last else ():
                    self._print(rank, piece)

    def _read(self, rank: int) -> bytes:
        start = self._offsets.get(rank, 0)
        try:
            data = self._folder.read(_name(rank), start, LONGEST_BYTES)
        except OSError as error:
            raise damaged(self._folder, f"a log cannot be read: {error}") from error
        self._offsets[rank] = start + len(data)
        return data

    def _print(self, rank: int, piece: Piece) -> None:
        if self._open not in (None, rank):
            say()
            self._open = None
        is_begin = self._open is None and self._rank is None
        before, end = f"[{rank}] " if is_begin else "", "\n" if piece.is_end else ""
        say_output(piece.text, before=before, end=end)
        self._open = None if piece.is_end else rank

    def note_silence(self) -> None:
        """Says that nothing was there to be read, where that is so."""
        if any(self._offsets.values()):
            return
        who = "No worker" if self._rank is None else f"Worker {self._rank}"
        what = "anything" if self._rank is None else "nothing"
        say(f"{who} of run {self._folder.name!r} has written {what}.", err=True)


def _name(rank: int) -> str:
    return f"{LOGS}/worker-{rank}.log"


def _ranks(folder: Folder) -> list[int]:
    """Returns the ranks that have a log, in order."""
    try:
        found = (_LOG.fullmatch(name) for name in folder.names(LOGS))
        return sorted(int(match[1]) for match in found if match)
    except OSError as error:
        raise damaged(folder, f"its logs cannot be listed: {error}") from error
