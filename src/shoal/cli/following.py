"""Worker logs on the console, once or as they grow."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import typer

from shoal.errors import ConfigError
from shoal.runs.catalogue import read_summary
from shoal.runs.folder import Folder
from shoal.runs.store import LOGS

POLL_S = 0.5


def print_logs(folder: Folder, rank: int | None) -> None:
    """Prints the logs of a run as they stand.

    Args:
        folder: The run folder.
        rank: Only this worker, without prefix; None: all, each line behind its rank.
            That there is nothing is said on standard error.

    Raises:
        ConfigError: There is no log of that worker.
    """
    ranks = _ranks(folder)
    if rank is not None and rank not in ranks:
        raise ConfigError(
            f"run {folder.name!r} has no log of worker {rank}. "
            f"Expected one of: {', '.join(map(str, ranks)) or 'none so far'}. "
            "Leave --rank out to see all."
        )
    offsets: dict[int, int] = {}
    for line in _new_lines(folder, rank, offsets, is_last=True):
        typer.echo(line)
    _note_silence(folder, rank, offsets)


def last_lines(folder: Folder, rank: int, count: int) -> list[str]:
    """Returns the last lines that a worker wrote, none where it wrote nothing."""
    if rank not in _ranks(folder):
        return []
    lines = list(_new_lines(folder, rank, {}, is_last=True))
    return lines[-count:] if count else []


def follow_logs(folder: Folder, rank: int | None, *, poll_s: float = POLL_S) -> None:
    """Prints logs as they grow, until the run has ended or Ctrl-C.

    Args:
        folder: The run folder.
        rank: As for `print_logs`; the worker may not have begun yet.
        poll_s: Seconds between two looks.
    """
    offsets: dict[int, int] = {}
    pause = threading.Event()
    try:
        while True:
            # Asked before reading, so that the last lines are not missed.
            status = read_summary(folder, is_outline=True).status
            is_last = status != "running"
            for line in _new_lines(folder, rank, offsets, is_last=is_last):
                typer.echo(line)
            if is_last:
                _note_silence(folder, rank, offsets)
                return
            pause.wait(poll_s)
    except KeyboardInterrupt:
        return


def _note_silence(folder: Folder, rank: int | None, offsets: dict[int, int]) -> None:
    """Says that nothing was there to be read, where that is so."""
    if any(offsets.values()):
        return
    who = "No worker" if rank is None else f"Worker {rank}"
    what = "anything" if rank is None else "nothing"
    typer.echo(f"{who} of run {folder.name!r} has written {what}.", err=True)


def _ranks(folder: Folder) -> list[int]:
    """Returns the ranks that have a log, in order."""
    stems = (n.removeprefix("worker-") for n in folder.names(LOGS))
    numbers = (stem.removesuffix(".log") for stem in stems if stem.endswith(".log"))
    return sorted(int(number) for number in numbers if number.isdigit())


def _new_lines(
    folder: Folder, rank: int | None, offsets: dict[int, int], *, is_last: bool
) -> Iterator[str]:
    """Yields the whole lines behind the offsets, and moves the offsets."""
    for one in _ranks(folder):
        if rank not in (None, one):
            continue
        start = offsets.get(one, 0)
        content = folder.read(f"{LOGS}/worker-{one}.log", start)
        if not is_last:  # the line that is being written waits for its end
            content = content[: content.rfind(b"\n") + 1]
        offsets[one] = start + len(content)
        prefix = "" if rank is not None else f"[{one}] "
        for line in content.decode(errors="replace").splitlines():
            yield prefix + line
