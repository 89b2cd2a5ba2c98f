"""Logs of a run: of all workers or of one, by pages, followed, and searched."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.errors import ShoalError
from shoal.runs.events import FOLDER as EVENTS
from shoal.runs.folder import Folder
from shoal.runs.log_errors import errors_among
from shoal.runs.log_times import LogTimes
from shoal.runs.logs import (
    PAGE_BYTES,
    LogLine,
    LogPage,
    page,
    page_before,
    ranks_with_logs,
    search,
    search_block,
)
from shoal.runs.store import LOGS
from shoal.ui.site import Site
from shoal.ui.watching import MOST_STREAMS

MOST_FOUND = 500
"""Found lines at most."""
MOST_ROWS = 200
"""Found lines of one page, with their text."""
SEARCH_S = 0.3
"""Seconds of one answer to a search; the page asks for the rest."""
MOST_NEW = 1000
"""New lines of one answer at most."""
LEAST_BYTES = 2048
"""Bytes of each worker's end at least, where all are shown."""
MOST_WORDS = 200
WAIT_S = 15.0
"""Seconds that an answer waits for new lines at most."""
LOOK_S, LEAST_S = 1.0, 0.3
"""Seconds between two looks for them: where nothing tells of changes, and at least."""


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """A line as it is shown.

    Args:
        rank: Rank of its worker.
        line: The line.
        time: Unix seconds, None if not known.
        is_bad: Whether it is of an error.
    """

    rank: int
    line: LogLine
    time: float | None
    is_bad: bool


@final
@dataclass(frozen=True, kw_only=True)
class Shown:
    """Lines of logs as they are shown.

    Args:
        rows: The lines.
        ends: Rank -> the first byte behind what is shown of its log.
        rank: Rank of the one log that is shown, None where all are.
        page: The page of that log.
        is_found: Whether they are the lines that a search has found.
        later: Where that search goes on; "" at its end.
    """

    rows: Sequence[Row]
    ends: dict[int, int]
    rank: int | None = None
    page: LogPage | None = None
    is_found: bool = False
    later: str = ""

    @property
    def has_times(self) -> bool:
        """Whether lines are in the order in which they were written."""
        return any(row.time is not None for row in self.rows)


def show_logs(site: Site, request: Request) -> Response:
    """The end of all logs, a page of one, or found lines; `part=lines`: these alone.

    `rank` is the worker that is searched, none for all; `hit` or `at` is the place of
    the line that is shown, and may be in the log of another worker.
    """
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    query = request.query_params
    ranks = ranks_of(folder)
    rank = _rank(query.get("rank", ""), ranks)
    words = query.get("q", "")[:MOST_WORDS]
    is_only = bool(query.get("only"))
    view = site.views.of(folder)
    view.advance()
    times = view.log_times
    one = rank if rank is not None or len(ranks) != 1 else ranks[0]
    at = query.get("at", "") or query.get("hit", "")
    place = _place(at, one, ranks)
    try:
        if words and is_only:
            asked = folder, ranks if rank is None else [rank], words
            shown = _found_page(*asked, query.get("from", ""), times)
        elif place:
            shown = _page_of(folder, *place, times)
        elif one is None:
            shown = _ends_of(folder, ranks, times)
        else:
            shown = _page_of(folder, one, None, times)
        is_list = bool(words) and query.get("list") == "yes" and not is_only
        found = _found(folder, ranks, rank, words) if is_list else []
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    template = "log_lines.html" if query.get("part") == "lines" else "logs.html"
    return site.render(
        template, root=root, id=run, ranks=ranks, rank=rank, shown=shown, words=words,
        found=found, most=MOST_FOUND, is_list=is_list, is_only=is_only,
        is_end=place is None and not shown.is_found, step=PAGE_BYTES,
        ends=json.dumps(shown.ends),
    )  # fmt: skip


