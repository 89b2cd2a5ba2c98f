"""Everything that changes something: by POST only, behind the guard's checks."""

from __future__ import annotations

import re
from contextlib import suppress

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shoal.errors import ConfigError, DataError, ShoalError
from shoal.plan.variables import read_workers
from shoal.runs.catalogue import refuse_running, remove_folder
from shoal.runs.control import ask_stop, asking
from shoal.runs.outlines import read_outline
from shoal.ui.charts import number
from shoal.ui.pages.compare import MOST_RUNS
from shoal.ui.pages.run_parts import MOST_FIELD
from shoal.ui.site import Site, unreadable

MOST_CHOSEN = 1000
"""Runs of one form: those of a page of the list."""
FURTHER = 8
"""Fields of such a form besides."""
MOST_ADDRESS = 7000
"""Characters of an address: servers and proxies refuse longer ones."""
RESUMABLE = ("interrupted", "failed", "lost")
VERBOSE = ("0", "1", "2")
TENSORBOARD = "tensorboard "
"""Before the URL of a run: what a program is for."""
_BOARD = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}/")


async def stop(site: Site, request: Request) -> Response:
    """Asks a run to stop; harmless when pressed twice."""
    _check_may(site)
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    try:
        if read_outline(folder).status == "running":
            ask_stop(folder, by=asking("shoal ui"))
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    return RedirectResponse(site.run_link(root, run), 303)


async def resume(site: Site, request: Request) -> Response:
    """Resumes a run in a process of its own; harmless when pressed twice."""
    _check_may(site)
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    form = await request.form()
    workers = str(form.get("workers", "")).strip()
    verbose = str(form.get("verbose", "2"))
    try:
        if workers:
            read_workers("workers", workers)
    except ConfigError:  # the page of the run says why, beside the field
        place = site.run_link(root, run, workers=workers[:MOST_FIELD])
        return RedirectResponse(f"{place}#resume-workers", 303)
    try:
        status = read_outline(folder).status
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    if verbose not in VERBOSE:
        raise HTTPException(409, f"verbose={verbose!r} is not one of 0, 1 and 2.")
    if not folder.is_local and form.get("trusted") != "yes":
        raise HTTPException(
            409,
            "This run is not on this machine, and to resume it runs what is in its "
            "folder. Tick that you trust it.",
        )
    if status in RESUMABLE:
        words = ["runs", "resume", folder.url, "--verbose", verbose]
        words += ["--workers", workers] if workers else []
        try:
            site.starter.start(folder.url, words)
        except ShoalError as error:
            raise HTTPException(409, str(error)) from error
    return RedirectResponse(site.run_link(root, run), 303)


async def tensorboard(site: Site, request: Request) -> Response:
    """Starts TensorBoard on a run; it ends with the page's server."""
    _check_may(site)
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    try:
        words = ["tensorboard", folder.url, "--port", "0"]
        site.starter.start(f"{TENSORBOARD}{folder.url}", words)
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    place = site.run_link(root, run, "/tensorboard/started")
    return RedirectResponse(place, 303)


def show_tensorboard(site: Site, request: Request) -> Response:
    """The link to a TensorBoard that was started, or what it says so far."""
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    program = site.starter.of(f"{TENSORBOARD}{folder.url}")
    if program is None:
        raise HTTPException(404, "No TensorBoard was started for this run.")
    found = _BOARD.search(program.text)
    board = found[0] if found and program.code is None else ""
    return site.render(
        "tensorboard.html", root=root, id=run, program=program, board=board
    )


async def choose(site: Site, request: Request) -> Response:
    """Goes on with the chosen runs of the list; changes nothing."""
    form = await request.form(max_fields=MOST_CHOSEN + FURTHER)
    named = [str(value) for value in form.getlist("run")[:MOST_CHOSEN]]
    if form.get("do") == "compare":
        place = site.link("/compare", runs=named)
        if len(place) > MOST_ADDRESS:
            raise HTTPException(
                409,
                f"{number(len(named))} runs were chosen, more than an address holds. "
                f"The comparison shows {MOST_RUNS}: untick others in the list.",
            )
        return RedirectResponse(place, 303)
    _check_may(site)
    runs = await run_in_threadpool(_with_sizes, site, _split(site, named))
    back = site.link("/", chosen=named)
    back = back if len(back) <= MOST_ADDRESS else site.link("/")
    return site.render("remove.html", runs=runs, back=back)


async def remove(site: Site, request: Request) -> Response:
    """Removes runs, after a page that names them; running ones are refused."""
    _check_may(site)
    form = await request.form(max_fields=MOST_CHOSEN + FURTHER)
    named = [str(value) for value in form.getlist("run")[:MOST_CHOSEN]]
    removed, refused = await run_in_threadpool(_remove, site, _split(site, named))
    if not refused:
        return RedirectResponse(site.link("/", removed=removed), 303)
    texts = [*refused, f"{removed} of {removed + len(refused)} were removed."]
    return site.render("message.html", 409, title="Not all removed", texts=texts)


def _remove(site: Site, runs: list[tuple[str, str]]) -> tuple[int, list[str]]:
    """Removes runs; returns how many, and why others were not."""
    removed, refused = 0, list[str]()
    for root, run in runs:
        try:
            folder = site.find(root, run)
        except HTTPException as error:
            if error.status_code != 404:  # else it is gone, which is what was wanted
                refused.append(error.detail)
            continue
        try:
            with suppress(DataError):  # what is damaged is not running
                refuse_running(folder)
            remove_folder(folder)
        except ShoalError as error:
            refused.append(str(error))
        except Exception as error:  # a file system of fsspec may raise anything
            refused.append(unreadable(site.roots[root], error))
        else:
            removed += 1
    return removed, refused


def _split(site: Site, named: list[str]) -> list[tuple[str, str]]:
    """Returns roots and ids of runs that a form names."""
    pairs = [name.partition("/") for name in named]
    return [(root, run) for root, _, run in pairs if root in site.roots]


def _with_sizes(site: Site, runs: list[tuple[str, str]]) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    for root, run in runs:
        size = 0
        with suppress(Exception):  # it is gone, or its storage is away
            size = site.find(root, run).total_bytes()
        found.append((root, run, size))
    return found


def _check_may(site: Site) -> None:
    if site.is_read_only:
        raise HTTPException(403, "This page is for reading: --read-only.")
