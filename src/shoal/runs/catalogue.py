"""All runs under one root: finding, listing and removing them."""

from __future__ import annotations

import difflib
import json
import os
import shlex
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, cast

from shoal.errors import ConfigError, DataError, ShoalError, a_kind
from shoal.host.locks import is_held
from shoal.runs.events import FOLDER, damaged, read_events, without_events
from shoal.runs.folder import Folder, is_place
from shoal.runs.heartbeat import HEARTBEATS, LOST_S, heard_s, unless_heard
from shoal.runs.outlines import OutlineCache, read_outline
from shoal.runs.summary import RunSummary, summarise
from shoal.runs.writer import LOCK, look_at_writer

PLAN = "plan.json"
EXPLAINED = "explained"
"""Key of the plan's text for people, beside its fields."""


def run_ids(root: str | os.PathLike[str], *, known: Collection[str] = ()) -> list[str]:
    """Returns the names of all run folders under a root, oldest first by name.

    Args:
        root: Folder or URL of runs.
        known: Names that are of runs if they are there: that saves a look at each.
    """
    folder = Folder.at(root)
    names = [name for name in folder.names() if not name.startswith(".")]
    return [name for name in names if name in known or _is_run(folder.child(name))]


def has_run(root: str | os.PathLike[str], name: str) -> bool:
    """Returns whether `run_ids` has a name; looks at that run alone.

    The name may come from anybody: it is compared with those that are listed before it
    becomes a path.

    Example:
        >>> has_run("memory://no-such-root", "../etc")
        False
    """
    folder = Folder.at(root)
    is_listed = not name.startswith(".") and name in folder.names()
    return is_listed and _is_run(folder.child(name))