def send_found(site: Site, request: Request) -> Response:
    """Where a text is found in the logs of a run, as far as a moment suffices.

    `next` is where the search goes on, in the form of `from`; "" at its end.
    """
    folder = site.find(request.path_params["root"], request.path_params["run"])
    query = request.query_params
    ranks = ranks_of(folder)
    rank = _rank(query.get("rank", ""), ranks)
    words = query.get("q", "")[:MOST_WORDS]
    left = ranks if rank is None else [rank]
    lines: list[dict[str, int]] = []
    over = time.monotonic() + SEARCH_S
    later = ""
    try:
        for one, found, after in _blocks(folder, left, words, query.get("from", "")):
            later = after
            lines += [{"rank": one, "offset": line.offset} for line in found]
            if time.monotonic() > over or len(lines) >= MOST_FOUND:
                break
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    return _as_json({"lines": lines, "next": later})


def _blocks(
    folder: Folder, ranks: Sequence[int], words: str, begin: str
) -> Iterator[tuple[int, list[LogLine], str]]:
    """Yields found lines of logs, block by block.

    Args:
        folder: The run folder.
        ranks: Ranks of the logs.
        words: The text; nothing is found without one.
        begin: Where the search begins, as `_later` returns it; "" for the first log.

    Yields:
        The rank, the lines, and where the search goes on.
    """
    first, start = next(iter(_ends(begin).items()), (-1, 0))
    left = [one for one in ranks if one >= first] if words else []
    for one in left:
        at: int | None = start if one == first else 0
        while at is not None:
            found, at = search_block(folder, one, words, at)
            yield one, found, _later(one, at, left)


def _later(rank: int, at: int | None, ranks: Sequence[int]) -> str:
    """Returns where a search goes on behind a block; "" at its end."""
    if at is not None:
        return f"{rank}:{at}"
    behind = [one for one in ranks if one > rank]
    return f"{behind[0]}:0" if behind else ""


async def send_new(site: Site, request: Request) -> Response:
    """What logs have behind the positions of an address, such as `0:1200,1:900`.

    With `wait` the answer comes when there is something new, or after some seconds.
    """
    params, query = request.path_params, request.query_params
    folder = await run_in_threadpool(site.find, params["root"], params["run"])
    asked = (
        site, params["root"], folder, query.get("ends", ""), query.get("rank", "")
    )  # fmt: skip
    if not query.get("wait") or site.watcher.count >= MOST_STREAMS:
        return _as_json(await run_in_threadpool(_new, *asked, -math.inf))
    until = time.monotonic() + WAIT_S
    places = [folder.child(LOGS), folder.child(EVENTS)]
    async with site.watcher.watching(places) as waker:
        while True:
            found = await run_in_threadpool(_new, *asked, waker.woken)
            left_s = until - time.monotonic()
            is_news = found["lines"] or found["is_over"] or site.is_ending()
            if is_news or left_s <= 0 or await request.is_disconnected():
                return _as_json(found)
            await waker.wait(left_s if waker.is_told else LOOK_S, LEAST_S)


def _new(
    site: Site, root: str, folder: Folder, after: str, one: str, told: float
) -> dict[str, Any]:
    """Returns new lines, the positions behind them, and whether the run has ended."""
    view = site.views.of(folder)
    view.advance(told)
    is_over, times = view.summary().status != "running", view.log_times
    # Of the last moment a run that goes on has not told the time yet: it is now.
    now = time.time() if times and not is_over else None
    ends = _ends(after)
    only = _rank(one, ranks_of(folder))
    rows: list[Row] = []
    try:
        for rank in ranks_of(folder) if only is None else [only]:
            left = MOST_NEW - len(rows)
            if left <= 0:
                break
            new = page(folder, rank, ends.get(rank, 0), has_ends=not is_over)
            ends[rank] = new.end
            rows += [
                replace(row, time=row.time or now)
                for row in _rows(rank, new.lines, times)
            ]
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    names = {"root": root, "id": folder.name}
    text = site.text_of("log_rows.html", rows=rows, **names) if rows else ""
    lines = f'<ol class="log">{text}</ol>' if rows else ""
    return {"lines": lines, "ends": ends, "is_over": is_over}


