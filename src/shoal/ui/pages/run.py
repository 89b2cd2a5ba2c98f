"""The page of a run, and its files."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.runs.events import segment_list, segment_name
from shoal.ui.pages.run_parts import values_of
from shoal.ui.run_files import files_of
from shoal.ui.site import Site

EVENTS_FILE = "events.jsonl"
"""Name under which all events of a run are downloaded."""


def show_run(site: Site, request: Request) -> Response:
    """The page of a run."""
    folder = site.find(request.path_params["root"], request.path_params["run"])
    view = site.views.of(folder)
    version, values = view.advance(), values_of(site, request, view)
    return site.render(
        "run.html",
        422 if values["resume"]["wrong"] else 200,
        version=version,
        has_board=find_spec("tensorboard") is not None,
        **values,
    )


def send_file(site: Site, request: Request) -> Response:
    """A file of a run, from a fixed list of names."""
    folder = site.find(request.path_params["root"], request.path_params["run"])
    name = request.path_params["name"]
    if name == EVENTS_FILE:
        paths = [segment_name(number) for number in segment_list(folder)]
    else:
        paths = [path for known, path in files_of(folder).items() if known == name]
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
