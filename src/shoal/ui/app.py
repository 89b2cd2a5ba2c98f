"""The application: its routes, errors as pages, and the guard around all of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shoal.errors import ShoalError
from shoal.ui.guard import Guard
from shoal.ui.pages import (
    actions,
    compare,
    list_changes,
    logs,
    new,
    run,
    run_list,
    run_stream,
    series,
)
from shoal.ui.site import HERE, STATIC, Site

Page = Callable[[Site, Request], Any]

READ: dict[str, Page] = {
    "/": run_list.show_runs,
    "/events": list_changes.stream_list,
    "/compare": compare.show_comparison,
    "/compare.csv": compare.send_comparison,
    "/compare.json": compare.send_series,
    "/new": new.show_form,
    "/new/check": new.send_check,
    "/new/started/{root}/{key}": new.show_started,
    "/runs/{root}/{run}": run.show_run,
    "/runs/{root}/{run}/events": run_stream.stream_run,
    "/runs/{root}/{run}/logs": logs.show_logs,
    "/runs/{root}/{run}/logs/found": logs.send_found,
    "/runs/{root}/{run}/logs/new": logs.send_new,
    "/runs/{root}/{run}/points.csv": series.send_points,
    "/runs/{root}/{run}/series.json": series.send_series,
    "/runs/{root}/{run}/tensorboard/started": actions.show_tensorboard,
    "/runs/{root}/{run}/files/{name}": run.send_file,
}
CHANGE: dict[str, Page] = {
    "/runs/{root}/{run}/stop": actions.stop,
    "/runs/{root}/{run}/resume": actions.resume,
    "/runs/{root}/{run}/tensorboard": actions.tensorboard,
    "/new/plan": new.plan,
    "/choose": actions.choose,
    "/remove": actions.remove,
}


def make_app(site: Site) -> ASGIApp:
    """Returns the guarded application."""
    pages = {**READ, "/help": _help, "/static/{name}": _static}
    app = Starlette(
        routes=[
            *(Route(path, _bound(page, site), methods=["GET"]) for path, page in
              pages.items()),
            *(Route(path, _bound(page, site), methods=["POST"]) for path, page in
              CHANGE.items()),
        ],
        exception_handlers={
            HTTPException: partial(_refused, site),
            ShoalError: partial(_failed, site),
            Exception: partial(_failed, site),
        },
    )  # fmt: skip
    return Guard(app, site.access)


def _bound(page: Page, site: Site) -> Callable[[Request], Awaitable[Response]]:
    """Returns a page as Starlette calls it: one that reads files runs in a thread."""

    @wraps(page)
    async def bound(request: Request) -> Response:
        if inspect.iscoroutinefunction(page):
            return await page(site, request)
        return await run_in_threadpool(page, site, request)

    # Starlette looks at the signature of what is wrapped otherwise.
    del bound.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    return bound


def _help(site: Site, request: Request) -> Response:
    del request
    return site.render("help.html")


def _static(site: Site, request: Request) -> Response:
    del site
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404, "There is no such file.")
    path, kind = STATIC[name]
    try:
        content = (HERE / "static" / path).read_bytes()
    except FileNotFoundError:
        raise HTTPException(404, "There is no such file.") from None
    return Response(content, media_type=kind)


async def _refused(site: Site, request: Request, error: Exception) -> Response:
    del request
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = error.detail if isinstance(error, HTTPException) else ""
    titles = {
        404: "Not found", 405: "Not a way to ask", 409: "Not possible", 503: "Not now",
    }  # fmt: skip
    title = titles.get(status, "Refused")
    return site.render("message.html", status, title=title, texts=[text])


async def _failed(site: Site, request: Request, error: Exception) -> Response:
    del request
    is_known = isinstance(error, ShoalError)
    text = str(error) if is_known else f"{type(error).__name__}: {error}"
    return site.render("message.html", 500, title="That did not work", texts=[text])
