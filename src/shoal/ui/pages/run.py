"""The page of a run, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.errors import ShoalError
from shoal.runs.catalogue import EXPLAINED, read_plan
from shoal.runs.events import segment_list, segment_name
from shoal.runs.folder import Folder
from shoal.runs.logs import log_name
from shoal.runs.store import model_file
from shoal.ui.pages.logs import ranks_of
from shoal.ui.pages.run_parts import values_of
from shoal.ui.site import Site

EVENTS_FILE = "events.jsonl"
"""Name under which all events of a run are downloaded."""
MOST_PLAN = 100_000
"""Characters of a plan that are shown."""


def show_run(site: Site, request: Request) -> Response:
    """The page of a run."""
    folder = site.find(request.path_params["root"], request.path_params["run"])
    view = site.views.of(folder)
    version = view.advance()
    return site.render(
        "run.html",
        version=version,
        logs=ranks_of(folder),
        files=_files(folder),
        plan=_plan(folder),
        has_board=find_spec("tensorboard") is not None,
        **values_of(site, request, view),
    )


def _plan(folder: Folder) -> tuple[str, str]:
    """Returns the plan of a run as it was explained, and as JSON; "" without one."""
    with suppress(ShoalError, OSError):
        found = read_plan(folder)
        told = found.pop(EXPLAINED, "")
        text = json.dumps(found, indent=2)[:MOST_PLAN] if found else ""
        return str(told)[:MOST_PLAN], text
    return "", ""


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
