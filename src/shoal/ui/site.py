"""What all pages share: settings, links, templates, and how runs are looked up."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from shoal.errors import ShoalError
from shoal.runs.catalogue import has_run, open_outlines
from shoal.runs.folder import Folder
from shoal.runs.outlines import OutlineCache
from shoal.runs.summary import RunSummary
from shoal.terminal import one_line, plain, without_colours
from shoal.ui import storage_calls
from shoal.ui.charts import number
from shoal.ui.guard import Access
from shoal.ui.live import Views
from shoal.ui.starting import Starter
from shoal.ui.storage_calls import Calls
from shoal.ui.watching import Watcher

T = TypeVar("T")

HERE = Path(__file__).parent
_CSS, _JS = "text/css; charset=utf-8", "text/javascript; charset=utf-8"
STATIC = {
    "icon.svg": ("icon.svg", "image/svg+xml"),
    "page.css": ("page.css", _CSS),
    "page.js": ("page.js", _JS),
    "list.js": ("list.js", _JS),
    "charts.js": ("charts.js", _JS),
    "logs.js": ("logs.js", _JS),
    "regions.js": ("regions.js", _JS),
    "answers.js": ("answers.js", _JS),
    "uplot.css": ("packages/uplot.css", _CSS),
    "uplot.js": ("packages/uplot.js", _JS),
}
"""Files that are served: path and type. No other name is looked for."""

MOST_TITLE = 2000
"""Characters of a text that a title shows."""
SIGNS = {
    "running": "▶", "finished": "✓", "failed": "✕", "interrupted": "‖",
    "lost": "?", "damaged": "!",
}  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Root:
    """A folder of runs.

    Args:
        key: Its name in addresses.
        folder: The folder.
    """

    key: str
    folder: Folder


@final
@dataclass(frozen=True, kw_only=True)
class Site:
    """Settings and shared state of the page.

    Args:
        roots: Folders of runs, by their names in addresses.
        access: Who may use it.
        starter: Starts programs.
        cache: Folder where outlines are remembered, None for none.
        is_read_only: Whether nothing can be changed.
        has_charts: Whether uPlot is installed; charts are pictures otherwise.
        is_ending: Whether the server ends, so that streams should.
        views: Followers of runs.
        watcher: Waits for changes of run folders.
        sizes: Root and id of a run -> its state, and its bytes then.
        rows: Root and id of a run -> its outline and bytes, and its row in the list.
        outlines: Name of a root -> what is remembered of its runs.
        calls: Calls of storages that may be late.
    """

    roots: Mapping[str, Root]
    access: Access
    starter: Starter
    cache: str | None = None
    is_read_only: bool = False
    has_charts: bool = False
    is_ending: Callable[[], bool] = lambda: False
    views: Views = field(default_factory=Views)
    watcher: Watcher = field(default_factory=Watcher)
    sizes: dict[tuple[str, str], tuple[str, int]] = field(
        default_factory=dict[tuple[str, str], tuple[str, int]]
    )
    rows: dict[tuple[str, str], tuple[RunSummary, int | None, str]] = field(
        default_factory=dict[tuple[str, str], tuple[RunSummary, int | None, str]]
    )
    outlines: dict[str, OutlineCache] = field(default_factory=dict[str, OutlineCache])
    calls: Calls = field(default_factory=Calls)

    def link(self, path: str, **query: object) -> str:
        """Returns the address of a page, the only way in which one is made."""
        given = {name: x for name, x in query.items() if x not in (None, "", [])}
        text = urlencode(given, doseq=True)
        return f"{self.access.base}{quote(path)}{'?' * bool(given)}{text}"

    def run_link(self, root: str, run: str, rest: str = "", **query: object) -> str:
        """Returns the address of a page of a run."""
        return self.link(f"/runs/{root}/{run}{rest}", **query)

    def url_of(self, root: str, run: str) -> str:
        """Returns the path or URL of a run, as commands take it."""
        return self.roots[root].folder.child(run).url

    def command(self, *words: str) -> str:
        """Returns a command of `shoal` to copy, for any folder of a terminal."""
        return clean(shlex.join(["shoal", *words]))

    def ask_roots(
        self, kind: str, call: Callable[[Root], T], *, fresh_s: float = 0.0
    ) -> list[tuple[Root, Callable[[], T]]]:
        """Asks all roots the same; those on storages at once, in threads.

        Args:
            kind: What is asked, "rows" or "times".
            call: Asks one root.
            fresh_s: Seconds for which an answer of a storage serves others who ask.

        Returns:
            Each root, and a function that returns or raises its answer. It raises
            `LateError` for a storage that is late, unless there is no other root.
        """
        limit_s = storage_calls.LIMIT_S if len(self.roots) > 1 else None

        def asking(root: Root) -> Callable[[], T]:
            asked = partial(call, root)
            if root.folder.is_local:
                return asked
            begun = self.calls.begin((kind, root.key), asked, fresh_s)
            return partial(begun.result, limit_s)

        return [(root, asking(root)) for root in self.roots.values()]

    def find(self, key: str, run: str) -> Folder:
        """Returns the folder of a run that an address names.

        The name is compared with those that are there. It is never opened as a path:
        it may come from anybody.

        Raises:
            HTTPException: There is none, or its root cannot be read.
        """
        root = self.roots.get(key)
        if root is not None:
            try:
                is_there = has_run(root.folder.url, run)
            except Exception as error:  # a file system of fsspec may raise anything
                raise HTTPException(503, unreadable(root, error)) from error
            if is_there:
                return root.folder.child(run)
        raise HTTPException(404, "There is no such run here, or it was removed.")

    def outlines_of(self, root: Root) -> OutlineCache:
        """Returns what is remembered of the runs of a root."""
        found = self.outlines.get(root.key)
        if found is None:
            found = self.outlines.setdefault(
                root.key, open_outlines(root.folder, self.cache)
            )
        return found

    def render(self, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Returns a page from a template."""
        return HTMLResponse(self.text_of(name, **values), status_code=status)

    def text_of(self, name: str, **values: Any) -> str:
        """Returns the text of a template, with its values escaped."""
        template = _ENVIRONMENT.get_template(name)
        links = {"link": self.link, "run_link": self.run_link}
        return template.render(site=self, SIGNS=SIGNS, **links, **values)


