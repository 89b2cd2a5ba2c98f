"""One run: its head, curves, workers, marks, logs, files, and their stream."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.errors import ShoalError
from shoal.runs.catalogue import read_plan
from shoal.runs.folder import Folder
from shoal.runs.logs import log_name, page_before, ranks_with_logs, search
from shoal.runs.logs import page as log_page
from shoal.runs.store import model_file
from shoal.ui.charts import Mark, Points, Series, draw
from shoal.ui.live import RunView
from shoal.ui.site import Site

AXES = {
    "samples": "samples",
    "seconds": "seconds of the run",
    "epoch": "epochs",
}
MOST_STREAMS = 64
BEAT_S = 15.0
LOOK_S, REST_S = 0.2, 5.0
"""Seconds between two looks at a run: one that is running, one that is not."""
MOST_SHARE = 20
"""Changes of a run are this many times as far apart as its page takes."""
MOST_FOUND = 500
MOST_PLAN = 100_000
"""Characters of a plan that are shown."""
MOST_FAINT = 16
"""Workers whose own losses are drawn."""

_streams: list[int] = [0]


def show_run(site: Site, request: Request) -> Response:
    """The page of a run, or with `part=live` what changes of it."""
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    view = site.views.of(folder)
    view.advance()
    began = time.perf_counter()
    query = request.query_params
    x = query.get("x", "samples")
    x = x if x in AXES else "samples"
    is_log = query.get("scale") == "log"
    name = "run_live.html" if query.get("part") == "live" else "run.html"
    page = site.render(
        name,
        root=root,
        id=run,
        run=view.summary(),
        view=view,
        workers=view.workers(),
        speed=view.speed(),
        charts=charts_of(view, x, is_log=is_log),
        moments=list(view.moments),
        axes=AXES,
        x=x,
        is_log=is_log,
        logs=_ranks(folder),
        files=_files(folder),
        left=_time_left(view),
        plan=_plan(folder),
    )
    view.cost_s = time.perf_counter() - began
    return page


def charts_of(view: RunView, x: str, *, is_log: bool) -> list[tuple[str, str]]:
    """Returns the title and the SVG of each chart of a run."""
    with view.lock:
        marks = [_mark(view, moment.t, moment.samples, moment.text, x)
                 for moment in view.moments]  # fmt: skip
        found: list[tuple[str, str]] = []
        for name in _metrics(view):
            series = _losses(view, x) if name == "loss" else []
            series += _epoch_series(view, name, x)
            title = f"{name} against {AXES[x]}"
            picture = draw(series, marks, x_label=AXES[x], title=title, is_log=is_log)
            if picture:
                found.append((name, picture))
    return found


def _metrics(view: RunView) -> list[str]:
    """Returns the names of training metrics, the loss first."""
    names = {name for epoch in view.epochs for name in epoch["metrics"]}
    names = {name.removeprefix("val_") for name in names} | {"loss"}
    return sorted(names, key=lambda name: (name != "loss", name))


def _losses(view: RunView, x: str) -> list[Series]:
    """Returns the losses of exchanges: of each worker faint, of all together bold."""
    found = view.exchanges
    xs = found.samples if x == "samples" else found.t
    if x == "epoch":
        return []
    of_rank: dict[int, Points] = {}
    merged: Points = []
    total = weight = 0.0
    before = 0.0
    for at, (place, loss, rank) in enumerate(
        zip(xs, found.loss, found.rank, strict=True)
    ):
        rows, before = found.samples[at] - before, found.samples[at]
        if math.isnan(loss):
            continue
        of_rank.setdefault(rank, []).append((place, loss))
        # The mean of as many exchanges as there are workers, weighed by samples.
        total, weight = total + loss * rows, weight + rows
        if (at + 1) % max(1, len(of_rank)) == 0 and weight > 0:
            merged.append((place, total / weight))
            total = weight = 0.0
    faint = [
        Series(name=f"worker {rank}", points=points, style="faint")
        for rank, points in sorted(of_rank.items())[:MOST_FAINT]
        if len(of_rank) > 1
    ]
    return [*faint, Series(name="loss of exchanges", points=merged, style="s0 thin")]


def _epoch_series(view: RunView, name: str, x: str) -> list[Series]:
    found: list[Series] = []
    for key, style in ((name, "s0 bold"), (f"val_{name}", "s1 bold")):
        points: Points = []
        for epoch in view.epochs:
            value = epoch["metrics"].get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                points.append((_place(epoch, x), float(value)))
        found.append(Series(name=key, points=points, style=style))
    return found


def _place(epoch: dict[str, Any], x: str) -> float:
    if x == "epoch":
        return epoch["epoch"] + 1.0
    return epoch["samples"] if x == "samples" else epoch["t"]


def _mark(view: RunView, t: float, samples: int, text: str, x: str) -> Mark:
    if x == "epoch":
        ended = [epoch for epoch in view.epochs if epoch["t"] <= t]
        return Mark(x=len(ended) + 0.5, text=text)
    return Mark(x=samples if x == "samples" else t, text=text)


def _time_left(view: RunView) -> float | None:
    run, speed = view.summary(), view.speed()
    left = run.samples_expected - run.samples_committed
    if run.status != "running" or not speed or left <= 0:
        return None
    return left / speed


def _plan(folder: Folder) -> str:
    """Returns the plan of a run as text, "" without one that can be read."""
    with suppress(ShoalError, OSError):
        found = read_plan(folder)
        return json.dumps(found, indent=2)[:MOST_PLAN] if found else ""
    return ""


def _ranks(folder: Folder) -> list[int]:
    try:
        return ranks_with_logs(folder)
    except (ShoalError, OSError):
        return []


# ------------------------------------------------------------------------- stream


async def stream_run(site: Site, request: Request) -> Response:
    """Tells a page that a run has changed, as server-sent events.

    The page reads anew what has changed; the number of the change is the event's id, so
    that a page that comes back hears only of what it has not seen.
    """
    root, run = request.path_params["root"], request.path_params["run"]
    folder = await anyio.to_thread.run_sync(site.find, root, run)
    if _streams[0] >= MOST_STREAMS:
        raise HTTPException(503, "Too many pages watch runs. Close some of them.")
    seen = request.headers.get("last-event-id", "")

    async def events() -> AsyncIterator[str]:
        view = site.views.of(folder)
        last = int(seen) if seen.isdecimal() and len(seen) < 16 else -1
        _streams[0] += 1
        quiet_s = 0.0
        try:
            yield "retry: 1000\n\n"
            while not site.is_ending() and not await request.is_disconnected():
                now = await anyio.to_thread.run_sync(view.advance)
                if now != last:
                    last, quiet_s = now, 0.0
                    kind = "removed" if view.is_removed else "change"
                    yield f"id: {now}\nevent: {kind}\ndata: {now}\n\n"
                is_running = view.summary().status == "running"
                # Each change has the page read again, which may not fill the server.
                wait_s = max(LOOK_S, MOST_SHARE * view.cost_s)
                wait_s = wait_s if is_running else REST_S
                quiet_s += wait_s
                if quiet_s >= BEAT_S:
                    quiet_s = 0.0
                    yield ": still here\n\n"
                await _pause(site, wait_s)
        finally:
            _streams[0] -= 1

    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


async def _pause(site: Site, wait_s: float) -> None:
    """Waits, in short steps, so that the server can end."""
    while wait_s > 0 and not site.is_ending():
        await anyio.sleep(min(wait_s, LOOK_S))
        wait_s -= LOOK_S


# --------------------------------------------------------------------------- logs


def show_logs(site: Site, request: Request) -> Response:
    """A page of a worker's log, or of the lines that contain a text."""
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    query = request.query_params
    ranks = _ranks(folder)
    given = query.get("rank", "")
    rank = int(given) if given.isdecimal() and int(given) in ranks else None
    if rank is None and ranks:
        rank = ranks[0]
    words, at = query.get("q", "")[:200], query.get("at", "")
    found: list[tuple[int, Any]] = []
    shown = None
    try:
        if words:
            for one in ranks if query.get("all") else [rank] if ranks else []:
                for line in search(folder, one or 0, words):
                    found.append((one or 0, line))
                    if len(found) >= MOST_FOUND:
                        break
        if rank is not None:
            is_given = at.isdecimal() and len(at) < 16
            shown = page_before(folder, rank)
            if is_given:
                shown = log_page(folder, rank, int(at))
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    return site.render(
        "logs.html", root=root, id=run, ranks=ranks, rank=rank, page=shown,
        words=words, found=found, most=MOST_FOUND, is_all=bool(query.get("all")),
    )  # fmt: skip


