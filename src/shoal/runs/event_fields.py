"""Types of the fields of events. Decides which lines of a run folder are accepted.

A run folder may be damaged, or written by another program. Readers of
events rely on these checks, and need none of their own. Fields and kinds
that are not named here pass unchanged: later versions may write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, cast, final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from shoal.errors import a_kind

Event: TypeAlias = dict[str, Any]
"""One line: `v`, `kind`, `time` (Unix seconds), `t` (seconds since start), fields."""

MOST_COUNT = 2**53
Whole: TypeAlias = Annotated[int, Field(ge=-MOST_COUNT, le=MOST_COUNT)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Rank: TypeAlias = Annotated[int, Field(ge=-1, le=2**31)]
Pid: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Number: TypeAlias = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]

Bounds: TypeAlias = Annotated[list[Count], Field(max_length=1024)]

_open = with_config(ConfigDict(extra="allow"))

DEEPEST = 32
"""Maximum depth of nested lists and objects; tables and JSON are made recursively."""

MOST = 2**63
LIMITS = {"loss": 1e308, "t": 1e11, "rank": 2**31}
NUMERIC = (
    "rank", "epoch", "samples", "steps", "version", "staleness", "compute_s", "data_s",
    "wait_s", "exchange_s", "t", "loss",
)  # fmt: skip
"""Columns of exchanges that enter computations."""


@_open
class _Open(TypedDict, total=False):
    """Fields of every event; further fields pass."""

    time: Seconds
    t: Seconds
    host: str
    pid: Pid
    id: str
    name: str


@_open
class _Named(TypedDict, total=False):
    name: str


@_open
class _Planned(_Open, total=False):
    strategy: str | _Named
    setting: str
    seed: Count
    workers: Count
    rows: Count
    epochs: Count
    initial_epoch: Count
    samples_expected: Count
    epoch_rows: list[Count]
    is_higher_better: bool
    monitor: str


@_open
class _RunStarted(_Planned, total=False):
    plan: _Planned


@_open
class _Best(TypedDict):
    metric: str
    value: Finite
    epoch: Count


@_open
class _Report(TypedDict, total=False):
    samples_expected: Count
    samples_committed: Count
    exchanges: Count
    reason: str
    best: _Best
    compute_share: Number
    data_share: Number
    wait_share: Number
    exchange_share: Number


@_open
class _RunFinished(_Open, total=False):
    status: Literal["finished", "failed", "interrupted"]
    report: _Report


@_open
class _EpochEnded(_Open, total=False):
    epoch: Count
    samples: Count
    metrics: dict[str, Any]
    members: list[Any]
    learning_rate: Finite


@_open
class _Checkpoint(_Open, total=False):
    number: Count
    epoch: Count
    samples: Count
    seconds: Seconds
    bytes: Count
    reason: str


@_open
class _StopAsked(_Open, total=False):
    by: str
    asked: Seconds


@_open
class _Exchanges(_Open, total=False):
    clock: str
    columns: list[str]
    rows: list[Any]


@_open
class _OpenEpoch(TypedDict):
    epoch: Count
    rows: Count
    committed: Bounds
    leased: dict[Count, Bounds]


@_open
class _Leases(_Open, total=False):
    epochs: Annotated[list[_OpenEpoch], Field(max_length=64)]


@_open
class _LogSizes(_Open, total=False):
    sizes: dict[Count, Count]
    are_new: bool


@_open
class _Rollback(_Open, total=False):
    committed: dict[Whole, Count]


@_open
class _WorkerStarted(_Open, total=False):
    rank: Rank
    node: str


@_open
class _WorkerLeft(_Open, total=False):
    rank: Rank
    reason: str


@_open
class _Warning(_Open, total=False):
    text: str


@_open
class _Interrupted(_Open, total=False):
    samples: Count


@_open
class _Used(TypedDict, total=False):
    number: Whole | str
    name: str
    percent: Number | None
    watts: Number | None
    celsius: Number | None
    memory_mib: Number | None
    total_mib: Number


@_open
class _NodeUsed(_Open, _Used, total=False):
    node: str
    gpus: list[_Used]


KINDS: dict[str, type] = {
    "run_started": _RunStarted,
    "run_resumed": _Planned,
    "run_finished": _RunFinished,
    "epoch_ended": _EpochEnded,
    "epoch_scored": _EpochEnded,
    "member_epoch_ended": _EpochEnded,
    "exchanges": _Exchanges,
    "leases": _Leases,
    "log_sizes": _LogSizes,
    "checkpoint_written": _Checkpoint,
    "checkpoint_failed": _Checkpoint,
    "stop_asked": _StopAsked,
    "rollback": _Rollback,
    "worker_started": _WorkerStarted,
    "worker_left": _WorkerLeft,
    "worker_lost": _WorkerLeft,
    "warning": _Warning,
    "interrupted": _Interrupted,
    "node_used": _NodeUsed,
}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


@final
class Rows(list[list[Any]]):
    """Rows of exchanges, which are turned into columns once for all who read them."""

    @cached_property
    def columns(self) -> list[tuple[Any, ...]]:
        """The columns, as long as the shortest row has values."""
        return list(zip(*self, strict=False))


def check(event: Mapping[str, Any]) -> Event:
    """Returns an event with checked types of its fields; null counts as absent.

    Args:
        event: Event, decoded from JSON.

    Raises:
        ValueError: A field has a wrong type or an impossible value; names it.

    Example:
        >>> check({"kind": "warning", "t": 1, "text": None})
        {'t': 1.0, 'kind': 'warning'}
        >>> check({"kind": "run_started", "workers": []})
        Traceback (most recent call last):
        ValueError: 'workers' of 'run_started' is a list: Input should be a ...
    """
    kind = event.get("kind", "")
    if not isinstance(kind, str):
        raise ValueError(f"its kind is {a_kind(kind)}")
    is_packed = kind == "exchanges"
    given = {
        _whole(name): value if is_packed and name == "rows" else _plain(name, value)
        for name, value in event.items()
        if value is not None
    }
    if is_packed:
        given = {"columns": [], "rows": [], **given}
    report: Any = given.get("report")
    if isinstance(report, dict):
        fields = cast("dict[str, Any]", report).items()
        given["report"] = {name: value for name, value in fields if value is not None}
    try:
        found: Event = _adapter(kind).validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = type(first["input"]).__name__
        raise ValueError(f"{place!r} of {kind!r} is a {what}: {first['msg']}") from None
    if kind == "worker_started" and "rank" not in found:
        raise ValueError("'rank' of 'worker_started' is missing")
    if kind == "exchanges":
        found["rows"] = Rows(found["rows"])
        _check_rows(found["columns"], found["rows"])
    return found


def _adapter(kind: str) -> TypeAdapter[Any]:
    """Returns an adapter, made on first use: commands without runs start sooner."""
    known = kind if kind in KINDS else ""
    if known not in _ADAPTERS:
        _ADAPTERS[known] = TypeAdapter(KINDS.get(known, _Open))
    return _ADAPTERS[known]


def _plain(name: str, value: Any, depth: int = 1) -> Any:
    """Returns a value that can be shown; NaN becomes null, as in writing."""
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, float):
        return value if -1e308 <= value <= 1e308 else None
    if isinstance(value, int) and abs(value) >= MOST:
        raise ValueError(f"{name!r} is a number of {value.bit_length()} bits")
    if not isinstance(value, (list, dict)):
        return value
    if depth > DEEPEST:
        raise ValueError(f"{name!r} is nested more than {DEEPEST} deep")
    if isinstance(value, list):
        return [_plain(name, item, depth + 1) for item in cast("list[Any]", value)]
    fields = cast("dict[str, Any]", value)
    return {_whole(k): _plain(name, item, depth + 1) for k, item in fields.items()}


def _whole(text: str) -> str:
    """Returns text without lone surrogates, which JSON allows and encoders refuse."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _check_rows(columns: Sequence[str], rows: Rows) -> None:
    """Checks whole columns at once: there may be a million rows."""
    if not set(map(type, rows)) <= {list} or len(set(map(len, rows))) > 1:
        raise ValueError("'rows' of 'exchanges' are not rows of one length")
    for name, column in zip(columns, rows.columns, strict=False):
        types = set(map(type, column)) - {type(None)}
        if not types <= {int, float, bool} and (
            name in NUMERIC or not types <= {int, float, bool, str}
        ):
            odd = sorted(kind.__name__ for kind in types - {int, float, bool})
            raise ValueError(f"column {name!r} of 'exchanges' has a {odd[0]}")
        if types <= {int, float, bool} and types:
            known = [v for v in column if v is not None] if None in column else column
            limit = LIMITS.get(name, 1e15 if name in NUMERIC else 1e308)
            if max(known) >= limit or min(known) <= -limit:
                raise ValueError(f"column {name!r} of 'exchanges' is out of range")
