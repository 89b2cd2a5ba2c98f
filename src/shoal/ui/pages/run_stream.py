"""The stream of a run's page: what has changed, as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import final

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.runs.events import FOLDER as EVENTS
from shoal.runs.folder import Folder
from shoal.ui.curves import charts_of, marks_of
from shoal.ui.pages.run_parts import Parts, is_plain
from shoal.ui.pages.series import choice_of, series_text
from shoal.ui.site import Site
from shoal.ui.starting import Program
from shoal.ui.watching import MOST_STREAMS

BEAT_S = 15.0
LOOK_S, REST_S = 0.2, 5.0
"""Seconds between two looks at a run: one that is running, one that is not."""
WRITER_S = 5.0
"""Seconds between two looks whether a process still writes the run, where changes are
told: that it has gone is no change of a file."""
REST_COST_S = 0.001
"""Processor time of a rest: a watch ends and another one begins."""
DRAWN_S = 0.01
"""Processor time that an update is taken to cost besides: it is sent, and drawn by a
browser that is often on the same machine."""


@final
class News:
    """What a page about a run does not show yet.

    Attributes:
        view: The view of the run.

    Args:
        site: The site.
        request: The request of the stream.
        folder: The run folder.
        last: Version that the page shows, -1 if that is not known.
    """

    def __init__(self, site: Site, request: Request, folder: Folder, last: int) -> None:
        self._site, self._request, self._folder = site, request, folder
        # One view for the whole stream: the site has another one after a removal.
        self.view = site.views.of(folder)
        self._last = last
        self._program: Program | None = None
        self._code: int | str | None = None
        self._parts = Parts(site, request, self.view)
        self._charts: dict[str, str] = {}

    def next(self, told: float) -> str:
        """Returns the next event of the stream, "" if nothing has changed.

        Args:
            told: When a change was told, in monotonic seconds.
        """
        view = self.view
        version = view.advance(told)
        self._program = self._site.starter.of(self._folder.url)
        code = self._program.code if self._program else None
        if version == self._last and code == self._code:
            return ""
        self._last, self._code = version, code
        if view.is_removed:
            return f"id: {version}\nevent: removed\ndata: {version}\n\n"
        with view.budget.spending():
            text = self._content()
        view.budget.spend(DRAWN_S)
        return f"id: {version}\nevent: change\ndata: {text}\n\n"

    def _content(self) -> str:
        """Returns the parts and charts that differ from those sent before, as JSON."""
        view = self.view
        told = json.dumps(self._parts.changed(), separators=(",", ":"))
        if is_plain(self._site, self._request):
            return f'{{"parts":{told}}}'
        choice = choice_of(self._request)
        charts, marks = charts_of(view, choice), marks_of(view, choice.x)
        series = series_text(charts, marks, choice, self._charts)
        return f'{{"parts":{told},"series":{series}}}'

    def most_wait_s(self, *, is_told: bool) -> float:
        """Returns seconds until the next look, if no change is told before."""
        if self._program is not None and self._program.code is None:
            return LOOK_S  # its end is no change of a file
        if self.view.summary().status == "running":
            return WRITER_S if is_told else LOOK_S
        return BEAT_S if is_told else REST_S


async def stream_run(site: Site, request: Request) -> Response:
    """Sends a page what changes of its run.

    The first event has all of it, later ones what differs from that. The number of a
    change is the event's id, so that a page that comes back hears only of what it has
    not seen.
    """
    root, run = request.path_params["root"], request.path_params["run"]
    folder = await anyio.to_thread.run_sync(site.find, root, run)
    if site.watcher.count >= MOST_STREAMS:
        raise HTTPException(503, "Too many pages watch runs. Close some of them.")
    seen = request.headers.get("last-event-id", request.query_params.get("seen", ""))

    async def events() -> AsyncIterator[str]:
        last = int(seen) if seen.isdecimal() and len(seen) < 16 else -1
        news = News(site, request, folder, last)
        said = time.monotonic()
        yield "retry: 1000\n\n"
        async with site.watcher.watching([folder.child(EVENTS)]) as waker:
            while not site.is_ending() and not await request.is_disconnected():
                told = max(waker.woken, waker.since)
                text = await anyio.to_thread.run_sync(news.next, told)
                if not text and time.monotonic() - said >= BEAT_S:
                    text = ": still here\n\n"
                if text:
                    said = time.monotonic()
                    yield text
                pause_s = news.view.budget.pause_s
                if pause_s > LOOK_S:
                    await site.watcher.rest(waker, pause_s)
                    news.view.budget.spend(REST_COST_S)
                else:
                    await waker.wait(news.most_wait_s(is_told=waker.is_told), LOOK_S)

    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)
