"""The parts of a run's page that change while it is open: their values and texts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, final

from starlette.requests import Request

from shoal.errors import ConfigError
from shoal.plan.variables import read_workers
from shoal.runs.control import StopRequest, read_stop
from shoal.runs.folder import Folder
from shoal.runs.reasons import split_reason
from shoal.ui.curves import AXES
from shoal.ui.lease_bars import bars_of
from shoal.ui.live import RunView
from shoal.ui.pages.series import choice_of, pictures_of
from shoal.ui.site import Site
from shoal.ui.starting import Program

PARTS = (
    "nav", "head", "actions", "table", "moments", "leases", "workers",
    "checkpoints", "plan", "files",
)  # fmt: skip
"""Names of the parts, which are those of their templates and in the page."""
PICTURES = "pictures"
"""The part that a page without uPlot has besides."""
MOST_FIELD = 100
"""Characters of a field that an address may fill."""
MOST_WORKERS = 64
"""Workers whose time is shown in bars."""


def is_plain(site: Site, request: Request) -> bool:
    """Whether a page shows pictures in place of charts that a browser draws."""
    return not site.has_charts or request.query_params.get("draw") == "svg"


def values_of(site: Site, request: Request, view: RunView) -> dict[str, Any]:
    """Returns what the templates of the parts show of a run."""
    folder, choice = view.folder, choice_of(request)
    has_pictures = is_plain(site, request)
    return {
        "root": request.path_params["root"],
        "id": request.path_params["run"],
        "run": view.summary(),
        "view": view,
        "workers": view.workers(),
        "spent": spent_of(view),
        "bars": bars_of(view.leases()),
        "speed": view.speed(),
        "moments": view.moments,
        "checkpoints": view.checkpoints,
        "failure": split_reason(str(view.summary().report.get("reason", ""))),
        "found": view.files.look(view.summary().status),
        "left": _time_left(view),
        "is_local": folder.is_local,
        "stop": _stop_of(folder, view),
        "program": _program_of(site, folder, view),
        "resume": resume_of(request),
        "is_plain": has_pictures,
        "pictures": pictures_of(view, choice) if has_pictures else [],
        "axes": AXES,
        "choice": choice,
    }


@final
class Parts:
    """The texts of the parts, for one page that stays open.

    Args:
        site: The site.
        request: The request of the page.
        view: The view of the run.
    """

    def __init__(self, site: Site, request: Request, view: RunView) -> None:
        self._site, self._request, self._view = site, request, view
        self._shown: dict[str, tuple[object, ...]] = {}
        self._texts: dict[str, str] = {}

    def changed(self) -> dict[str, str]:
        """Returns the text of each part that differs from the last call, by name."""
        values = values_of(self._site, self._request, self._view)
        shown = _shown_of(values)
        names = [*PARTS, PICTURES] if values["is_plain"] else [*PARTS]
        texts = {
            name: self._site.text_of(f"run/{name}.html", **values)
            for name in names
            if name not in self._shown or shown.get(name) != self._shown[name]
        }
        fresh = {
            name: text for name, text in texts.items() if self._texts.get(name) != text
        }
        self._shown = shown
        self._texts |= fresh
        return fresh


def _shown_of(values: dict[str, Any]) -> dict[str, tuple[object, ...]]:
    """Returns what some parts show, without what stays as long as the page is open.

    Their text is the same as long as that is equal. The other parts change with every
    exchange, or with time.
    """
    run, found = values["run"], values["found"]
    return {
        "nav": (found, run.status),
        "plan": (found, run.status),
        "files": (found, run.status),
        "actions": (run.url, run.status),
        "table": (values["view"].epochs_version,),
        "moments": (values["moments"],),
        "leases": (values["bars"], run.status),
        "checkpoints": (values["checkpoints"], run.status),
    }


def spent_of(view: RunView) -> list[tuple[int, list[tuple[str, float, float]]]]:
    """Returns what each worker's time went to: its name, seconds and share."""
    names = ("compute", "data", "wait", "exchange")
    with view.lock:
        found = list(view.spent.by_rank().items())[:MOST_WORKERS]
    return [
        (rank, [(name, s, s / total) for name, s in zip(names, parts, strict=True)])
        for rank, parts in found
        if (total := sum(parts)) > 0
    ]


def resume_of(request: Request) -> dict[str, str]:
    """Returns what the form to resume holds, as its address says, and what is wrong."""
    workers = request.query_params.get("workers", "").strip()[:MOST_FIELD]
    try:
        if workers:
            read_workers("workers", workers)
    except ConfigError as error:
        return {"workers": workers, "wrong": str(error)}
    return {"workers": workers, "wrong": ""}


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
