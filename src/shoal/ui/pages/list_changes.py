"""The stream of a list: runs that are new, and runs that are gone."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.errors import ShoalError
from shoal.runs.catalogue import run_ids
from shoal.ui.site import Root, Site
from shoal.ui.watching import MOST_STREAMS

BEAT_S = 15.0
AGAIN_S = 1.0
"""Seconds after a change until roots are listed: a run is claimed, and then begun."""
REST_S = 30.0
"""Seconds between two lists where nothing tells of changes: they may cost money."""


async def stream_list(site: Site, request: Request) -> Response:
    """Tells a list of runs that are new or gone, as server-sent events."""
    del request
    if site.watcher.count >= MOST_STREAMS:
        raise HTTPException(503, "Too many pages watch runs. Close some of them.")

    async def events() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        roots = list(site.roots.values())
        async with site.watcher.watching([root.folder for root in roots]) as waker:
            seen = waker.woken
            known = await anyio.to_thread.run_sync(_names, roots)
            listed = time.monotonic()
            is_exact = all(root.folder.is_local for root in roots)
            yield _event("begun", {"count": len(known) if is_exact else None})
            while not site.is_ending():
                await waker.wait(BEAT_S)
                if waker.woken > seen:
                    await anyio.sleep(AGAIN_S)
                elif waker.is_told or time.monotonic() - listed < REST_S:
                    yield ": still here\n\n"
                    continue
                seen, listed = waker.woken, time.monotonic()
                found = await anyio.to_thread.run_sync(_names, roots)
                if found != known:
                    gone, new = sorted(known - found), len(found - known)
                    known = found
                    yield _event("list", {"gone": gone, "new": new})

    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _event(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"


def _names(roots: Sequence[Root]) -> frozenset[str]:
    """Returns root and id of all runs; of a root that cannot be read none."""
    found: list[str] = []
    for root in roots:
        with suppress(ShoalError, OSError):
            if root.folder.is_local:
                names = run_ids(root.folder.url)
            else:  # a look at each of them would be a request each
                names = [n for n in root.folder.names() if not n.startswith(".")]
            found += [f"{root.key}/{name}" for name in names]
    return frozenset(found)
