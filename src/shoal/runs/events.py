"""Events as versioned JSON lines in numbered segments. Decides their form on disk.

A segment is `events/NNNNNN.jsonl`. On local disks the last one grows line by
line and can be read meanwhile; elsewhere lines are buffered and a segment
appears complete when it is sealed, because object stores cannot append.
Writing never raises: training continues without its records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic_core import from_json

from shoal.errors import DataError
from shoal.runs.event_fields import Event as Event
from shoal.runs.event_fields import Rows, check
from shoal.runs.folder import Folder

VERSION = 1
FOLDER = "events"
SUFFIX = ".jsonl"
_SEGMENT = re.compile(rf"([0-9]{{6,18}}){SUFFIX}")

EXCHANGE_FIELDS = (
    "rank",
    "epoch",
    "samples",
    "steps",
    "version",
    "staleness",
    "compute_s",
    "data_s",
    "wait_s",
    "exchange_s",
    "t",
    "loss",
)
"""Recorded fields of an exchange, in the order of the columns."""


RUN_CLOCK = "run"
"""Value of `clock` in events whose exchanges tell seconds of the run."""


def encode(event: Mapping[str, Any]) -> bytes:
    r"""Turns an event into one line; NaN and infinity become null.

    Example:
        >>> encode({"v": 1, "kind": "warning", "loss": float("nan")})
        b'{"v":1,"kind":"warning","loss":null}\n'
    """
    try:
        text = _dump(event)
    except ValueError:  # NaN, which JSON cannot express
        text = _dump(_finite(json.loads(json.dumps(event, default=_plain))))
    return text.encode() + b"\n"


def decode(content: bytes) -> Iterator[Event]:
    """Reads lines; a partial one (the writer was killed, the disk full) is skipped."""
    return (event for _, event in _lines(content))


def _lines(content: bytes) -> Iterator[tuple[int, Event]]:
    """Yields lines that are JSON objects, with their numbers."""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            event = _parsed(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield number, cast(Event, event)


def _parsed(line: bytes) -> Any:
    """Returns the value of a line of JSON."""
    try:
        return from_json(line, allow_inf_nan=False)  # in half the time of json
    except ValueError:  # such as half a surrogate pair, which JSON allows
        return json.loads(line, parse_constant=_no_number)


def pack_exchanges(records: Sequence[Mapping[str, Any]]) -> Event:
    """Returns the fields of one `exchanges` event: names once, numbers in rows.

    Args:
        records: Mappings with the names of `EXCHANGE_FIELDS`; missing ones become
            null. Further fields are appended, unless they hold more
            than a number or string, such as a metric's state.

    Example:
        >>> pack_exchanges([{"rank": 0, "samples": 640}])["rows"][0][:3]
        [0, None, 640]
    """
    further = {
        name: None
        for record in records
        for name, value in record.items()
        if name not in EXCHANGE_FIELDS and _is_plain(value)
    }
    columns = [*EXCHANGE_FIELDS, *further]
    rows = [[_short(record.get(name)) for name in columns] for record in records]
    return {"columns": columns, "rows": rows}


def unpack_exchanges(event: Mapping[str, Any]) -> Iterator[Event]:
    """Returns the records packed in one `exchanges` event.

    In older runs `t` counts from the start of a server. It is mended by the event's own
    time: the last exchange happened shortly before.
    """
    columns = exchange_columns(event)
    for row in zip(*columns.values(), strict=False):
        yield dict(zip(columns, row, strict=False))


def exchange_columns(event: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Returns the same by columns: quicker for a run of many exchanges.

    Example:
        >>> exchange_columns({"columns": ["rank", "t"], "rows": [[0, 1.5], [1, 2.5]]})
        {'rank': (0, 1), 't': (1.5, 2.5)}
    """
    names = cast(list[str], event.get("columns", ()))
    rows = event.get("rows", ())
    columns = rows.columns if isinstance(rows, Rows) else zip(*rows, strict=False)
    found: dict[str, Sequence[Any]] = dict(zip(names, columns, strict=False))
    times = found.get("t")
    if times and event.get("clock") != RUN_CLOCK and "t" in event:
        last = max((time for time in times if time is not None), default=event["t"])
        later_s = event["t"] - last
        if later_s:
            found["t"] = [
                time if time is None else max(0.0, round(time + later_s, 6))
                for time in times
            ]
    return found


