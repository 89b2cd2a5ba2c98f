"""One run: its head, curves, workers, marks, files, and their stream."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.errors import ShoalError
from shoal.runs.catalogue import EXPLAINED, read_plan
from shoal.runs.control import StopRequest, read_stop
from shoal.runs.events import FOLDER as EVENTS
from shoal.runs.events import segment_list, segment_name
from shoal.runs.folder import Folder
from shoal.runs.logs import log_name
from shoal.runs.store import model_file
from shoal.ui.curves import AXES
from shoal.ui.lease_bars import bars_of
from shoal.ui.live import RunView
from shoal.ui.pages.logs import ranks_of
from shoal.ui.pages.series import choice_of, pictures_of
from shoal.ui.site import Site
from shoal.ui.starting import Program
from shoal.ui.watching import MOST_STREAMS

BEAT_S = 15.0
LOOK_S, REST_S = 0.2, 5.0
"""Seconds between two looks at a run: one that is running, one that is not."""
WRITER_S = 5.0
"""Seconds between two looks whether a process still writes the run, where changes are
told: that it has gone is no change of a file."""
EVENTS_FILE = "events.jsonl"
"""Name under which all events of a run are downloaded."""
MOST_PLAN = 100_000
"""Characters of a plan that are shown."""
MOST_WORKERS = 64
"""Workers whose time is shown in bars."""


def show_run(site: Site, request: Request) -> Response:
    """The page of a run, or with `part=live` what changes of it."""
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    view = site.views.of(folder)
    version = view.advance()
    began = time.thread_time()
    query = request.query_params
    choice = choice_of(request)
    is_plain = not site.has_charts or query.get("draw") == "svg"
    is_part = query.get("part") == "live"
    values: dict[str, Any] = {
        "is_part": is_part,
        "root": root,
        "id": run,
        "run": view.summary(),
        "view": view,
        "workers": view.workers(),
        "spent": spent_of(view),
        "bars": bars_of(view.leases()),
        "speed": view.speed(),
        "pictures": pictures_of(view, choice) if is_plain else [],
        "is_plain": is_plain,
        "moments": view.moments,
        "axes": AXES,
        "choice": choice,
        "left": _time_left(view),
        "is_local": folder.is_local,
        "stop": _stop_of(folder, view),
        "program": _program_of(site, folder, view),
    }
    if is_part:
        page = site.render("run_live.html", **values)
        view.budget.spend(time.thread_time() - began)
        return page
    return site.render(
        "run.html",
        version=version,
        logs=ranks_of(folder),
        files=_files(folder),
        plan=_plan(folder),
        has_board=find_spec("tensorboard") is not None,
        **values,
    )


def spent_of(view: RunView) -> list[tuple[int, list[tuple[str, float, float]]]]:
    """Returns what each worker's time went to: its name, seconds and share."""
    names = ("compute", "data", "wait", "exchange")
    with view.lock:
        found = sorted(view.spent.items())[:MOST_WORKERS]
    return [
        (rank, [(name, s, s / total) for name, s in zip(names, parts, strict=True)])
        for rank, parts in found
        if (total := sum(parts)) > 0
    ]


def _time_left(view: RunView) -> float | None:
    run, speed = view.summary(), view.speed()
    left = run.samples_expected - run.samples_committed
    if run.status != "running" or not speed or left <= 0:
        return None
    return left / speed


def _stop_of(folder: Folder, view: RunView) -> StopRequest | None:
    """Returns the request to stop that a running run has not answered yet."""
    if view.summary().status != "running":
        return None
    with suppress(OSError):
        return read_stop(folder)
    return None


def _program_of(site: Site, folder: Folder, view: RunView) -> Program | None:
    """Returns the program that was started to resume a run, until the run goes on."""
    program = site.starter.of(folder.url)
    if program is None:
        return None
    resumed = [m.time for m in view.moments if m.kind == "run_resumed"]
    return None if resumed and max(resumed) >= program.time else program


