"""The list of runs: filter, order, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.errors import ShoalError
from shoal.runs.catalogue import MOST_READS, outlines_in
from shoal.runs.outlines import read_outline
from shoal.runs.summary import RunSummary
from shoal.ui.site import Site

MOST_ROWS = 1000
"""Rows of a page."""
MOST_DRAWN = 10_000
"""Rows that are remembered as they were drawn."""
MOST_WATCHED = 20
"""Running runs whose rows change in place."""


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """A run of the list.

    Args:
        root: Name of its root in addresses.
        run: Its outline.
        size: Bytes of its folder, None where that takes many requests.
    """

    root: str
    run: RunSummary
    size: int | None = None

    @property
    def share(self) -> float:
        """Share of the expected samples that are committed, at most 1."""
        run = self.run
        expected = run.samples_expected
        return min(1.0, run.samples_committed / expected) if expected else 0.0

    @property
    def best(self) -> tuple[str, float] | None:
        """Name and value of the best metric, None without one."""
        best = self.run.report.get("best")
        return (str(best["metric"]), float(best["value"])) if best else None

    @property
    def speed(self) -> float | None:
        """Samples a second, from start to end."""
        run = self.run
        return run.samples_committed / run.seconds if run.seconds > 0 else None


ORDERS: dict[str, Callable[[Row], Any]] = {
    "started": lambda row: row.run.started_unix,
    "name": lambda row: row.run.id,
    "strategy": lambda row: row.run.setting,
    "workers": lambda row: row.run.workers,
    "progress": lambda row: row.share,
    "best": lambda row: row.best[1] if row.best else float("inf"),
    "speed": lambda row: row.speed or 0.0,
    "took": lambda row: row.run.seconds,
    "size": lambda row: row.size or 0,
}
"""Name of an order -> its key."""

STATES = ("running", "finished", "failed", "interrupted", "lost", "damaged")


def read_rows(site: Site) -> tuple[list[Row], list[str]]:
    """Returns all runs, and what is wrong with roots that cannot be read."""
    rows: list[Row] = []
    wrong: list[str] = []
    for root in site.roots.values():
        try:
            found = outlines_in(root.folder, site.outlines_of(root))
            rows += [row_of(site, root.key, run) for run in found]
            if not root.folder.exists():
                wrong.append(
                    f"{root.folder.url} does not exist yet. It appears with its first "
                    "run; if you expected runs there, start shoal ui with another "
                    "--root."
                )
        except (ShoalError, OSError) as error:
            wrong.append(f"{root.folder.url} cannot be read: {error}")
    return rows, wrong


def row_of(site: Site, root: str, run: RunSummary, *, has_time: bool = False) -> Row:
    """Returns the row of a run; of one that has ended the size is looked up once.

    Args:
        site: The site.
        root: Name of the root.
        run: Outline of the run.
        has_time: Whether the size of a run on a storage may be looked up, too: it costs
            a request. While such a run is running it is not.
    """
    folder = site.roots[root].folder
    key, state = (root, run.id), f"{run.status} {run.seconds}"
    known = site.sizes.get(key)
    if known is None or known[0] != state:
        if not folder.is_local and (run.status == "running" or not has_time):
            return Row(root=root, run=run)
        try:
            found = folder.child(run.id).total_bytes()
        except OSError:  # the storage is away for a moment
            return Row(root=root, run=run)
        known = site.sizes[key] = (state, found)
    return Row(root=root, run=run, size=known[1])


def drawn(site: Site, rows: Sequence[Row]) -> Markup:
    """Returns rows of the table; the same row is not made a second time."""
    has_several = len(site.roots) > 1
    texts: list[str] = []
    for row in rows:
        key = row.root, row.run.id
        known = site.rows.get(key)
        if known is None or known[0] is not row.run or known[1] != row.size:
            text = site.text_of("run_rows.html", rows=[row], has_several=has_several)
            known = row.run, row.size, text
            if len(site.rows) >= MOST_DRAWN:
                site.rows.clear()
            site.rows[key] = known
        texts.append(known[2])
    return Markup("".join(texts))


def chosen(rows: list[Row], words: str, state: str, order: str) -> list[Row]:
    """Returns the rows of a filter, in an order; running ones are on top.

    Args:
        rows: All rows.
        words: Words that a row must contain, in any case.
        state: State of the runs, "" for all.
        order: Name of an order; with "-" before it the largest are first.
    """
    wanted = words.lower().split()

    def fits(row: Row) -> bool:
        run = row.run
        text = f"{run.id} {run.name} {run.setting} {run.status}".lower()
        return all(word in text for word in wanted) and state in ("", run.status)

    found = [row for row in rows if fits(row)]
    name = order.removeprefix("-")
    key = ORDERS[name]
    found.sort(key=lambda row: (key(row), row.run.id), reverse=order.startswith("-"))
    found.sort(key=lambda row: row.run.status != "running")
    return found


def _row_of(site: Site, name: str) -> Row | None:
    """Reads one row again; None if its run is gone."""
    root, _, run = name.partition("/")
    try:
        outline = read_outline(site.find(root, run))
    except HTTPException:
        return None
    except ShoalError as error:
        outline = RunSummary(id=run, status="damaged", damage=str(error))
    return row_of(site, root, outline, has_time=True)


def show_runs(site: Site, request: Request) -> Response:
    """The page with all runs, or with `part=rows` only those rows that it names."""
    query = request.query_params
    if query.get("part") == "rows":
        named = query.getlist("run")[:MOST_WATCHED]
        with ThreadPoolExecutor(MOST_READS, "shoal-rows") as readers:
            found = readers.map(lambda name: _row_of(site, name), named)
            rows = [row for row in found if row is not None]
        has_several = len(site.roots) > 1
        return site.render("run_rows.html", rows=rows, has_several=has_several)
    words, state = query.get("q", "")[:200], query.get("state", "")
    state = state if state in STATES else ""
    order = query.get("order", "-started")
    order = order if order.removeprefix("-") in ORDERS else "-started"
    rows, wrong = read_rows(site)
    found = chosen(rows, words, state, order)
    page = int(query.get("page", "1")) if query.get("page", "1").isdecimal() else 1
    start = (max(1, min(page, 10**6)) - 1) * MOST_ROWS
    return site.render(
        "runs.html",
        rows=drawn(site, found[start : start + MOST_ROWS]),
        count=len(found),
        total=len(rows),
        page=start // MOST_ROWS + 1,
        pages=-(-len(found) // MOST_ROWS),
        words=words,
        state=state,
        states=STATES,
        order=order,
        wrong=wrong,
        has_several=len(site.roots) > 1,
    )
