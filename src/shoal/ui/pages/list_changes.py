"""The stream of a list: runs that are new, gone, or not as they were."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.runs.catalogue import MOST_READS, run_ids
from shoal.runs.outlines import OUTLINE
from shoal.ui.site import Root, Site
from shoal.ui.watching import MOST_STREAMS

BEAT_S = 15.0
AGAIN_S = 1.0
"""Seconds after a change until roots are listed: a run is claimed, and then begun."""
LOOK_S, REST_S = 5.0, 30.0
"""Seconds between two looks at runs that are known: at local disks, and where nothing
tells of changes. There roots are listed as seldom: that may cost money."""
MOST_ASKED = 100
"""Runs of a storage that one look asks when they changed last; a request each."""
SLACK_S, FAR_SLACK_S = 1.0, 60.0
"""Seconds by which the clock of a file system may be behind, and that of a storage."""
_TIME = re.compile(r"[0-9]{1,11}(\.[0-9]{1,6})?")

Known = dict[str, float]
"""Root and id of a run -> when it changed last in Unix seconds, 0 if that is unknown.

It is the time at which a file was made or replaced directly in its folder: the lock as
a process begins to write the run, and the outline: then, after each epoch, at the end.
On a storage it is that of the outline.
"""


async def stream_list(site: Site, request: Request) -> Response:
    """Tells a list of what has changed, as server-sent events.

    The first one tells of changes since the list was read. The number of an event is
    its time, so that a page that comes back hears of what it has not seen.
    """
    if site.watcher.count >= MOST_STREAMS:
        raise HTTPException(503, "Too many pages watch runs. Close some of them.")
    asked = request.headers.get("last-event-id", request.query_params.get("seen", ""))

    async def events() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        roots = list(site.roots.values())
        async with site.watcher.watching([root.folder for root in roots]) as waker:
            woken, at = waker.woken, time.time()
            known = await anyio.to_thread.run_sync(_listed, site, Known(), 0.0)
            looked = said = time.monotonic()
            is_exact = all(root.folder.is_local for root in roots)
            since = float(asked) if _TIME.fullmatch(asked) else at
            begun = {"count": len(known) if is_exact else None}
            changed = _since(site, known, since)
            yield _event("begun", {**begun, "changed": changed}, at)
            while not site.is_ending():
                look_s = LOOK_S if waker.is_told else REST_S
                await waker.wait(min(look_s, BEAT_S))
                is_woken = waker.woken > woken
                if is_woken:
                    await anyio.sleep(AGAIN_S)
                if is_woken or time.monotonic() - looked >= look_s:
                    woken, at = waker.woken, time.time()
                    look = partial(_listed, site, known, look_s / 2)
                    if waker.is_told and not is_woken:
                        look = partial(_looked, site, known)
                    found = await anyio.to_thread.run_sync(look)
                    looked = time.monotonic()
                    news, known = _news(known, found), found
                    if any(news.values()):
                        said = looked
                        yield _event("list", news, at)
                if time.monotonic() - said >= BEAT_S:
                    said = time.monotonic()
                    yield ": still here\n\n"

    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _event(kind: str, content: Any, at: float) -> str:
    return f"id: {at:.3f}\nevent: {kind}\ndata: {json.dumps(content)}\n\n"


def _since(site: Site, known: Known, since: float) -> list[str]:
    """Returns runs that have changed since a time, by the clocks of their roots."""

    def has_changed(name: str, at: float) -> bool:
        is_local = site.roots[name.partition("/")[0]].folder.is_local
        return at >= since - (SLACK_S if is_local else FAR_SLACK_S)

    return sorted(name for name, at in known.items() if has_changed(name, at))


def _news(known: Known, found: Known) -> Mapping[str, list[str]]:
    """Returns what differs between two looks.

    Example:
        >>> _news({"runs/a": 1.0, "runs/b": 1.0}, {"runs/b": 2.0, "runs/c": 2.0})
        {'gone': ['runs/a'], 'new': ['runs/c'], 'changed': ['runs/b']}
    """
    both = known.keys() & found.keys()
    return {
        "gone": sorted(known.keys() - found.keys()),
        "new": sorted(found.keys() - known.keys()),
        "changed": sorted(name for name in both if known[name] != found[name]),
    }


def _listed(site: Site, known: Known, fresh_s: float) -> Known:
    """Lists all runs; those of a root that cannot be read now are as they were.

    Args:
        site: The site.
        known: What was known of them.
        fresh_s: Seconds for which what another page has asked of a storage serves this
            one: it must be newer than `known`.
    """
    found = Known()
    asked = site.ask_roots("times", partial(_times_in, site, known), fresh_s=fresh_s)
    for root, answer in asked:
        try:
            found |= answer()
        except Exception:  # a file system of fsspec may raise anything
            found |= _known_in(root, known)
    return found


def _known_in(root: Root, known: Known) -> Known:
    own = f"{root.key}/"
    return {name: at for name, at in known.items() if name.startswith(own)}


def _times_in(site: Site, known: Known, root: Root) -> Known:
    if root.folder.is_local:
        return _times(root, run_ids(root.folder.url))
    names = [name for name in root.folder.names() if not name.startswith(".")]
    found = {name: known.get(f"{root.key}/{name}", 0.0) for name in names}
    outlines = site.outlines_of(root)
    asked = [name for name in names if not outlines.has_finished(name)][-MOST_ASKED:]

    def written(name: str) -> float:
        try:
            return root.folder.child(name).written_unix(OUTLINE)
        except Exception:  # there is none, or a file system of fsspec, as above
            return found[name]

    if asked:
        with ThreadPoolExecutor(MOST_READS, "shoal-times") as readers:
            found |= zip(asked, readers.map(written, asked), strict=True)
    return {f"{root.key}/{name}": at for name, at in found.items()}


def _looked(site: Site, known: Known) -> Known:
    """Looks at runs on local disks that tell of changes; those known are runs still.

    Others are looked for, too: a root tells of a folder, and not that it is a run now.
    """
    found = Known()
    for root in site.roots.values():
        before = _known_in(root, known)
        names = {name.removeprefix(f"{root.key}/") for name in before}
        try:
            found |= _times(root, run_ids(root.folder.url, known=names))
        except OSError:  # they are as they were
            found |= before
    return found


def _times(root: Root, names: Iterable[str]) -> Known:
    start = root.folder.path
    return {f"{root.key}/{name}": _changed(f"{start}/{name}") for name in names}


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # it is gone, or may not be read
        return 0.0