def ranks_of(folder: Folder) -> list[int]:
    """Returns the ranks that have logs; none where they cannot be listed."""
    try:
        return ranks_with_logs(folder)
    except (ShoalError, OSError):
        return []


def _ends_of(folder: Folder, ranks: Sequence[int], times: LogTimes) -> Shown:
    """Returns the end of each log, in the order in which lines were written.

    Where no times are known, one log follows the other.
    """
    most = max(LEAST_BYTES, PAGE_BYTES // max(1, len(ranks)))
    rows: list[Row] = []
    ends: dict[int, int] = {}
    for rank in ranks:
        found = page_before(folder, rank, most_bytes=most)
        rows += _rows(rank, found.lines, times)
        ends[rank] = found.end
    if times:  # without a time they came after the last look at the logs
        rows.sort(key=lambda row: math.inf if row.time is None else row.time)
    return Shown(rows=rows, ends=ends)


def _page_of(folder: Folder, rank: int, at: int | None, times: LogTimes) -> Shown:
    found = page_before(folder, rank) if at is None else page(folder, rank, at)
    rows = _rows(rank, found.lines, times)
    return Shown(rows=rows, ends={rank: found.end}, rank=rank, page=found)


def _rows(rank: int, lines: Sequence[LogLine], times: LogTimes) -> list[Row]:
    """Returns lines that follow each other in a log."""
    are_bad = errors_among(line.text for line in lines)
    return [
        Row(rank=rank, line=line, time=times.of(rank, line.offset), is_bad=is_bad)
        for line, is_bad in zip(lines, are_bad, strict=True)
    ]


def _found_page(
    folder: Folder, ranks: Sequence[int], words: str, begin: str, times: LogTimes
) -> Shown:
    """Returns a page of found lines, as many as a moment suffices for."""
    rows: list[Row] = []
    over = time.monotonic() + SEARCH_S
    later = ""
    for rank, found, later in _blocks(folder, ranks, words, begin):
        room = MOST_ROWS - len(rows)
        for line in found[:room]:  # they do not follow each other
            rows += _rows(rank, [line], times)
        if len(found) > room:
            later = f"{rank}:{found[room].offset}"
        if time.monotonic() > over or len(rows) >= MOST_ROWS:
            break
    return Shown(rows=rows, ends={}, is_found=True, later=later)


def _found(
    folder: Folder, ranks: Sequence[int], rank: int | None, words: str
) -> list[tuple[int, LogLine]]:
    found: list[tuple[int, LogLine]] = []
    for one in ranks if rank is None else [rank]:
        for line in search(folder, one, words):
            found.append((one, line))
            if len(found) >= MOST_FOUND:
                return found
    return found


def _rank(text: str, ranks: Sequence[int]) -> int | None:
    found = _number(text)
    return found if found in ranks else None


def _place(text: str, rank: int | None, ranks: Sequence[int]) -> tuple[int, int] | None:
    """Returns the log and the offset that an address names: `1:1200`, or `1200`.

    Args:
        text: The place.
        rank: Rank where the text names none, None for none.
        ranks: Ranks that have logs.
    """
    first, colon, second = text.partition(":")
    one = _rank(first, ranks) if colon else rank
    offset = _number(second if colon else first)
    return None if one is None or offset is None else (one, offset)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 16 else None


def _ends(text: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for part in text[:4000].split(","):
        rank, end = (_number(word) for word in (*part.split(":"), "", "")[:2])
        if rank is not None and end is not None:
            found[rank] = end
    return found


def _as_json(content: Any) -> Response:
    text = json.dumps(content, separators=(",", ":"))
    return Response(text, media_type="application/json")