# -------------------------------------------------------------------------- files


def _files(folder: Folder) -> dict[str, str]:
    """Returns what can be downloaded: the name in the address -> the file."""
    found: dict[str, str] = {"plan.json": "plan.json"}
    for which in ("best", "last"):
        with suppress(OSError):
            name = model_file(folder, which)
            found[name.rpartition("/")[2]] = name
    for rank in _ranks(folder):
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
    path = _files(folder).get(name)
    if path is None:
        raise HTTPException(404, "This run has no such file.")
    size = folder.size(path)

    def parts() -> Any:
        at = 0
        while at < size and (content := folder.read(path, at, min(1 << 20, size - at))):
            yield content
            at += len(content)

    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Length": str(size),
    }
    kind = "application/octet-stream"
    return StreamingResponse(parts(), media_type=kind, headers=headers)


def send_points(site: Site, request: Request) -> Response:
    """All points of a run's curves, as CSV."""
    folder = site.find(request.path_params["root"], request.path_params["run"])
    view = site.views.of(folder)
    view.advance()
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["what", "t_s", "samples", "worker", "value"])
    with view.lock:
        found = view.exchanges
        for t, samples, rank, loss in zip(
            found.t, found.samples, found.rank, found.loss, strict=True
        ):
            if not math.isnan(loss):
                rows.writerow(["loss of exchange", t, int(samples), rank, loss])
        for epoch in view.epochs:
            for name, value in epoch["metrics"].items():
                rows.writerow([cell(name), epoch["t"], epoch["samples"], "", value])
    headers = {"Content-Disposition": 'attachment; filename="points.csv"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


def cell(text: str) -> str:
    """Returns a text that a spreadsheet does not take for a formula.

    Example:
        >>> cell("=1+1"), cell("loss")
        ("'=1+1", 'loss')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
