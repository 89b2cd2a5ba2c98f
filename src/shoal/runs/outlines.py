"""Outlines: what a list of runs shows, without reading whole runs.

The writer of a run keeps `outline.json`; for runs without it the ends of the events are
read. This file decides which outline is trusted, and remembers outlines in a cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, cast, final

from pydantic import BaseModel, ConfigDict

from shoal.host.processes import Process
from shoal.runs.event_fields import check
from shoal.runs.events import (
    Event,
    damaged,
    decode_segment,
    encode,
    read_segment,
    segment_list,
    segment_name,
    without_events,
)
from shoal.runs.folder import Folder
from shoal.runs.summary import Fold, RunSummary
from shoal.runs.writer import look_at_writer

OUTLINE = "outline.json"
KINDS = frozenset({"run_started", "run_resumed", "epoch_ended", "run_finished"})
"""Events after which the writer of a run writes its outline again."""

END_BYTES = 64 << 10
"""Bytes of each end of the events that an outline may read."""

MOST_LAST = 4
"""Segments at the end that it may read for them."""

_EXCHANGES = b'"kind":"exchanges"'
_KIND_BYTES = 160
"""The kind stands in the last bytes of a line, behind the fields."""

_LONG = ("metrics", "epoch_ends", "use", "warnings", "url")
_MOST_TEXT = 300
_NUMBERS = (
    "workers", "seconds", "epochs", "epochs_planned", "rows", "samples_expected",
    "samples_committed", "samples_overrun", "exchanges", "workers_lost", "started_unix",
)  # fmt: skip
_MOST = 1e11


@final
class _Kept(BaseModel):
    """The content of `outline.json`, and of an entry of the cache.

    Args:
        segment: Number of the last segment when it was written.
        writer: Fields of the process that writes the run.
        summary: The summary, without what is long.
        key: State of the events that it was made of; "" in a run folder.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    segment: int
    writer: dict[str, Any] | None
    summary: RunSummary
    key: str = ""

    @property
    def is_final(self) -> bool:
        return self.summary.status not in ("running", "lost", "damaged")


def outline_of(fold: Fold, segment: int) -> bytes:
    """Returns the content of `outline.json`.

    Args:
        fold: All events so far.
        segment: Number of the last segment.
    """
    return encode(_packed(_short(fold, segment)))


def read_outline(folder: Folder) -> RunSummary:
    """Reads the outline of a run: a summary without metrics, use and warnings.

    Its counts are those of the last epoch that ended.

    Raises:
        DataError: The run is damaged.
    """
    return _judged(folder, _read(folder, segment_list(folder)))


@final
class OutlineCache:
    """Outlines of the runs of one root, in memory and in a file of this user.

    A file that cannot be read is dropped; one that cannot be written costs time only.

    Args:
        place: Folder of the file; None: nothing is kept beyond this object.
        root: URL of the root.
    """

    def __init__(self, place: Path | None, root: str) -> None:
        digest = hashlib.sha256(root.encode(errors="replace")).hexdigest()
        self._file = place and place / f"{digest[:32]}.json"
        self._stored = self._load()
        """Entries of the file whose runs were not read so far."""
        self._known: dict[str, _Kept] = {}
        self._final: dict[str, tuple[_Kept, RunSummary]] = {}
        self._is_changed = False

    def read(self, folder: Folder) -> RunSummary:
        """Returns a run's outline, from the cache if its events have not changed.

        Of a run that has ended it is the same object each time.

        Raises:
            DataError: The run is damaged.
        """
        name, numbers = folder.name, segment_list(folder)
        key = _key(folder, numbers)
        kept = self._known.get(name)
        if kept is None or kept.key != key:
            kept = self._parse(self._stored.pop(name, None), key)
            if kept is None:
                kept = _read(folder, numbers).model_copy(update={"key": key})
                self._is_changed = True
            self._known[name] = kept
        if not kept.is_final:
            return _judged(folder, kept)
        found = self._final.get(name)
        if found is None or found[0] is not kept:
            found = self._final[name] = kept, _judged(folder, kept)
        return found[1]

    def has_finished(self, name: str) -> bool:
        """Returns whether a run had finished when it was read: nothing resumes it."""
        kept = self._known.get(name)
        return kept is not None and kept.summary.status == "finished"

    def save(self, names: Iterable[str]) -> None:
        """Writes the file, if something in it has changed.

        Args:
            names: Names of the runs that are there; others are forgotten.
        """
        there = set(names)
        for known in (self._stored, self._known, self._final):
            for name in known.keys() - there:
                known.pop(name, None)
                self._is_changed = True
        if self._file is None or not self._is_changed:
            return
        self._is_changed = False
        kept = {name: _packed(one) for name, one in self._known.copy().items()}
        found = {**self._stored, **kept}
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self._file.parent, prefix=".")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(json.dumps(found).encode())
                os.replace(partial, self._file)
            finally:
                Path(partial).unlink(missing_ok=True)

    def _load(self) -> dict[str, Any]:
        try:
            content = self._file.read_bytes() if self._file else b"{}"
            found = json.loads(content)
        except (OSError, ValueError, RecursionError):
            return {}
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def _parse(self, entry: object, key: str) -> _Kept | None:
        if not isinstance(entry, dict):
            return None
        fields = cast("dict[str, Any]", entry)
        return _parsed(fields) if fields.get("key") == key else None