def _is_run(folder: Folder) -> bool:
    """Whether a folder is a run, or was one: a dangling link, an unreadable folder."""
    if folder.exists(FOLDER):
        return True
    if not folder.is_local:
        return False
    try:
        os.lstat(folder.where(FOLDER))
    except FileNotFoundError:
        return os.path.islink(folder.path) and not os.path.exists(folder.path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def check_root(root: str | os.PathLike[str]) -> None:
    """Checks that a folder of runs which a user named on this machine is there.

    A URL is not checked: storage has no empty folders.

    Raises:
        ConfigError: There is no such folder, or it is a file.
    """
    folder = Folder.at(root)
    if not folder.is_local or os.path.isdir(folder.path):
        return
    what = "it is a file" if os.path.exists(folder.path) else "nothing is there"
    raise ConfigError(
        f"runs cannot be read from --root {os.fspath(root)!r}: {what}. Expected a "
        "folder or URL that holds runs. Check the name, or leave --root out for "
        "$SHOAL_RUNS or ./shoal-runs."
    )


MOST_READS = 16
"""Runs of a storage that are read at the same time."""


def list_runs(
    root: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None
) -> list[RunSummary]:
    """Returns the runs under a root, newest first; none when the root is not there.

    Only an outline of each run is read, so that only the fields of a list
    (`summary.LIST_FIELDS`) can be relied on; `read_summary` reads one run completely.
    A run that cannot be read has the status "damaged", with the reason.

    Args:
        root: Path or URL of the folder that holds the runs.
        cache: Folder where outlines are remembered, so that a run whose events have not
            changed is not read again; default None: they are not.

    Example:
        >>> list_runs("memory://no-such-root")
        []
    """
    return sorted(read_outlines(root, cache=cache), key=newest, reverse=True)


def newest(run: RunSummary) -> tuple[float, str]:
    """Key by which runs are in the order of their start."""
    return run.started_unix, run.id


def read_outlines(
    root: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None
) -> Iterator[RunSummary]:
    """Reads the outlines of `list_runs` one by one, in no order.

    Args:
        root: Path or URL of the folder that holds the runs.
        cache: Folder where outlines are remembered, None for none.
    """
    folder = Folder.at(root)
    return outlines_in(folder, open_outlines(folder, cache))


def open_outlines(folder: Folder, cache: str | os.PathLike[str] | None) -> OutlineCache:
    """Opens the outlines of a root that were remembered.

    Args:
        folder: Folder that holds the runs.
        cache: Folder where outlines are remembered, None for none.
    """
    place = None if cache is None else Path(cache).expanduser() / "outlines"
    return OutlineCache(place, folder.url)


def outlines_in(folder: Folder, outlines: OutlineCache) -> Iterator[RunSummary]:
    """Reads the outlines of `list_runs`, with those that are remembered already.

    Args:
        folder: Folder that holds the runs.
        outlines: The outlines that are remembered.
    """
    names = [name for name in folder.names() if not name.startswith(".")]

    def outline(name: str) -> RunSummary | None:
        run = folder.child(name)
        try:
            if not _is_run(run):
                return None
            return outlines.read(run)
        except ShoalError as error:  # a damaged run does not hide the others
            return RunSummary(id=name, status="damaged", url=run.url, damage=str(error))

    if folder.is_local:
        yield from (found for found in map(outline, names) if found)
    elif names:
        with ThreadPoolExecutor(MOST_READS, "shoal-outlines") as readers:
            yield from (found for found in readers.map(outline, names) if found)
    outlines.save(names)


def read_summary(folder: Folder) -> RunSummary:
    """Reads the summary of one run.

    Args:
        folder: The run folder.

    Raises:
        DataError: The run is damaged.
    """
    events = read_events(folder)
    first = next(events, None)
    if first is None:
        raise without_events(folder)
    summary = summarise(
        chain([first], events),
        url=folder.url,
        look=lambda writer: look_at_writer(folder, writer),
    )
    # A folder that was copied under another name is found by its new name.
    return summary.model_copy(update={"id": folder.name})


def find_run(reference: str, root: str | os.PathLike[str]) -> Folder:
    """Finds a run by id, by the unique beginning of one, or by path or URL.

    Args:
        reference: The user's text.
        root: Folder in which ids are looked up.

    Raises:
        ConfigError: There is none, or there are several.
    """
    if is_place(reference):
        folder = Folder.at(reference)
        if folder.exists(FOLDER):
            return folder
        raise ConfigError(
            f"there is no run at {reference!r}. "
            f"Expected a folder with {FOLDER}/ in it. "
            "List the runs of a folder with: shoal runs --root FOLDER."
        )
    known = run_ids(root)
    matches = [i for i in known if i.startswith(reference)] if reference else []
    if reference in known:
        matches = [reference]
    if len(matches) == 1:
        return Folder.at(root).child(matches[0])
    if matches:
        raise ConfigError(
            f"{reference!r} is the beginning of {len(matches)} runs: "
            f"{', '.join(matches[:8])}. Expected one. Type more of the id."
        )
    near = difflib.get_close_matches(reference, known, n=3, cutoff=0.4)
    hint = (
        f"The nearest: {', '.join(near)}."
        if near
        else f"It holds {len(known)} run{'s'[: len(known) != 1]}."
    )
    url = Folder.at(root).url
    raise ConfigError(
        f"no run {reference!r} in {url}. {hint} "
        f"See all of them with: shoal runs --root {shlex.quote(url)}."
    )


def backend_of(folder: Folder) -> str:
    """Returns the Keras backend a run was planned for, "" if its plan has none.

    Raises:
        DataError: The plan is damaged.
    """
    backend = read_plan(folder).get("backend", "")
    if not isinstance(backend, str):
        raise damaged(folder, f"{PLAN} names {a_kind(backend)} as its backend")
    return backend


def remove_run(reference: str, root: str | os.PathLike[str], *, force: bool) -> str:
    """Removes a run with all its files.

    Args:
        reference: Reference, as for `find_run`.
        root: Folder in which ids are looked up.
        force: Remove it although it is running.

    Returns:
        The id of the run that was removed.

    Raises:
        ConfigError: There is no such run, it is running, or it cannot be removed.
        DataError: It is damaged; with `force` it is removed all the same.
    """
    folder = find_run(reference, root)
    if not force:
        refuse_running(folder)
    return remove_folder(folder)


def refuse_running(folder: Folder) -> None:
    """Refuses a run that must not be removed, as a process may still write it.

    Args:
        folder: The run folder.

    Raises:
        ConfigError: It is running.
        DataError: It is damaged, and nothing shows that it is running.
    """
    try:
        outline = read_outline(folder)
    except DataError:
        if not _has_live_writer(folder):
            raise
        age_s = None
    else:
        if outline.status != "running":
            return
        age_s = outline.heard_s
    heard = "" if age_s is None else f": {unless_heard(age_s)}"
    raise ConfigError(
        f"run {folder.name!r} is running{heard}. Expected one that has ended. "
        "Stop it first, or remove it all the same with --force."
    )


def _has_live_writer(folder: Folder) -> bool:
    """Whether a lock or a heartbeat shows one, for a run whose events tell nothing."""
    if folder.is_local:
        return bool(is_held(Path(folder.where(LOCK))))
    names = [name.removesuffix(".json") for name in folder.names(HEARTBEATS)]
    ages = (heard_s(folder, name) for name in names)
    return any(age is not None and age <= LOST_S for age in ages)


def remove_folder(folder: Folder) -> str:
    """Removes exactly this run with all its files, whatever its state.

    Args:
        folder: The run folder.

    Returns:
        The id of the run.

    Raises:
        ConfigError: It cannot be removed.
    """
    try:
        folder.remove()
    except Exception as error:  # a file system of fsspec may raise anything
        raise ConfigError(
            f"run {folder.name!r} cannot be removed: {error}. Expected a folder that "
            "this user may write to. Check its owner, and what is left of it."
        ) from error
    return folder.name


def prune(
    root: str | os.PathLike[str],
    *,
    now: float,
    keep: int | None = None,
    older_than_s: float | None = None,
) -> list[str]:
    """Removes old runs; those that are running or damaged stay.

    Args:
        root: Path or URL of the folder that holds the runs.
        now: Unix seconds.
        keep: Newest runs to keep, at least 0; default None: none is too many.
        older_than_s: Remove only runs that started longer ago, in seconds; default
            None: any age. With both, a run must be beyond both.

    Returns:
        The ids that were removed, newest first.

    Raises:
        ConfigError: Neither limit was given, or one is negative.
    """
    if keep is None and older_than_s is None:
        raise ConfigError(
            "prune has neither a number of runs to keep nor an age. "
            "Expected at least one of keep and older_than. "
            "For example: shoal runs prune --keep 20."
        )
    if (keep or 0) < 0 or (older_than_s or 0.0) < 0:
        raise ConfigError(
            f"prune got keep={keep}, older_than_s={older_than_s}. "
            "Expected numbers of at least 0. Give positive limits."
        )
    removed: list[str] = []
    for place, run in enumerate(list_runs(root)):
        is_beyond = keep is None or place >= keep
        is_old = older_than_s is None or now - run.started_unix > older_than_s
        if is_beyond and is_old and run.status not in ("running", "damaged"):
            Folder.at(root).child(run.id).remove()
            removed.append(run.id)
    return removed


def read_plan(folder: Folder) -> dict[str, Any]:
    """Returns the content of a run's `plan.json`; empty if it has none.

    Raises:
        DataError: It is damaged.
    """
    if not folder.exists(PLAN):
        return {}
    try:
        found = json.loads(folder.read(PLAN))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(folder, f"{PLAN} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise damaged(folder, f"{PLAN} holds {a_kind(found)}")
    return cast("dict[str, Any]", found)
