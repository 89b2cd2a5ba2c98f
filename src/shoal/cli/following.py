"""Worker logs on the console, once or as they grow."""

from __future__ import annotations

import threading
from typing import final

from shoal.errors import ConfigError, DataError
from shoal.runs.folder import Folder
from shoal.runs.logs import LogReader, ranks_with_logs
from shoal.runs.outlines import read_outline
from shoal.terminal import LinePiece, say, say_output

POLL_S = 0.5


def print_logs(folder: Folder, rank: int | None) -> None:
    """Prints the present logs of a run.

    Args:
        folder: The run folder.
        rank: Only this worker, without prefix; None: all workers, each line after its
            rank. If there are no logs, a line on standard error says so.

    Raises:
        ConfigError: That worker has no log.
        DataError: A log cannot be read.
    """
    ranks = ranks_with_logs(folder)
    if rank is not None and rank not in ranks:
        raise ConfigError(
            f"run {folder.name!r} has no log of worker {rank}. "
            f"Expected one of: {', '.join(map(str, ranks)) or 'none so far'}. "
            "Leave --rank out to see all."
        )
    logs = _Printer(folder, rank)
    logs.show(is_last=True)
    logs.note_silence()


def follow_logs(folder: Folder, rank: int | None, *, poll_s: float = POLL_S) -> None:
    """Prints logs as they grow, until the run has ended or Ctrl-C.

    Args:
        folder: The run folder.
        rank: Rank, as for `print_logs`; the worker may not have begun yet.
        poll_s: Seconds between two reads.

    Raises:
        DataError: A log cannot be read, or the run is damaged and its end unknown.
    """
    logs = _Printer(folder, rank)
    pause = threading.Event()
    try:
        while True:
            # Asked before reading, so that the last lines are read.
            try:
                is_last = read_outline(folder).status != "running"
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


@final
class _Printer:
    """Prints new lines of logs.

    Args:
        folder: The run folder.
        rank: Rank, as for `print_logs`.
    """

    def __init__(self, folder: Folder, rank: int | None) -> None:
        self._name, self._rank = folder.name, rank
        self._logs = LogReader(folder, rank)
        self._open: int | None = None  # rank whose last line has no end yet

    def show(self, *, is_last: bool) -> None:
        """Prints new lines.

        Args:
            is_last: Whether no process writes any more.
        """
        for rank, piece in self._logs.new(is_last=is_last):
            self._print(rank, piece)

    def _print(self, rank: int, piece: LinePiece) -> None:
        if self._open not in (None, rank):
            say()
            self._open = None
        is_begin = self._open is None and self._rank is None
        before, end = f"[{rank}] " if is_begin else "", "\n" if piece.is_end else ""
        say_output(piece.text, before=before, end=end)
        self._open = None if piece.is_end else rank

    def note_silence(self) -> None:
        """Reports on standard error that there was nothing to read, if so."""
        if not self._logs.is_silent:
            return
        who = "No worker" if self._rank is None else f"Worker {self._rank}"
        what = "anything" if self._rank is None else "nothing"
        say(f"{who} of run {self._name!r} has written {what}.", err=True)