def _key(folder: Folder, numbers: list[int]) -> str:
    """Returns the state of a run's events: its segments, and the size of the last."""
    if not numbers:
        return ""
    try:
        size = folder.size(segment_name(numbers[-1]))
    except Exception as error:  # a file system of fsspec may raise anything
        raise damaged(folder, f"its events cannot be read: {error}") from error
    return f"{folder.path} {numbers[0]} {len(numbers)} {numbers[-1]} {size}"


def _read(folder: Folder, numbers: list[int]) -> _Kept:
    """Reads `outline.json`, or the ends of the events where it is not the last word."""
    kept = _stored(folder)
    if kept and kept.is_final and numbers and kept.segment >= numbers[-1]:
        return kept
    fold = Fold()
    for event in _ends(folder, numbers):
        fold.add(event)
    if fold.is_empty:
        raise without_events(folder)
    found = _short(fold, numbers[-1])
    counts = _counts(fold, found.summary, kept.summary if kept else RunSummary())
    summary = found.summary.model_copy(update=counts)
    return found.model_copy(update={"summary": summary})


def _counts(fold: Fold, found: RunSummary, kept: RunSummary) -> dict[str, Any]:
    """Returns counts that the ends do not tell: those of an older outline, or guesses.

    Args:
        fold: Events at the ends.
        found: Their summary.
        kept: The older outline.
    """
    counts: dict[str, Any] = {
        name: max(getattr(found, name), getattr(kept, name))
        for name in ("exchanges", "workers_lost")
    }
    counts["epochs"] = max(fold.epochs_reached, kept.epochs)
    samples = max(fold.samples_reached, kept.samples_committed)
    counts["samples_committed"] = found.report.get("samples_committed", samples)
    if found.status == "finished" and "samples_expected" not in found.report:
        counts["samples_expected"] = samples
    if "best" in kept.report:
        counts["report"] = {**found.report, "best": kept.report["best"]}
    elif found.epochs < fold.epochs_reached:  # the best may be one in between
        report = found.report.items()
        counts["report"] = {key: value for key, value in report if key != "best"}
    return counts


def _short(fold: Fold, segment: int) -> _Kept:
    summary = fold.summary()
    report = {name: _cut(value) for name, value in summary.report.items()}
    update = {name: type(getattr(summary, name))() for name in _LONG}
    bare = summary.model_copy(update={**update, "report": report})
    writer = fold.writer
    fields = writer and {**writer.fields, "time": writer.seen_time}
    return _Kept(segment=segment, writer=fields, summary=bare)


def _cut(value: Any) -> Any:
    return value[:_MOST_TEXT] if isinstance(value, str) else value


def _packed(kept: _Kept) -> dict[str, Any]:
    return kept.model_dump(mode="json", exclude_defaults=True) | {"v": 1}


def _stored(folder: Folder) -> _Kept | None:
    try:
        fields = json.loads(folder.read(OUTLINE, 0, END_BYTES))
    except Exception:  # none, or a file system of fsspec, which may raise anything
        return None
    return _parsed(cast("dict[str, Any]", fields)) if isinstance(fields, dict) else None


def _parsed(fields: Mapping[str, Any]) -> _Kept | None:
    """Reads an outline; None where a field is not as Shoal writes it."""
    try:
        clean = check({**fields, "kind": "outline"})
        kept = _Kept.model_validate({"segment": 0, "writer": None, **clean})
        summary = kept.summary
        status = summary.status if kept.is_final else "finished"
        check({"kind": "run_finished", "status": status, "report": summary.report})
        if summary.started:
            datetime.fromisoformat(summary.started)
        numbers = (getattr(summary, name) for name in _NUMBERS)
        is_sane = all(0 <= number <= _MOST for number in numbers)
    except (ValueError, RecursionError):  # pydantic's errors are ValueErrors
        return None
    return kept if is_sane else None


def _judged(folder: Folder, kept: _Kept) -> RunSummary:
    """Returns the summary with the state of the writer, under the folder's name."""
    # A folder that was copied under another name is found by its new name.
    update: dict[str, Any] = {"id": folder.name, "url": folder.url}
    if kept.summary.status == "running":
        writer = Process.read(kept.writer or {})
        if writer is not None:
            may_live, update["heard_s"] = look_at_writer(folder, writer)
            update["status"] = "running" if may_live else "lost"
    return kept.summary.model_copy(update=update)


def _ends(folder: Folder, numbers: list[int]) -> Iterator[Event]:
    """Reads events at both ends of a run, except exchanges.

    The first segment may hold only how the run was created, and the last one only how
    it ended.
    """
    first, last = numbers[:2], numbers[2:][-MOST_LAST:]
    for number in first:
        content = read_segment(folder, number, 0, END_BYTES)
        yield from _without_exchanges(folder, number, content)
    if first and not last:  # what the last one holds behind its beginning
        last = first[-1:]
        starts = {last[0]: END_BYTES}
    else:
        starts = dict[int, int]()
    left, parts = END_BYTES, list[tuple[int, bytes]]()
    for number in reversed(last):
        size = folder.size(segment_name(number))
        start = max(starts.get(number, 0), size - left)
        content = read_segment(folder, number, start, left) if start < size else b""
        parts.append((number, content[content.find(b"\n") + 1 :] if start else content))
        left -= len(content)
        if left <= 0:
            break
    for number, content in reversed(parts):
        yield from _without_exchanges(folder, number, content)


def _without_exchanges(folder: Folder, number: int, content: bytes) -> Iterator[Event]:
    lines = content.splitlines(keepends=True)
    rest = b"".join(line for line in lines if _EXCHANGES not in line[-_KIND_BYTES:])
    yield from decode_segment(folder, number, rest)