def unreadable(root: Root, error: Exception) -> str:
    """Returns what is wrong with a root that cannot be read, and what to do."""
    what = str(error) if isinstance(error, ShoalError) else f"{_told(error)}."
    return (
        f"{root.folder.url} cannot be read: {what} Expected a folder or a bucket that "
        "can be reached and that this user may read. Check its name, your rights and "
        "the network, then reload this page; or start shoal ui with another --root."
    )


def late(root: Root) -> str:
    """Returns that a root has not answered yet, and what to do."""
    return (
        f"{root.folder.url} has not answered within {storage_calls.LIMIT_S:g} s, so "
        "its runs are missing here. Expected a storage that can be reached. It is "
        "still being read: reload this page in a moment. If it stays so, check the "
        "network."
    )


def _told(error: Exception) -> str:
    """Returns the name and the text of an error, without a full stop."""
    return f"{type(error).__name__}: {error}".rstrip(".: ")


def roots_of(places: Sequence[str]) -> dict[str, Root]:
    """Names folders of runs for addresses: by the last part of each, made unique.

    Example:
        >>> list(roots_of(["memory://a/runs", "memory://b/runs"]))
        ['runs', 'runs-2']
    """
    found: dict[str, Root] = {}
    for place in places:
        folder = Folder.at(place)
        bare = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "runs"
        key, count = bare, 1
        while key in found:
            count += 1
            key = f"{bare}-{count}"
        found[key] = Root(key=key, folder=folder)
    return found


def seconds(value: float | None) -> str:
    """Returns a duration for people.

    Example:
        >>> seconds(0.42), seconds(75), seconds(7300)
        ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if value is None or not math.isfinite(value):
        return ""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def size(value: float) -> str:
    """Returns a number of bytes for people.

    Example:
        >>> size(900), size(1_300_000)
        ('900 B', '1.3 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{int(value)} B"


def short(text: object, most: int = 80) -> str:
    """Returns a name that fits a cell, without control characters."""
    shown = one_line(str(text)[: most + 1])
    return shown if len(str(text)) <= most else f"{shown[:most]}…"


def cut(text: object, most: int) -> Markup | str:
    """Returns a name that fits a cell, with its whole in the title if it is longer.

    Example:
        >>> str(cut("abcd", 4)), str(cut("ab<cd", 3))
        ('abcd', '<span title="ab&lt;cd">ab&lt;…</span>')
    """
    shown = short(text, most)
    if len(str(text)) <= most:
        return shown
    return Markup('<span title="{}">{}</span>').format(short(text, MOST_TITLE), shown)


def clean(text: object) -> str:
    """Returns text of a run without colours and control characters."""
    return plain(without_colours(str(text)))


def iso(unix: float) -> str:
    """Returns a time in UTC, which the page shows in the reader's zone."""
    if not 0 < unix < 1e11:
        return ""
    return datetime.fromtimestamp(unix, UTC).isoformat("T", "seconds")


def when(unix: float) -> Markup | str:
    """Returns an exact time in UTC, which the page shows in the reader's zone."""
    told = iso(unix)
    if not told:
        return ""
    shown = f"{told[:10]} {told[11:19]} UTC"
    return Markup('<time datetime="{}" data-exact>{}</time>').format(told, shown)


def ago(unix: float) -> str:
    """Returns how long ago a time is."""
    return f"{seconds(max(0.0, time.time() - unix))} ago" if unix > 0 else ""


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: dict[str, Any] = _ENVIRONMENT.filters
_FILTERS.update(
    number=number, seconds=seconds, size=size, short=short, clean=clean, iso=iso,
    ago=ago, cut=cut, when=when,
)  # fmt: skip
