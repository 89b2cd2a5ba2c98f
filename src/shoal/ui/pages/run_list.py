"""The list of runs: filter, order, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shoal.errors import ShoalError
from shoal.runs.catalogue import MOST_READS, outlines_in
from shoal.runs.outlines import read_outline
from shoal.runs.summary import RunSummary
from shoal.ui.site import Root, Site, late, unreadable
from shoal.ui.storage_calls import LateError

MOST_ROWS = 1000
"""Rows of a page."""
MOST_DRAWN = 10_000
"""Rows that are remembered as they were drawn."""
MOST_READ_AGAIN = 20
"""Rows of one request that reads rows again."""
MOST_DIGITS = 6
"""Digits of a number in an address."""
MOST_TEXT = 200
"""Characters of a name that are searched."""


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
    def name(self) -> str:
        """Name of the run in forms and addresses: its root, and its id."""
        return f"{self.root}/{self.run.id}"

    @property
    def text(self) -> str:
        """What is searched, in small letters; a browser searches the same."""
        run = self.run
        parts = run.id, run.name[:MOST_TEXT], run.setting[:MOST_TEXT], run.status
        return " ".join(dict.fromkeys(parts)).lower()

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


STATES = ("running", "finished", "failed", "interrupted", "lost", "damaged")

ORDERS: dict[str, Callable[[Row], Any]] = {
    "started": lambda row: row.run.started_unix,
    "name": lambda row: row.run.id,
    "state": lambda row: STATES.index(row.run.status),
    "strategy": lambda row: row.run.setting,
    "workers": lambda row: row.run.workers,
    "progress": lambda row: row.share,
    "best": lambda row: row.best[1] if row.best else float("inf"),
    "speed": lambda row: row.speed or 0.0,
    "took": lambda row: row.run.seconds,
    "size": lambda row: row.size or 0,
}
"""Name of an order -> its key."""


@final
@dataclass(frozen=True, kw_only=True)
class Listed:
    """The runs of all roots.

    Args:
        rows: The runs.
        missing: What to do about roots that do not exist yet.
        unread: Why other roots cannot be read, and what to do.
    """

    rows: list[Row]
    missing: list[str]
    unread: list[str]


def read_rows(site: Site) -> Listed:
    """Reads all runs; a root that cannot be read does not hide those of others."""
    rows: list[Row] = []
    missing: list[str] = []
    unread: list[str] = []
    for root, answer in site.ask_roots("rows", partial(_rows_in, site)):
        try:
            found, is_there = answer()
            rows += found
            if not is_there:
                missing.append(
                    f"{root.folder.url} does not exist yet. It appears with its first "
                    "run; if you expected runs there, start shoal ui with another "
                    "--root."
                )
        except LateError:
            unread.append(late(root))
        except Exception as error:  # a file system of fsspec may raise anything
            unread.append(unreadable(root, error))
    return Listed(rows=rows, missing=missing, unread=unread)


def _rows_in(site: Site, root: Root) -> tuple[list[Row], bool]:
    """Returns the runs of a root, and whether its folder exists."""
    found = outlines_in(root.folder, site.outlines_of(root))
    return [row_of(site, root.key, run) for run in found], root.folder.exists()


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
        except Exception:  # a file system of fsspec may raise anything
            return Row(root=root, run=run)
        known = site.sizes[key] = (state, found)
    return Row(root=root, run=run, size=known[1])


def drawn(site: Site, rows: Sequence[Row], ticked: Collection[str] = ()) -> Markup:
    """Returns rows of the table; the same row is not made a second time.

    Args:
        site: The site.
        rows: The rows.
        ticked: Names of the runs that are chosen.
    """
    texts: list[str] = []
    for row in rows:
        if row.name in ticked:
            texts.append(_text_of(site, [row], is_ticked=True))
            continue
        key = row.root, row.run.id
        known = site.rows.get(key)
        if known is None or known[0] is not row.run or known[1] != row.size:
            known = row.run, row.size, _text_of(site, [row])
            if len(site.rows) >= MOST_DRAWN:
                site.rows.clear()
            site.rows[key] = known
        texts.append(known[2])
    return Markup("".join(texts))


def _text_of(site: Site, rows: Sequence[Row], *, is_ticked: bool = False) -> str:
    return site.text_of(
        "run_rows.html",
        rows=rows,
        is_ticked=is_ticked,
        has_several=len(site.roots) > 1,
    )


def filtered(rows: list[Row], words: str, state: str, order: str) -> list[Row]:
    """Returns the rows of a filter, in an order; running ones are on top.

    Args:
        rows: All rows.
        words: Words that a row must contain, in any case.
        state: State of the runs, "" for all.
        order: Name of an order; with "-" before it the largest are first.
    """
    wanted = words.lower().split()

    def fits(row: Row) -> bool:
        text = row.text
        return state in ("", row.run.status) and all(word in text for word in wanted)

    found = [row for row in rows if fits(row)]
    name = order.removeprefix("-")
    key = ORDERS[name]
    found.sort(key=lambda row: (key(row), row.run.id), reverse=order.startswith("-"))
    found.sort(key=lambda row: row.run.status != "running")
    return found


def _row_of(site: Site, name: str) -> Row | None:
    """Reads one row again; None if its run is gone, or cannot be read now."""
    root, _, run = name.partition("/")
    try:
        outline = read_outline(site.find(root, run))
    except ShoalError as error:
        outline = RunSummary(id=run, status="damaged", damage=str(error))
    except HTTPException:
        return None
    return row_of(site, root, outline, has_time=True)


def show_runs(site: Site, request: Request) -> Response:
    """The page with all runs, or with `part=rows` only those rows that it names."""
    query = request.query_params
    if query.get("part") == "rows":
        named = query.getlist("run")[:MOST_READ_AGAIN]
        with ThreadPoolExecutor(MOST_READS, "shoal-rows") as readers:
            found = readers.map(lambda name: _row_of(site, name), named)
            rows = [row for row in found if row is not None]
        return HTMLResponse(f"<table>{_text_of(site, rows)}</table>")
    words, state = query.get("q", "")[:200], query.get("state", "")
    state = state if state in STATES else ""
    order = query.get("order", "-started")
    order = order if order.removeprefix("-") in ORDERS else "-started"
    seen = time.time()
    listed = read_rows(site)
    found = filtered(listed.rows, words, state, order)
    page = int(query.get("page", "1")) if query.get("page", "1").isdecimal() else 1
    start = (max(1, min(page, 10**6)) - 1) * MOST_ROWS
    shown = found[start : start + MOST_ROWS]
    ticked = set(query.getlist("chosen")) & {row.name for row in listed.rows}
    removed = query.get("removed", "")[:MOST_DIGITS]
    return site.render(
        "runs.html",
        rows=drawn(site, shown, ticked),
        chosen=sorted(ticked),
        away=sorted(ticked - {row.name for row in shown}),
        removed=int(removed) if removed.isdecimal() else None,
        seen=f"{seen:.3f}",
        count=len(found),
        total=len(listed.rows),
        page=start // MOST_ROWS + 1,
        pages=-(-len(found) // MOST_ROWS),
        words=words,
        state=state,
        states=STATES,
        order=order,
        missing=listed.missing,
        unread=listed.unread,
    )
