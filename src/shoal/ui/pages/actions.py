"""Everything that changes something: by POST only, behind the guard's checks."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shoal.errors import ShoalError
from shoal.runs.catalogue import remove_run
from shoal.runs.control import ask_stop, asking
from shoal.runs.outlines import read_outline
from shoal.ui.pages.compare import MOST_RUNS
from shoal.ui.site import Site

MOST_REMOVED = 1000


async def stop(site: Site, request: Request) -> Response:
    """Asks a run to stop; harmless when pressed twice."""
    _check_may(site)
    root, run = request.path_params["root"], request.path_params["run"]
    folder = site.find(root, run)
    try:
        if read_outline(folder).status == "running":
            ask_stop(folder, by=f"shoal ui, {asking()}")
    except ShoalError as error:
        raise HTTPException(409, str(error)) from error
    return RedirectResponse(site.run_link(root, run, asked="stop"), 303)


async def choose(site: Site, request: Request) -> Response:
    """Goes on with the chosen runs of the list; changes nothing."""
    form = await request.form()
    named = [str(value) for value in form.getlist("run")]
    if form.get("do") == "compare":
        return RedirectResponse(site.link("/compare", runs=named[:MOST_RUNS]), 303)
    _check_may(site)
    return site.render("remove.html", runs=_split(site, named))


async def remove(site: Site, request: Request) -> Response:
    """Removes runs, after a page that names them; running ones are refused."""
    _check_may(site)
    form = await request.form()
    found = _split(site, [str(value) for value in form.getlist("run")])
    refused: list[str] = []
    for root, run in found:
        try:
            site.find(root, run)
        except HTTPException:
            continue  # it is gone already, which is what was wanted
        try:
            remove_run(run, site.roots[root].folder.url, force=False)
        except ShoalError as error:
            refused.append(str(error))
    if refused:
        return site.render("message.html", 409, title="Not all removed", texts=refused)
    return RedirectResponse(site.link("/"), 303)


def _split(site: Site, named: list[str]) -> list[tuple[str, str]]:
    """Returns roots and ids of runs that a form names."""
    pairs = [name.partition("/") for name in named[:MOST_REMOVED]]
    return [(root, run) for root, _, run in pairs if root in site.roots]


def _check_may(site: Site) -> None:
    if site.is_read_only:
        raise HTTPException(403, "This page is for reading: --read-only.")