def _plan(folder: Folder) -> tuple[str, str]:
    """Returns the plan of a run as it was explained, and as JSON; "" without one."""
    with suppress(ShoalError, OSError):
        found = read_plan(folder)
        told = found.pop(EXPLAINED, "")
        text = json.dumps(found, indent=2)[:MOST_PLAN] if found else ""
        return str(told)[:MOST_PLAN], text
    return "", ""


# ------------------------------------------------------------------------- stream


async def stream_run(site: Site, request: Request) -> Response:
    """Tells a page that a run has changed, as server-sent events.

    The page reads anew what has changed; the number of the change is the event's id, so
    that a page that comes back hears only of what it has not seen.
    """
    root, run = request.path_params["root"], request.path_params["run"]
    folder = await anyio.to_thread.run_sync(site.find, root, run)
    if site.watcher.count >= MOST_STREAMS:
        raise HTTPException(503, "Too many pages watch runs. Close some of them.")
    seen = request.headers.get("last-event-id", request.query_params.get("seen", ""))

    async def events() -> AsyncIterator[str]:
        view = site.views.of(folder)
        last = int(seen) if seen.isdecimal() and len(seen) < 16 else -1
        was = _code_of(site, folder)
        said = time.monotonic()
        yield "retry: 1000\n\n"
        async with site.watcher.watching([folder.child(EVENTS)]) as waker:
            while not site.is_ending() and not await request.is_disconnected():
                now = await anyio.to_thread.run_sync(view.advance, waker.woken)
                code = _code_of(site, folder)
                if now != last or code != was:
                    last, was, said = now, code, time.monotonic()
                    kind = "removed" if view.is_removed else "change"
                    yield f"id: {now}\nevent: {kind}\ndata: {now}\n\n"
                elif time.monotonic() - said >= BEAT_S:
                    said = time.monotonic()
                    yield ": still here\n\n"
                # Each change has the page read again, beside a training perhaps.
                least_s = max(LOOK_S, view.budget.pause_s)
                most_s = _most_wait(site, view, is_told=waker.is_told)
                await waker.wait(max(least_s, most_s), least_s)

    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _code_of(site: Site, folder: Folder) -> int | None:
    program = site.starter.of(folder.url)
    return program.code if program else None


def _most_wait(site: Site, view: RunView, *, is_told: bool) -> float:
    """Returns seconds until the next look at a run, if no change is told before."""
    program = site.starter.of(view.folder.url)
    if program is not None and program.code is None:
        return LOOK_S  # its end is no change of a file
    if view.summary().status == "running":
        return WRITER_S if is_told else LOOK_S
    return BEAT_S if is_told else REST_S


# -------------------------------------------------------------------------- files


def _files(folder: Folder) -> dict[str, str]:
    """Returns what can be downloaded: the name in the address -> the file."""
    found: dict[str, str] = {"plan.json": "plan.json"}
    for which in ("best", "last"):
        with suppress(OSError):
            name = model_file(folder, which)
            found[name.rpartition("/")[2]] = name
    for rank in ranks_of(folder):
        found[f"worker-{rank}.log"] = log_name(rank)
    there: dict[str, str] = {}
    for name, path in found.items():
        with suppress(OSError):
            if folder.exists(path):
                there[name] = path
    return there


def send_file(site: Site, request: Request) -> Response:
    """A file of a run, from a fixed list of names."""
    folder = site.find(request.path_params["root"], request.path_params["run"])
    name = request.path_params["name"]
    if name == EVENTS_FILE:
        paths = [segment_name(number) for number in segment_list(folder)]
    else:
        paths = [path for known, path in _files(folder).items() if known == name]
    if not paths:
        raise HTTPException(404, "This run has no such file.")
    sizes = {path: folder.size(path) for path in paths}

    def parts() -> Iterator[bytes]:
        for path, size in sizes.items():
            at = 0
            while at < size:
                content = folder.read(path, at, min(1 << 20, size - at))
                if not content:  # it was cut meanwhile
                    return
                yield content
                at += len(content)

    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Length": str(sum(sizes.values())),
    }
    kind = "application/octet-stream"
    return StreamingResponse(parts(), media_type=kind, headers=headers)