def exchange_records(events: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Returns every exchange of a run, in the order they were recorded."""
    for event in events:
        if event.get("kind") == "exchanges":
            yield from unpack_exchanges(event)


def segment_name(number: int) -> str:
    """Returns the file name of a segment; names sort as numbers do."""
    return f"{FOLDER}/{number:06d}{SUFFIX}"


def segment_numbers(folder: Folder) -> list[int]:
    """Lists the segments of a run folder, oldest first."""
    found = (_SEGMENT.fullmatch(name) for name in folder.names(FOLDER))
    return sorted(int(match[1]) for match in found if match)


def read_events(folder: Folder, *, after: int = -1) -> Iterator[Event]:
    """Reads the events of a run folder, oldest first.

    Args:
        folder: The run folder.
        after: Read only later segments than this one; see `following.Follow` for a run
            that is still being written.

    Raises:
        DataError: The run is damaged: a segment cannot be read, or a field of an event
            is invalid.
    """
    for number in segment_list(folder):
        if number > after:
            yield from decode_segment(folder, number, read_segment(folder, number))


def read_segment(
    folder: Folder, number: int, start: int = 0, most: int | None = None
) -> bytes:
    """Reads a segment from byte `start` on, at most `most` bytes.

    Raises:
        DataError: It cannot be read.
    """
    name = segment_name(number)
    try:
        return folder.read(name, start, most)
    except Exception as error:  # a file system of fsspec may raise anything
        raise damaged(folder, f"{name} cannot be read: {error}") from error


def decode_segment(folder: Folder, number: int, content: bytes) -> Iterator[Event]:
    """Reads lines of a segment; partial ones are skipped.

    Raises:
        DataError: A field of an event is invalid.
    """
    name = segment_name(number)
    for line, event in _lines(content):
        try:
            yield check(event)
        except ValueError as error:
            raise damaged(folder, f"{name}, line {line}: {error}") from error


def segment_list(folder: Folder) -> list[int]:
    """Returns `segment_numbers`.

    Raises:
        DataError: They cannot be listed.
    """
    try:
        return segment_numbers(folder)
    except Exception as error:  # a file system of fsspec may raise anything
        raise damaged(folder, f"{FOLDER}/ cannot be read: {error}") from error


def damaged(folder: Folder, what: str) -> DataError:
    """Returns the error about a run whose files are damaged.

    Args:
        folder: Folder of the run.
        what: The file, and its fault.
    """
    return DataError(
        f"the run {folder.name!r} is damaged: {what}. Expected a folder that this user "
        "can read, as Shoal wrote it. Restore it from a copy, or remove it: shoal runs "
        f"rm {folder.name} --force."
    )


def without_events(folder: Folder) -> DataError:
    """Returns the error about a run of which no event can be read."""
    return damaged(folder, f"{FOLDER}/ holds no event that can be read")


def _no_number(_: str) -> None:
    """Turns NaN and infinity into null, as in writing."""


def _dump(event: Any) -> str:
    return json.dumps(
        event, default=_plain, allow_nan=False, separators=(",", ":"), ensure_ascii=True
    )


def _plain(value: Any) -> Any:
    """Turns NumPy scalars and arrays into Python values, others into text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset, tuple)):
        return list(cast(Iterable[Any], value))
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in cast(dict[str, Any], value).items()}
    return value


def _short(value: Any) -> Any:
    """Rounds to seven significant digits, those of a float32; None if not finite."""
    if not _is_plain(value):
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or string, not an array, a collection or None."""
    is_scalar = getattr(value, "shape", None) == ()
    return is_scalar or isinstance(value, (bool, int, float, str))
